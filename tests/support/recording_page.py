"""Recordings for the tests of the trace page, and helpers that read the page in a browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from anabranch import Agent, Commander, Message, ToolCall, ToolError, tool
from anabranch.backends import Price
from anabranch.messages import Usage
from anabranch.testing import ScriptedBackend
from anabranch.tracing import Trace, record

__all__ = [
    "CONTRASTS",
    "HOSTILE_TEXTS",
    "SELECTED",
    "RecordingPage",
    "conversation_trace",
    "event_line",
    "node_lines",
    "record_agent",
    "request_lines",
    "selected_row",
    "table_cells",
    "trace_of",
    "visible_rows",
    "wide_trace",
]

HOSTILE_TEXTS = [
    "</script><script>window.broken = 1</script>",
    "<!-- <script>",
    "<img src=x onerror='window.broken=1'>",
    "\u2028\u2029",
    "\ud800 half",
    "__proto__",
    "constructor",
    "{{script}} {{data}} {{style}}",
    "\u202etxt.exe",
    "a\nb\tc\0d",
    "",
    "'\"`${1}\\",
    "x" * 5000,
]


def trace_of(*lines: dict[str, Any], live: bool = False, **head: Any) -> Trace:
    """Return the trace of these lines; unless `live`, nodes without an end count as lost."""
    trace = Trace()
    first = {"recording": 1, "time": 1_790_000_000.0, "pid": 7, "host": "box", "content": True}
    for line in (first | head, *lines):
        trace.feed(line)
    trace.live = live
    if not live:
        trace.lose_open()
    return trace


def event_line(kind: str, at: float, number: int, /, **more: Any) -> dict[str, Any]:
    """Return the line of an event of a node."""
    return {"e": kind, "t": at, "n": number, **more}


def node_lines(
    number: int, name: str = "Leaf", parent: int = 1, at: float = 0.0, end: str = "completed"
) -> list[dict[str, Any]]:
    """Return the lines of a node that runs for a millisecond."""
    ended: dict[str, Any] = event_line(end, at + 0.002, number)
    if end == "failed":
        ended["error"] = {"type": "ValueError", "at": "app.py:9 in task", "message": "too small"}
    return [
        event_line("put", at, number, p=parent, name=name),
        event_line("started", at + 0.001, number),
        ended,
    ]


def wide_trace(size: int, *, failed: int | None = None) -> Trace:
    """Return the trace of a job with `size` children; child `failed` fails."""
    lines = [
        event_line("put", 0.0, 1, p=0, name="Crowd"),
        event_line("started", 0.001, 1),
    ]
    for number in range(2, size + 2):
        lines += node_lines(
            number, at=number * 1.3e-5, end="failed" if number == failed else "completed"
        )
    last = size * 1.3e-5 + 0.01
    lines += [event_line("completed", last, 1), {"e": "end", "t": last, "usage": {}}]
    return trace_of(*lines)


def request_lines(
    number: int, model: str, at: float, usage: dict[str, Any], **more: Any
) -> list[dict[str, Any]]:
    """Return the lines of a model request by a node."""
    q = int(at * 1e6)
    return [
        event_line(
            "request",
            at,
            number,
            q=q,
            provider="scripted",
            model=model,
            options={"temperature": 0.5},
            messages=2,
            tools=["search"],
        ),
        event_line("first_chunk", at + 0.01, number, q=q),
        {
            "e": "reply",
            "t": at + 0.05,
            "n": number,
            "q": q,
            "first": 0.01,
            "chunks": 5,
            "usage": {model: usage},
            "finish": "stop",
            **more,
        },
        event_line("charged", at + 0.05, number, usage={model: usage}),
    ]


def conversation_trace() -> Trace:
    """Return a trace of two agents with two models, a tool call, a failure, a retry and a wait."""
    return trace_of(
        {"e": "price", "model": "large", "input": 2.0, "output": 8.0, "cached_input": 0.5},
        event_line("put", 0.0, 1, p=0, name="Talk"),
        event_line("started", 0.01, 1),
        event_line("put", 0.02, 2, p=1, name="ask", agent="writer", session=3),
        event_line("started", 0.03, 2),
        *request_lines(
            2,
            "large",
            0.04,
            {"input_tokens": 1000, "output_tokens": 100, "cached_input_tokens": 400},
        ),
        *request_lines(
            2, "small", 0.1, {"input_tokens": 50, "output_tokens": 7, "reasoning_tokens": 3}
        ),
        event_line("put", 0.2, 3, p=2, name="search"),
        event_line(
            "called", 0.2, 3, tool="search", call="c1", size=12, arguments={"query": "rivers"}
        ),
        event_line("started", 0.21, 3),
        event_line("answered", 0.25, 3, status="failed", size=9, result="no answer"),
        event_line("completed", 0.25, 3),
        event_line("completed", 0.3, 2),
        event_line("put", 0.3, 4, p=1, name="ask", agent="critic"),
        event_line("started", 0.31, 4),
        *request_lines(4, "large", 0.32, {"input_tokens": 10, "output_tokens": 20}),
        event_line("retried", 0.4, 4, error={"type": "RateLimited", "message": "slow down"}),
        event_line("started", 0.5, 4),
        event_line("slow", 0.6, 4, seconds=0.08, at="app.py:40 in task"),
        event_line(
            "failed",
            0.6,
            4,
            error={
                "type": "ExceptionGroup",
                "message": "two",
                "of": [{"type": "OSError", "message": "first"}],
            },
        ),
        event_line("put", 0.6, 5, p=1, name="wait"),
        event_line("started", 0.61, 5),
        event_line("put", 0.62, 6, p=5, name="ever"),
        event_line("started", 0.62, 6),
        event_line(
            "waiting", 0.7, 5, on=[6], at="app.py:50 in task", text="is running, awaits ever#6"
        ),
        live=True,
    )


@tool
async def look_up(word: str) -> str:
    """Look a word up."""
    raise ToolError(f"no entry for {word}")


async def record_agent(file: Path) -> None:
    """Record a real run of an agent, with a tool that fails and a model with a price."""
    call = ToolCall(id="1", name="look_up", arguments={"word": "anabranch"})
    spent = Usage(input_tokens=100, output_tokens=10)
    backend = ScriptedBackend(
        Message(role="assistant", tool_calls=[call], usage=spent),
        Message(role="assistant", content="A branch that comes back.", usage=spent),
    )
    agent = Agent(backend, name="sage", tools=[look_up])
    prices = {"scripted": Price(1.0, 10.0)}
    async with Commander() as commander, record(commander, file, content=True, prices=prices):
        await agent("What is an anabranch?")


# --- the page


class RecordingPage:
    """The browser page that a module's tests share, and its errors."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.wrong: list[str] = []
        page.on("request", self._note)
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda said: self.wrong.append(said.text))

    def _note(self, request: Any) -> None:
        if not request.url.startswith("file:"):
            self.wrong.append(f"asked for {request.url}")


