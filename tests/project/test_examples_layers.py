"""The examples with agents as layers, each on the intended path and on the small local model."""

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from support.examples import load_example, run_example
from support.leaks import child_processes
from support.scripted_server import ScriptedServer, text

from anabranch import Backend, connect
from anabranch.testing import ScriptedBackend
from anabranch.tools import SearchEngine, SearchHit, WebBrowser


def local(max_tokens: int) -> Backend:
    return connect("local", max_tokens=max_tokens)


def code(*lines: str) -> str:
    return "\n".join(["I compute.", "```python", *lines, "```", "This prints 17."])


async def hosted(
    monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str, replies: Sequence[str]
) -> list[list[dict[str, Any]]]:
    """Run an example as a program with a scripted hosted model; return the requests."""
    async with asyncio.timeout(120), ScriptedServer(*map(text, replies)) as server:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        await asyncio.to_thread(
            run_example, monkeypatch, name, "--model", "openai:tiny", *arguments
        )
    return [request.body["messages"] for request in server.requests]


async def test_the_one_word_agent_answers_in_one_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The second request contains the first question."""
    asked = await hosted(monkeypatch, "one_word_agent", replies=["Paris", "Seine"])

    assert capsys.readouterr().out == (
        "user: What is the capital of France?\nsage: Paris\n"
        "user: Which river flows through it?\nsage: Seine\n"
        "(4 messages in its memory)\n"
    )
    assert [message["content"] for message in asked[1]] == [
        "You answer in one word, and say nothing else.",
        "What is the capital of France?",
        "Paris",
        "Which river flows through it?",
    ]


@pytest.mark.usefixtures("small_model")
def test_the_one_word_agent_runs_on_the_local_model(capsys: pytest.CaptureFixture[str]):
    """The answer contains the right word, and the memory has both messages."""
    agent = load_example("one_word_agent").ask(local(12), ["What is the capital of France?"])
    assert "Paris" in capsys.readouterr().out
    assert len(agent.memory.messages()) == 2


async def test_the_few_shot_agent_is_shown_examples(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """They are between the prompt and the question. `--plain` leaves them out."""
    replies = ["river=Rhine; length_km=1230"]
    (asked,) = await hosted(monkeypatch, "few_shot", replies=replies)

    assert capsys.readouterr().out == "river=Rhine; length_km=1230\n"
    assert [message["role"] for message in asked] == ["system", *["user", "assistant"] * 3, "user"]
    assert asked[4]["content"] == "river=Amazon; length_km=6400"
    (plain,) = await hosted(monkeypatch, "few_shot", "--plain", "The Po.", replies=replies)
    assert [message["content"] for message in plain] == ["You write facts down.", "The Po."]


@pytest.mark.usefixtures("small_model")
def test_the_few_shot_agent_does_its_task_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The small model follows the examples."""
    run_example(monkeypatch, "few_shot")
    assert capsys.readouterr().out == "river=Rhine; length_km=1230\n"


@pytest.mark.parametrize(
    ("reply", "shown"),
    [
        (
            code("print(1 + 16)"),
            "tool_type: 'python'\nthought: 'I compute.\\n'\n"
            "action: {'name': 'python', 'parameters': {'code': 'print(1 + 16)'}}\n"
            "status: 'valid'\nerror: None\n",
        ),
        (
            code("print(1 +"),
            "tool_type: 'python'\nthought: 'I compute.\\n'\n"
            "action: {'name': 'python', 'parameters': {'code': 'print(1 +'}}\n"
            "status: 'invalid'\nerror: \"'(' was never closed (<unknown>, line 1)\"\n",
        ),
        (
            "I cannot.",
            "tool_type: None\nthought: 'I cannot.'\naction: None\nstatus: 'none'\nerror: None\n",
        ),
    ],
)
async def test_the_tool_parser_finds_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], reply: str, shown: str
):
    """It also checks that the code is usable. The text after the code is dropped."""
    ((system, _),) = await hosted(monkeypatch, "tool_parser", replies=[reply])

    assert capsys.readouterr().out == shown
    assert "and end your message there:\n```python\n...\n```" in system["content"]


