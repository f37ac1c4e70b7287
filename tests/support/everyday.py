"""Everyday tasks as programs for three frameworks, a model for them, and the page that shows them.

make everyday       # writes docs/everyday.md; needs the environments of `make test-clients`
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from anabranch.messages import Message, Request, ToolCall, Usage
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend
from support.paths import ROOT, TESTS
from support.threaded_server import serve_in_thread

__all__ = [
    "EXPECTED",
    "FRAMEWORKS",
    "PAGE",
    "code_of",
    "environment",
    "everyday_model",
    "inferred_type",
    "make_page",
    "program",
    "python_of",
    "types_on_page",
]

PAGE = ROOT / "docs/everyday.md"
MODEL = "gpt-5-mini"
# The frameworks, with the suffix of their programs and the environment of `make test-clients`.
FRAMEWORKS = {
    "Anabranch": ("", ""),
    "Pydantic AI": ("_pydantic_ai", "pydantic-ai-slim"),
    "OpenAI Agents SDK": ("_openai_agents", "openai-agents"),
}
TITLES = {
    "ask": "Ask a question",
    "typed_output": "Get a typed answer",
    "tool": "Give the model a tool",
    "context": "Let a tool read the context of the request",
    "stream": "Stream the text",
    "memory": "Remember the earlier turns",
    "parallel": "Ask several questions at once",
    "fallback": "Use another model if the first one fails",
    "sub_agent": "Let one agent call another",
    "limit": "Limit the tokens",
    "fake_model": "Test with a fake model",
}
EXPECTED = {
    "ask": "Paris.",
    "typed_output": "customer='Ada' euros=40",
    "tool": "It is warm.",
    "context": "You ordered a lamp.",
    "stream": "one two three four five",
    "memory": "You are Ada.",
    "parallel": "['Paris.', 'Rome.', 'Lima.']",
    "fallback": "Paris.",
    "sub_agent": "Rivers carry water.",
    "limit": "That was too much.",
    "fake_model": "",
}
CAPITALS = {"France": "Paris.", "Italy": "Rome.", "Peru": "Lima."}


# --- the model


def answer(request: Request) -> Message:
    """Answer the question of any of the tasks."""
    return _answer(request).model_copy(update={"usage": Usage(input_tokens=30, output_tokens=10)})


def _answer(request: Request) -> Message:
    asked = [each.content or "" for each in request.messages if each.role == "user"]
    last, question = request.messages[-1], asked[-1]
    if "Invoice" in f"{request.options} {request.tools}" or "owes" in question:
        return _typed({"customer": "Ada", "euros": 40}, request)
    if "capital" in question:
        return _text(CAPITALS[question.removesuffix("?").split()[-1]])
    if question == "Count to five.":
        return _text("one two three four five")
    if question == "What is my name?":
        return _text("You are Ada." if "My name is Ada." in asked else "I do not know.")
    if last.role == "tool" and question != "Read the book.":
        found = re.sub(r'[\[\]"\']', "", last.content or "")
        return _text(
            {"weather": f"It is {found}.", "orders": f"You ordered {found}."}.get(
                request.tools[0].name, found
            )
        )
    if request.tools:
        (name,) = request.tools[0].parameters.get("properties", {}) or ("",)
        values = {"city": "Rome", "number": len(request.messages), "": None}
        return _call(request.tools[0].name, {name: values.get(name, "rivers")} if name else {})
    return _text("Rivers carry water." if "rivers" in question else "Hello.")


def _text(text: str) -> Message:
    return Message(role="assistant", content=text)


def _call(name: str, arguments: dict[str, object]) -> Message:
    made = ToolCall(id=f"call_{os.urandom(4).hex()}", name=name, arguments=arguments)
    return Message(role="assistant", content=None, tool_calls=[made])


def _typed(value: dict[str, object], request: Request) -> Message:
    """Answer in the way that was asked for: a tool, or JSON."""
    return _call(request.tools[0].name, value) if request.tools else _text(json.dumps(value))


async def refuse_other_models(app: Any, scope: Any, receive: Any, send: Any) -> None:
    """Answer a request for another model with status 402, and give `app` all others."""
    if scope["type"] != "http":
        await app(scope, receive, send)
        return
    body, more = b"", True
    while more:
        message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    if json.loads(body)["model"] == MODEL:
        pieces = [{"type": "http.request", "body": body, "more_body": False}]
        await app(scope, lambda: _next(pieces, receive), send)
        return
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 402, "headers": headers})
    text = json.dumps({"error": {"message": "no quota left", "type": "insufficient_quota"}})
    await send({"type": "http.response.body", "body": text.encode()})


async def _next(pieces: list[Any], receive: Any) -> Any:
    return pieces.pop(0) if pieces else await receive()


@contextmanager
def everyday_model() -> Generator[str]:
    """Serve the model to clients of OpenAI's protocols, and "gpt-5", which is out of quota.

    Gives the address.
    """
    served = serve({MODEL: ScriptedBackend(otherwise=answer)})

    async def app(scope: Any, receive: Any, send: Any) -> None:  # uvicorn looks for such a function
        await refuse_other_models(served, scope, receive, send)

    with serve_in_thread(app) as server:
        yield f"{server.url}v1"


# --- the programs


def program(task: str, framework: str) -> Path:
    """Return the path of a program."""
    suffix = FRAMEWORKS[framework][0]
    folder = TESTS / "clients/everyday" if suffix else ROOT / "examples/everyday"
    return folder / f"{task}{suffix}.py"


def python_of(framework: str, clients: Path) -> Path:
    """Return the Python with a framework."""
    name = FRAMEWORKS[framework][1]
    return clients / name / "bin/python" if name else Path(sys.executable)


def environment(url: str) -> dict[str, str]:
    """Return the variables that lead a program to the model."""
    return {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": "none",
        "OPENAI_AGENTS_DISABLE_TRACING": "1",  # else it sends traces to OpenAI
    }


def code_of(path: Path) -> int:
    """Count the lines of code: those with a token that is neither a comment nor a docstring."""
    tree, lines = ast.parse(path.read_text(encoding="utf-8")), set[int]()
    docstrings = {
        id(node.body[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module)
        if ast.get_docstring(node) is not None
    }
    skipped = set[int]()
    for node in ast.walk(tree):
        if id(node) in docstrings:
            assert isinstance(node, ast.stmt)
            skipped.update(range(node.lineno, (node.end_lineno or 0) + 1))
        elif isinstance(node, ast.stmt):
            lines.update(range(node.lineno, (node.end_lineno or 0) + 1))
    text = path.read_text(encoding="utf-8").splitlines()
    return sum(
        bool(text[number - 1].strip()) and not text[number - 1].strip().startswith("#")
        for number in {*lines} - skipped
    ) + sum(line.startswith(("@", "    @")) for line in text)


def inferred_type(path: Path, python: Path) -> str:
    """Return the type that pyright infers for the value that a program prints or compares last."""
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"(?:print\((.*?)(?:, end=.*)?\)|assert (.*?) == .*)$", text, re.MULTILINE)
    value = "".join(found[-1])
    if value.startswith('"'):
        return ""
    place = [line for line in text.splitlines() if value in line][-1]
    indent = " " * (len(place) - len(place.lstrip()))
    with TemporaryDirectory() as folder:
        copy = Path(folder) / "program.py"
        copy.write_text(text.replace(place, f"{indent}reveal_type({value})\n{place}"))
        command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(python)]
        # Not here, where the package "agents" is our own.
        done = subprocess.run(
            [*command, str(copy)], cwd=folder, capture_output=True, text=True, check=False
        )
    report = json.loads(done.stdout)["generalDiagnostics"]
    (message,) = [each["message"] for each in report if each["severity"] == "information"]
    return re.sub(r'^Type of ".*" is "(.*)"$', r"\1", message, flags=re.DOTALL)


# --- the page

_INTRO = """\
# Everyday tasks, side by side