SELECTED = '[role=treeitem][aria-selected="true"]'


def visible_rows(page: Any) -> list[str]:
    """Return the labels of the visible rows from top to bottom, as a screen reader reads them."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    found: list[tuple[float, str]] = page.evaluate(
        """() => [...document.querySelectorAll("[role=treeitem]")]
            .map(row => [row.getBoundingClientRect().top, row.getAttribute("aria-label")])
"""
    )
    assert found == sorted(found, key=lambda row: row[0]), "elements stand in another order"
    return [said for _, said in found]


def selected_row(page: Any) -> str:
    """Return the label of the selected row, which must also have the focus."""
    found: str = page.evaluate("() => document.activeElement.getAttribute('aria-label')")
    assert page.locator(SELECTED).get_attribute("aria-label") == found
    return found


def table_cells(page: Any, caption: str) -> dict[str, list[str]]:
    """Return the rows of a table by their first cells."""
    table = page.locator("table", has=page.locator("caption", has_text=caption))
    found: list[list[str]] = table.locator("tbody tr:not(.inner):not(.bars)").evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText))"
    )
    return {head: rest for head, *rest in found}


# Returns the contrast of each pair of colours.
CONTRASTS = """pairs => {
    const probe = document.body.appendChild(document.createElement("span"));
    const light = name => {
        probe.style.color = `var(--${name})`;
        const colour = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3);
        const parts = colour.map(part => {
            const share = part / 255;
            return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
        });
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
    };
    return pairs.map(([text, under]) => {
        const [low, high] = [light(text), light(under)].sort((a, b) => a - b);
        return [text, under, (high + 0.05) / (low + 0.05)];
    });
}"""