@pytest.mark.usefixtures("small_model")
def test_the_tool_parser_finds_code_of_the_local_model():
    """The model follows the format. Truncated code is not usable."""
    action = load_example("tool_parser").write(
        local(12), "Write a Python program that prints 1 to 5."
    )
    assert (action["tool_type"], action["status"]) == ("python", "invalid")


async def test_the_coder_computes_the_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Its first program fails, the second one works, and the answer contains the result."""
    broken = code("b = (1, -3)", "print([2 / b * x for x in b])")
    mended = code("norm = sum(x * x for x in b)", "print([2 * x / norm for x in b])")
    asked = await hosted(
        monkeypatch, "coder", replies=[broken, mended, "The projection is (1/5, -3/5)."]
    )

    assert "TypeError: unsupported operand" in asked[1][-1]["content"]
    assert asked[2][-2]["content"].endswith("for x in b])\n```")  # no invented result
    assert asked[2][-1]["content"] == "[0.2, -0.6]"
    shown = capsys.readouterr().out
    assert "--- python\n[0.2, -0.6]\n--- coder\nThe projection" in shown
    assert shown.endswith("--- the answer\nThe projection is (1/5, -3/5).\n")


async def test_a_coder_that_never_comes_to_an_end_says_so():
    """Its kernel has ended."""
    before = child_processes()
    async with asyncio.timeout(120):
        answer = await load_example("coder").solve(
            ScriptedBackend(otherwise=code("print(17)")), "?"
        )
    assert answer.content == "No answer after 3 programs; the last one gave: 17"
    assert child_processes() == before


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
async def test_the_coder_runs_on_the_local_model():
    """Truncated code does not run. In every case the example ends."""
    async with asyncio.timeout(300):
        answer = await load_example("coder").solve(
            local(16), "Write Python code that prints 1 to 5."
        )
    assert answer.sender in {"coder", "Coder"}


def bloggers(request: Any) -> str:
    """Play all parts: each version names the topic and its number."""
    critic = "criticise" in request.messages[0].content
    said = [message.content for message in request.messages]
    if critic:
        return f"More depth for {said[1].rpartition(' ')[2]}"
    topic = said[1].partition("news in ")[2].partition(",")[0]
    return f"Version {len(said) // 2} of {topic}"


async def test_the_bloggers_refine_five_topics_at_once(capsys: pytest.CaptureFixture[str]):
    """Each post is rewritten after a critique. The topics do not see each other."""
    example, backend = load_example("blogging_agents"), ScriptedBackend(otherwise=bloggers, seed=1)
    await example.publish(backend, example.TOPICS, 2)

    shown = "".join(f"\n--- {topic}\n\nVersion 3 of {topic}\n" for topic in example.TOPICS)
    assert capsys.readouterr().out.startswith(f"{shown}\n(scripted has written ")
    assert len(backend.requests) == 5 * 5
    first = {request.messages[1].content for request in backend.requests[:5]}
    assert first == {example.TASK.format(topic=topic) for topic in example.TOPICS}
    said = [[m.content for m in request.messages[1:]] for request in backend.requests]
    assert ["Criticise this post:\n\nVersion 1 of AI"] in said
    assert [example.TASK.format(topic="AI"), "Version 1 of AI", "More depth for AI"] in said


async def test_the_bloggers_run_on_a_hosted_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The program prints the cost."""
    replies = ["A post.", "Longer!", "A longer post."]
    asked = await hosted(monkeypatch, "blogging_agents", "rivers", replies=replies)

    assert len(asked) == 3
    assert capsys.readouterr().out == (
        "\n--- rivers\n\nA longer post.\n\n(tiny has written 21 tokens)\n"
    )


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_bloggers_run_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Two topics are enough here: six texts."""
    run_example(monkeypatch, "blogging_agents", "--max-tokens", "4", "rivers", "tides")
    shown = capsys.readouterr().out
    assert shown.count("\n--- ") == 2
    assert "has written 24 tokens)" in shown


class Recorded(SearchEngine):
    """A search with recorded results, and no others."""

    name = "recorded"

    async def search(self, query: str, limit: int, fetcher: object) -> list[SearchHit]:
        if query != "longest rivers of the world":
            return []
        lengths = "Nile 6650 km, Amazon 6400 km, Yangtze 6300 km, Mississippi 6275 km, Yenisei 5539"
        return [SearchHit("Rivers by length", "https://example.org/rivers", lengths)]


SEARCH = """I look it up.
```json
{"name": "web_search", "parameters": {"queries": ["longest rivers of the world"]}}
```
"""
DRAWING = """\
lengths = {{"Nile": 6650, "Amazon": 6400, "Yangtze": 6300, "Mississippi": 6275, "Yenisei": 5539}}
bars = [
    f'<rect x="0" y="{{20 * n}}" width="{{length / 20}}" height="9"><title>{{river}}</title></rect>'
    for n, (river, length) in enumerate(lengths.items())
]
with open({file!r}, "w") as file:
    file.write('<svg xmlns="http://www.w3.org/2000/svg">' + "".join(bars) + "</svg>")
