"""The plain screen: safe output of models, tools and servers, and questions."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from anabranch.cli._call_layout import CallLayout
from anabranch.cli._output import LegibleLog, print_error, show_traceback
from anabranch.cli.chat import _plain_screen
from anabranch.cli.chat._plain_screen import PlainScreen
from anabranch.messages import ToolCall
from anabranch.tools import Decision, Illustrated, ToolResult, tool
from tests.handlers.test_legible import TEXTS

STEERING = set(
    "\x00\x07\x08\x0b\x0c\r\x1b\x7f\x85\x9b\u2028\u2029\u202e\u2066\u200f\U000e0041\ud800"
)


@given(TEXTS)
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_others_say_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], said: str
) -> None:
    """No text, call, result, error, traceback or log line has control characters."""
    screen = PlainScreen([], debug=True)
    error = ValueError(said)
    screen.write(said)
    screen.note(said)
    screen.called(ToolCall(id="", name=said, arguments={said: said}))
    screen.answered(ToolResult(content=said, status="failed"))
    screen.failed(error)
    print_error(said)
    show_traceback(error)
    record = logging.LogRecord(said, 30, said, 1, "%s", (said,), (ValueError, error, None))
    shown = "".join(capsys.readouterr()) + LegibleLog().format(record)

    assert not set(shown) & STEERING


def test_what_is_said_at_length_is_cut_and_its_length_told(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A long call, result or error becomes one shortened line."""
    screen = PlainScreen([])
    screen.called(ToolCall(id="", name="send", arguments={"to": "a\tb" * 1000}))
    screen.answered(ToolResult(content="\n" * 1000 + "x " * 1000))
    print_error("e" * 9000)

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert all(len(line) < 2100 for line in lines)
    assert all(line.endswith(" characters)") for line in lines)


@tool(approve=True)
def send(to: str, copies: int = 1) -> str:
    """Send something."""
    return to


def at_terminal(
    monkeypatch: pytest.MonkeyPatch, choose: Callable[[str], Any], edit: str | None = None
) -> PlainScreen:
    """Return a plain screen on a terminal whose person answers questions with `choose`."""

    async def nobody_types() -> bool:
        return False

    async def chosen(prompt: str) -> tuple[str | None, bool]:
        answer = choose(prompt)
        return answer if isinstance(answer, tuple) else (answer, True)

    async def edited(prompt: str, draft: str = "") -> str | None:
        return edit

    screen = PlainScreen([])
    screen.interactive = True
    monkeypatch.setattr(_plain_screen, "discard_typeahead", nobody_types)
    monkeypatch.setattr(screen._editor, "choose", chosen)
    monkeypatch.setattr(screen._editor, "answer", edited)
    return screen


async def test_nothing_is_shown_while_a_question_stands_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other output during the question appears after the answer, in order."""
    shown: list[str] = []

    def choose(prompt: str) -> str:
        capsys.readouterr()
        screen.write("run send? ")
        screen.note("  to: Eve")
        screen.answered(ToolResult(content="done"))
        shown.append("".join(capsys.readouterr()))
        return "y"

    screen = at_terminal(monkeypatch, choose)
    call = ToolCall(id="", name="send", arguments={"to": "Ann"})
    both = await asyncio.gather(screen.ask(call, send), screen.ask(call, send))

    assert both == [Decision(True), Decision(True)]
    assert shown == ["", ""]
    after = capsys.readouterr()
    assert after.out == "run send? \n"
    assert after.err == "  to: Eve\n   ->  done\n"


async def test_a_long_argument_is_laid_out_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The layout runs in a thread, so that other nodes continue."""
    rows, at = CallLayout.rows, list[threading.Thread]()

    def laid_out(*given: Any) -> list[str]:
        at.append(threading.current_thread())
        return rows(*given)

    monkeypatch.setattr(CallLayout, "rows", laid_out)
    screen = at_terminal(monkeypatch, lambda prompt: "y")
    call = ToolCall(id="", name="send", arguments={"to": "\u00e9" * 2000})

    assert await screen.ask(call, send) == Decision(True)
    assert at
    assert threading.current_thread() not in at


@pytest.mark.parametrize("answer", [None, "", "n", "yy", "ye", "ok", "y\ny", "\uff59", "1", "yes!"])
async def test_all_but_a_yes_is_a_no(answer: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer, an empty answer and similar letters deny the call."""
    screen = at_terminal(monkeypatch, lambda prompt: answer)

    call = ToolCall(id="", name="send", arguments={"to": "Ann"})
    assert await screen.ask(call, send) == Decision(False)


async def test_an_answer_in_a_burst_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The question is asked again after each burst of keys."""
    answers = iter([("y", False), ("yes", False), ("n", True)])
    screen = at_terminal(monkeypatch, lambda prompt: next(answers))

    call = ToolCall(id="", name="send", arguments={"to": "Ann"})
    assert await screen.ask(call, send) == Decision(False)
    assert list(answers) == []


@pytest.mark.parametrize(
    ("before", "edited"), [({"to": "1", "copies": 1}, '{"to": "1", "copies": true}')]
)
async def test_an_edit_is_shown_and_runs_however_alike_it_is(
    before: dict[str, Any],
    edited: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An edit from 1 to True counts, although they are equal in Python."""
    answers = iter(["e", "y"])
    screen = at_terminal(monkeypatch, lambda prompt: next(answers), edited)

    decision = await screen.ask(ToolCall(id="", name="send", arguments=before), send)

    assert decision.arguments is not None
    assert decision.arguments["copies"] is True
    assert "copies: true" in capsys.readouterr().err


def test_the_terminal_says_where_figures_were_saved(capsys: pytest.CaptureFixture[str]) -> None:
    """The paths are shown even if the result is shortened."""
    said = Illustrated("x" * 9000, files=["/tmp/plots/figure-1.png", "/tmp/plots/figure-2.png"])
    PlainScreen([]).answered(ToolResult.of(ToolCall(id="", name="python", arguments={}), said))

    shown = capsys.readouterr().err.splitlines()[1:]
    assert shown == ["   saved: /tmp/plots/figure-1.png", "   saved: /tmp/plots/figure-2.png"]