Each task is a complete program for Anabranch, for Pydantic AI and for the OpenAI Agents SDK. \
A test runs all of them against the same model. The lines are lines of code, without comments and \
docstrings, as Ruff formats them. The type is the one that pyright infers for the answer.

The programs are in `examples/everyday` and `tests/clients/everyday`. `make everyday` writes this \
page.
"""


def make_page(types: dict[str, dict[str, str]]) -> str:
    """Return the page, with these types by task and framework."""
    lines = [_INTRO, "| Task | " + " | ".join(FRAMEWORKS) + " |", "|---" * 4 + "|"]
    for task, title in TITLES.items():
        cells = [_cell(task, framework, types[task][framework]) for framework in FRAMEWORKS]
        lines.append(f"| [{title}](#{_anchor(title)}) | {' | '.join(cells)} |")
    total = [sum(code_of(program(task, each)) for task in TITLES) for each in FRAMEWORKS]
    lines += ["| All | " + " | ".join(f"{each} lines" for each in total) + " |", ""]
    for task, title in TITLES.items():
        lines += [f"## {title}", ""]
        for framework in FRAMEWORKS:
            text = program(task, framework).read_text(encoding="utf-8")
            lines += [f"{framework}:", "", "```py", text.rstrip(), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _cell(task: str, framework: str, inferred: str) -> str:
    text = f"{code_of(program(task, framework))} lines"
    return f"{text}, `{inferred}`" if inferred else text


def _anchor(title: str) -> str:
    return title.lower().replace(" ", "-")


def types_on_page() -> dict[str, dict[str, str]]:
    """Read the types from the page."""
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:3] == "| ["]
    found = dict[str, dict[str, str]]()
    for task, row in zip(TITLES, rows, strict=True):
        cells = row.split(" | ")[1:]
        types = [(re.findall(r"`(.*)`", cell) or [""])[0] for cell in cells]
        found[task] = dict(zip(FRAMEWORKS, types, strict=True))
    return found


def main() -> None:
    """Write the page."""
    clients = Path(os.environ.get("ANABRANCH_CLIENTS", ROOT / ".venv-clients")).absolute()
    types = {
        task: {
            each: inferred_type(program(task, each), python_of(each, clients))
            for each in FRAMEWORKS
        }
        for task in TITLES
    }
    PAGE.write_text(make_page(types), encoding="utf-8")


if __name__ == "__main__":
    main()