print(round(sum(lengths.values()) / 5), "km on average")"""


async def test_researcher_and_charter_draw_a_chart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    """One agent searches, the other draws into the file. No process remains."""
    file, before = tmp_path / "chart.svg", child_processes()
    backend = ScriptedBackend(
        SEARCH,
        "Nile 6650, Amazon 6400, Yangtze 6300, Mississippi 6275, Yenisei 5539 km. Draw bars.",
        code(*DRAWING.format(file=str(file)).splitlines()),
        "FINAL ANSWER: the chart shows five rivers of 6233 km on average.",
    )
    example = load_example("researcher_and_charter")
    async with asyncio.timeout(120):
        answer = await example.draw(backend, WebBrowser(Recorded()), example.QUESTION, file, 3)

    assert answer.content.startswith("FINAL ANSWER")
    bars = [float(bar.attrib["width"]) for bar in ElementTree.parse(file).getroot()]
    assert bars == [332.5, 320, 315, 313.75, 276.95]
    found, heard, drawn = (str(r.messages[-1].content) for r in backend.requests[1:])
    assert "https://example.org/rivers\n   Nile 6650 km, Amazon" in found
    assert heard.startswith("Nile 6650, Amazon 6400")
    assert backend.requests[2].messages[1].content == example.QUESTION
    assert drawn == "6233 km on average"
    assert "--- tools\n6233 km on average\n" in capsys.readouterr().out
    assert child_processes() == before


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
async def test_researcher_and_charter_run_on_the_local_model(tmp_path: Path):
    """Until the limit of rounds, without a chart."""
    file = tmp_path / "chart.svg"
    example = load_example("researcher_and_charter")
    async with asyncio.timeout(300):
        answer = await example.draw(local(12), WebBrowser(Recorded()), "Draw the Nile.", file, 1)
    assert answer.sender in {"researcher", "charter"}
    assert not os.listdir(tmp_path)


async def test_researcher_and_charter_run_on_a_hosted_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    """It prints their messages, and whether there is a chart. It never overwrites a file."""
    file = tmp_path / "chart.svg"
    program = code(f"open({str(file)!r}, 'w').close()")
    replies = ["The Nile: 6650 km.", program, "It is drawn.", "FINAL ANSWER: see the file."]
    arguments = ("--file", str(file), "--rounds", "1")
    await hosted(monkeypatch, "researcher_and_charter", *arguments, replies=replies)

    shown = capsys.readouterr().out
    assert shown.startswith("--- researcher\nThe Nile: 6650 km.\n--- charter\nI compute.\n")
    assert shown.endswith(f"\n(the chart is in {file})\n")
    with pytest.raises(SystemExit):
        run_example(monkeypatch, "researcher_and_charter", "--file", str(file))
