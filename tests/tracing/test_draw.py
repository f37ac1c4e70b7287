"""A trace as lines in a terminal: shown nodes, folded nodes and sums."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import unicodedata
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from anabranch import Commander, Node, handler
from anabranch.backends import Limits
from anabranch.cli._display import CLEAR_BELOW, DisplayThread, LiveRegion, TreeDisplay
from anabranch.cli._tree_model import TreeSummary
from anabranch.cli._tree_view import draw
from anabranch.messages import Message, Request
from anabranch.testing import ScriptedBackend
from anabranch.tracing import Trace, live

pytestmark = pytest.mark.contract("S9")

HEAD: dict[str, Any] = {"recording": 1, "time": 1.0, "pid": 1, "host": "h", "content": True}


def trace_of(*said: dict[str, Any]) -> Trace:
    trace = Trace()
    for each in (HEAD, *said):
        trace.feed(each)
    trace.live = True
    return trace


@handler
async def ask(node: Node, model: ScriptedBackend) -> None:
    await model.complete(Request([Message(role="user", content="what?")]))


def put(number: int, parent: int = 0, name: str = "Leaf", at: float = 0.0) -> dict[str, Any]:
    return {"e": "put", "t": at, "n": number, "p": parent, "name": name}


def say(kind: str, number: int, when: float = 0.0, **more: Any) -> dict[str, Any]:
    return {"e": kind, "t": when, "n": number, **more}


def shown(trace: Trace, width: int = 100, height: int = 20, now: float = 10.0) -> list[str]:
    return [line.plain.rstrip() for line in draw(TreeSummary(trace), width, height, now)]


def test_each_node_shows_its_state() -> None:
    """As a symbol and in words: its wait, and its failure."""
    error = {"type": "ValueError", "at": "app.py:9 in task", "message": "no such leaf"}
    request = {"provider": "openai", "model": "gpt", "options": {}, "messages": 1, "tools": []}
    lines = shown(
        trace_of(
            put(1, name="Job"),
            say("started", 1),
            *(put(number, 1) for number in range(2, 10)),
            *(say("started", number) for number in range(2, 9)),
            say("completed", 2, 2.0),
            say("failed", 3, 3.0, error=error),
            say("cancelled", 4, 4.0, reason="enough"),
            say("request", 5, 6.0, q=1, **request),
            say("request", 6, 6.0, q=2, **request),
            say("first_chunk", 6, 7.0, q=2),
            say("waiting", 7, 5.0, at="app.py:3 in task", text="is running, stands at app.py:3"),
            say("waiting", 8, 5.0, on=[7], text="is running, awaits Leaf#7"),
            say("waiting", 9, 5.0, text="is pending, it waits for one of 4 slots"),
        )
    )
    rows = [" ".join(line.split()) for line in lines]
    assert rows[1] == "● Job#1 10.0 s waits for Leaf#5, Leaf#6 and 3 more"
    assert rows[2] == "├ ✓ Leaf#2 2.00 s completed"
    assert rows[3] == "├ ✗ Leaf#3 3.00 s failed: ValueError: no such leaf (app.py:9 in task)"
    assert rows[4] == "├ ⊘ Leaf#4 4.00 s cancelled: enough"
    assert rows[5] == "├ ● Leaf#5 10.0 s waits for gpt's first token, 4.00 s"
    assert rows[6] == "├ ● Leaf#6 10.0 s reads gpt, 4.00 s"
    assert rows[7] == "├ ● Leaf#7 10.0 s running at app.py:3 in task"
    assert rows[8] == "├ ● Leaf#8 10.0 s waits for Leaf#7"
    assert rows[9] == "└ ○ Leaf#9 10.0 s pending, it waits for one of 4 slots"
    assert rows[10] == (
        "10.0 s · 4 running · 1 waiting · 1 pending · 1 completed · 1 failed · 1 cancelled"
    )


async def test_a_request_that_waits_for_limits_is_shown() -> None:
    """It is not sent yet, so the node does not wait for a model."""
    limits = Limits(concurrency=1)
    model = ScriptedBackend(otherwise="yes", model="gpt", delay=60)

    async def told(commander: Commander) -> None:
        async for event in commander.events(["waiting"]):
            if "_turn.py" in event.data.at:
                return

    async with Commander(limits=limits) as commander:
        seen = live(commander)
        listening = asyncio.create_task(told(commander))
        await asyncio.sleep(0)
        nodes = [commander.call_handler(ask(model)) for _ in range(2)]
        await listening
        seen.flush()
        first, second = shown(seen.trace())[1:3]
        for node in nodes:
            node.cancel()
    assert "waits for gpt's first token" in first
    assert "waits for its turn in the limits of gpt" in second


def test_tokens_and_money_are_summed_up_the_tree() -> None:
    """In columns that appear only if they have values."""
    used = {"gpt": {"input_tokens": 12_345, "output_tokens": 600}}
    lines = shown(
        trace_of(
            put(1, name="Job"),
            put(2, 1) | {"agent": "writer"},
            {
                "e": "price",
                "t": 1.0,
                "model": "gpt",
                "input": 1.0,
                "output": 10.0,
                "cached_input": 1.0,
            },
            say("charged", 2, 1.0, usage=used),
        )
    )
    assert lines[0].split() == ["time", "in", "out", "cost"]
    assert lines[1].split()[-5:-1] == ["s", "12.3k", "600", "0.0183"]
    assert "Leaf#2 writer" in lines[2]
    assert lines[-1].endswith("12.3k in, 600 out · cost 0.0183")
    assert shown(trace_of(put(1)))[0].split() == ["time"]


def test_ten_thousand_nodes_are_folded() -> None:
    """Running and failed nodes are shown; one line has the numbers of the others."""
    said = [put(1, name="Job"), say("started", 1)]
    for number in range(2, 10_002):
        said += [put(number, 1), say("started", number)]
        if number == 5000:
            said.append(say("failed", number, 1.0, error={"type": "KeyError"}))
        elif number != 7000:
            said.append(say("completed", number, 1.0))
    lines = shown(trace_of(*said), height=8)
    assert len(lines) == 8
    assert any("● Leaf#7000" in line for line in lines)
    assert any("✗ Leaf#5000" in line and "failed: KeyError" in line for line in lines)
    (fold,) = [line for line in lines if "…" in line]
    assert fold.endswith(" Leaf completed")
    told = int(fold.split()[2].replace(",", ""))
    assert told + sum("✓ Leaf" in line for line in lines) == 9_998
    assert "9,998 completed · 1 failed" in lines[-1]


def test_many_equal_failures_leave_room_for_others() -> None:
    """Some of them are shown, and the number of the rest."""
    said = [put(1, name="Job"), say("started", 1)]
    for number in range(2, 102):
        said += [put(number, 1), say("failed", number, 1.0, error={"type": "E"})]
    said += [put(200, 1, "Other"), say("started", 200)]
    lines = shown(trace_of(*said), height=8)
    assert any("● Other#200" in line for line in lines)
    assert any(line.endswith(" Leaf failed") for line in lines)


def test_a_chain_of_many_levels_shows_its_ends() -> None:
    """And the number of levels in between."""
    said: list[dict[str, Any]] = []
    for number in range(1, 1001):
        said += [put(number, number - 1, "Round"), say("started", number)]
    lines = shown(trace_of(*said), width=80, height=20)
    assert "Round#1 " in lines[1]
    assert any("Round#1000" in line for line in lines)
    assert any("levels" in line for line in lines)
    assert max(map(cell_len, lines)) <= 80


def test_foreign_text_cannot_control_the_terminal() -> None:
    """Names, agents and errors are shown without control characters, and with masked keys."""
    key = "sk-abcdefgh12345678"
    lines = shown(
        trace_of(
            put(1, name="a\x1b[2Jb\u202e\nc") | {"agent": "w\x1b[31m"},
            say("failed", 1, error={"type": "E", "message": f"\x1b]0;x\x07 {key}", "at": "\r\x9b"}),
        ),
        width=200,
    )
    text = "".join(lines)
    assert not [sign for sign in text if unicodedata.category(sign) in ("Cc", "Cf")]
    assert key not in text


def test_a_terminal_without_unicode_gets_ascii() -> None:
    """With symbols that differ from each other too."""
    trace = trace_of(put(1), *(put(number, 1) for number in range(2, 40)))
    lines = draw(TreeSummary(trace), 80, 10, 1.0, unicode=False)
    assert all(line.plain.isascii() for line in lines)


NAMES = ("Leaf", "Branch", "日本語", "a" * 90)
KINDS = ["started", "joining", "completed", "failed", "cancelled", "charged", "called", "answered"]
MORE: dict[str, dict[str, Any]] = {
    "failed": {"error": {"type": "E"}},
    "charged": {"usage": {"m": {"input_tokens": 3, "output_tokens": 4}}},
    "called": {"tool": "t", "call": "c", "size": 1},
    "answered": {"status": "failed", "size": 1},
}


@st.composite
def histories(drawer: st.DrawFn, names: tuple[str, ...] = NAMES) -> list[dict[str, Any]]:
    """Lines of any trees, in any order that `feed` accepts."""
    said: list[dict[str, Any]] = []
    many = 0
    for _ in range(drawer(st.integers(0, 60))):
        if not many or drawer(st.booleans()):
            many += 1
            name = drawer(st.sampled_from(names))
            said.append(put(many, drawer(st.integers(0, many - 1)), name, at=len(said) / 10))
        else:
            kind = drawer(st.sampled_from(KINDS))
            number = drawer(st.integers(1, many))
            said.append(say(kind, number, len(said) / 10, **MORE.get(kind, {})))
    if drawer(st.booleans()):
        nodes = [[0, None, "Commander", "running"], [many + 1, 0, "New", "running"]]
        usage = {"m": {"input_tokens": 1000}}
        said.append({"e": "gap", "t": 9.0, "missed": 2, "nodes": nodes, "usage": usage})
    return said


def sums(survey: TreeSummary) -> Any:
    survey.update()
    return (
        +survey.counts,
        {node.number: many for node, many in survey.below.items() if many},
        {node.number: many for node, many in survey.open.items() if many},
        {node.number: +kinds for node, kinds in survey.kinds.items()},
        {node.number: (each.input, each.output) for node, each in survey.usage.items()},
        {node.number for node in survey.running},
        {node.number for node in survey.failed},
        {node.number for node in survey.other},
    )


@given(histories(), st.integers(1, 7))
def test_incremental_sums_equal_complete_sums(said: list[dict[str, Any]], step: int) -> None:
    """At any moment, also after a gap."""
    grown = trace_of()
    survey = TreeSummary(grown)
    for number, each in enumerate(said):
        grown.feed(each)
        if number % step == 0:
            survey.update()
    assert sums(survey) == sums(TreeSummary(trace_of(*said)))


@given(histories(), st.integers(20, 200), st.integers(3, 30))
def test_a_drawing_never_exceeds_its_size(said: list[dict[str, Any]], wide: int, high: int) -> None:
    """For any tree, width and height."""
    trace = trace_of(*said)
    for now in (1.0, 1e6):
        lines = shown(trace, wide, high, now)
        assert len(lines) <= high
        assert max(map(cell_len, lines)) <= wide
        assert not any("\n" in line for line in lines)


@given(histories(NAMES[:2]), st.integers(6, 30))
def test_every_node_is_shown_or_counted(said: list[dict[str, Any]], high: int) -> None:
    """Shown lines and the counts of folded lines together are all nodes."""
    trace = trace_of(*said)
    lines = shown(trace, 200, high)[1:-1]
    told = 0
    for line in lines:
        if re.search("… [0-9]", line):
            words = line.partition("… ")[2].replace(",", "").split()
            told += sum(int(word) for word in words if word.isdigit())
        elif "⋮" not in line:
            told += 1
    if not any("⋮" in line for line in lines):
        assert told == len(trace)


@pytest.mark.parametrize("width", [80, 200])
def test_long_names_are_cut(width: int) -> None:
    """So that the reason of a wait stays visible."""
    lines = shown(trace_of(put(1, name="N" * 300), say("started", 1)), width)
    assert max(map(cell_len, lines)) <= width
    assert lines[1].endswith("running")


def test_a_pipe_without_unicode_gets_ascii(monkeypatch: pytest.MonkeyPatch) -> None:
    """No symbol turns into one with another meaning; a tree without nodes prints nothing."""
    said = BytesIO()
    monkeypatch.setattr("sys.stderr", TextIOWrapper(said, "ascii"))
    drawing = TreeDisplay("run")
    drawing.show(trace_of())
    assert not said.getvalue()
    trace = trace_of(put(1), say("started", 1), say("failed", 1, 1.0, error={"type": "ValueError"}))
    drawing.show(trace)
    drawing.end(trace)
    line, *_, row, _ = said.getvalue().decode().splitlines()
    assert line.endswith("| 1 failed | Leaf#1 failed: ValueError")
    assert row.startswith("x Leaf#1 ")


class Memory(StringIO):
    """A terminal's stream."""

    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> tuple[Memory, Memory]:
    """Make the standard output and error terminals."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out, err = Memory(), Memory()
    monkeypatch.setattr("sys.stdout", out)
    monkeypatch.setattr("sys.stderr", err)
    return out, err


def test_the_last_drawing_stays_below_an_incomplete_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Although it was drawn just before."""
    monkeypatch.setattr("anabranch.cli._display.MIN_REDRAW_SECONDS", 1e9)
    _, err = make_terminal(monkeypatch)
    with LiveRegion() as screen:
        print("no end", end="")
        screen.draw([Text("the drawing")])
    assert "the drawing" in err.getvalue().rpartition(CLEAR_BELOW)[0].rpartition(CLEAR_BELOW)[2]


@pytest.mark.skipif(not hasattr(signal, "SIGCONT"), reason="nothing is suspended there")
def test_a_continued_program_draws_below_the_shells_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cursor does not move up to the place of the old drawing."""
    _, err = make_terminal(monkeypatch)
    before = signal.getsignal(signal.SIGCONT)
    with LiveRegion() as screen:
        screen.draw([Text("one"), Text("two")])
        os.kill(os.getpid(), signal.SIGCONT)
        screen.draw([Text("one"), Text("two")])
        assert "\x1b[2A" not in err.getvalue()
        screen.draw([Text("one"), Text("two")])
        assert "\x1b[2A" in err.getvalue()
    assert signal.getsignal(signal.SIGCONT) is before


def test_a_progress_bar_stays_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """For any number of updates; its cursor movements do not disturb the drawing."""
    monkeypatch.setattr("anabranch.cli._display.MIN_REDRAW_SECONDS", -1.0)
    out, err = make_terminal(monkeypatch)
    with LiveRegion() as screen:
        for step in range(400):
            print(f"\r\x1b[2K\x1b[32mstep {step:03}\x1b[0m of many", end="", flush=True)
        screen.draw([])
        assert out.getvalue() == ""
        assert re.search(r"\rstep 399 of many\S*\r\n", err.getvalue())
        assert "[32m" not in err.getvalue()


def test_a_failed_drawing_does_not_fail_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """It prints one error, and the run continues."""

    def broken() -> Trace:
        raise ValueError("nothing to see")

    with DisplayThread(TreeDisplay("run"), broken):
        pass
    assert (
        capsys.readouterr().err.count("the display of the run failed: ValueError: nothing to see")
        == 1
    )
