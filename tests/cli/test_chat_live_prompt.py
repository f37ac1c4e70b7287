"""Problems around the live prompt: captured streams, terminal modes, bursts of keys, faults."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import termios
import threading
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.progress import Progress as Bar
from support.waiting import wait_until

from anabranch import AnabranchError, Commander, Message, handler
from anabranch.cli._keyboard import TerminalMode
from anabranch.cli._streams import MAX_CAPTURED_CHARS, CapturedStream
from anabranch.cli.chat import _markdown_view
from anabranch.cli.chat._live_screen import LiveScreen
from anabranch.cli.chat._loop import ChatLoop
from anabranch.cli.chat._partner import Partner
from anabranch.cli.chat._status import Status
from tests.cli.test_chat_prompt import Heard, stage


class Printed:
    """Collects the lines printed above the prompt."""

    def __init__(self) -> None:
        self.text = ""
        self.changes = 0
        stream: Any = SimpleNamespace(fileno=lambda: 1, encoding="utf-8")
        self.stream = CapturedStream(stream, self.put, self.change)

    def put(self, text: str) -> None:
        self.text += text

    def change(self) -> None:
        self.changes += 1


def test_a_line_that_is_written_anew_is_printed_once() -> None:
    """S22: a progress bar is at the prompt, and only its last state reaches the scrollback."""
    seen = Printed()
    for percent in range(0, 100, 10):
        seen.stream.write(f"\r\x1b[32m{percent} %\x1b[0m")
        seen.stream.flush()
        assert (seen.text, seen.stream.unfinished) == ("", f"{percent} %")
    assert seen.changes == 10
    seen.stream.write("\n")
    assert seen.text == "\x1b[32m90 %\x1b[0m\x1b[0m\n"
    assert seen.stream.unfinished == ""


def test_a_bar_that_never_ends_its_line_stays_one_line() -> None:
    """However long it gets, no part of the line is printed before its end."""
    seen = Printed()
    for step in range(5_000):
        seen.stream.write(f"\r\x1b[2Kstep {step} of many")
        seen.stream.flush()
    assert (seen.text, seen.stream.unfinished) == ("", "step 4999 of many")


def test_what_a_tool_prints_has_colours_and_moves_nothing() -> None:
    """S19: of the sequences that a tool prints, only colours reach the terminal."""
    seen = Printed()
    seen.stream.write("a\x1b[2J\x1b[Hb\x1b]0;title\x07\x1b[31mred\x00\r\nnext\n")
    sequences = [
        each for each in seen.text.split("\x1b")[1:] if not each.startswith(("[31m", "[0m"))
    ]
    assert not sequences
    assert not {"\x07", "\x00"} & {*seen.text}
    assert seen.text.endswith("next\n")


def test_a_bar_of_rich_is_a_line_at_the_prompt() -> None:
    """Its sequences, which erase lines and hide the cursor, are dropped, not shown as text."""
    seen = Printed()
    console = Console(file=cast("Any", seen.stream), force_terminal=True, width=60)
    with Bar(console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task("fetching", total=10)
        for done in range(10):
            bar.update(task, completed=done, refresh=True)
            assert seen.stream.unfinished.startswith("fetching")
            assert f" {done * 10}% " in seen.stream.unfinished
            assert seen.text == ""
    assert seen.stream.unfinished == ""
    assert "\N{REPLACEMENT CHARACTER}" not in seen.text
    assert seen.text.count("fetching") == 1


@given(st.lists(st.sampled_from(["ab", "\r", "\x1b[2K", "\x1b[K", "\x1b[?25l", "\x1b[1A"])))
def test_a_line_shows_what_was_written_since_it_was_erased(pieces: list[str]) -> None:
    """The division of sequences into writes does not matter."""
    seen = Printed()
    text = "".join(pieces)
    for character in text:
        seen.stream.write(character)
    states = re.sub(r"\x1b\[(K|\?25l|1A)", "", text).replace("\x1b[2K", "\r").split("\r")
    expected = [each for each in states if each][-1:]
    assert seen.stream.unfinished == "".join(expected)
    assert seen.stream.take() == "".join(f"{each}\n" for each in expected)
    assert seen.text == ""


def test_threads_that_print_lose_nothing_and_a_line_without_end_goes_out() -> None:
    """All output of several threads appears; a line that never ends is printed in pieces."""
    seen = Printed()
    threads = [
        threading.Thread(target=lambda: [seen.stream.write("x\n") for _ in range(2000)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen.text.count("x\n") == 8000
    seen.stream.write("y" * (MAX_CAPTURED_CHARS + 1))
    assert seen.text.endswith("y\n")
    seen.stream.write("and so on")
    assert seen.stream.take() == "and so on\n"
    assert seen.stream.take() == ""


def test_the_mode_of_the_terminal_is_taken_back() -> None:
    """After a program changes the terminal's mode, the prompt still gets the keys."""
    ours, theirs = pty.openpty()
    try:
        raw = termios.tcgetattr(theirs)
        raw[3] &= ~(termios.ECHO | termios.ICANON)
        termios.tcsetattr(theirs, termios.TCSANOW, raw)
        mode = TerminalMode(theirs)
        assert not mode.restore()
        sane = termios.tcgetattr(theirs)
        sane[3] |= termios.ECHO | termios.ICANON
        termios.tcsetattr(theirs, termios.TCSANOW, sane)
        assert mode.restore()
        assert not termios.tcgetattr(theirs)[3] & termios.ECHO
    finally:
        os.close(ours)
        os.close(theirs)
    assert not mode.restore()  # the terminal has disappeared


async def test_a_burst_of_letters_is_one_key() -> None:
    """An unmarked paste is processed as one key, not letter by letter."""
    async with stage() as on:
        keys: list[object] = []
        processor = on.prompt._session.app.key_processor  # type: ignore[attr-defined]
        processor.before_key_press += keys.append
        on.keys.send_text("word " * 4000 + "\r")
        await wait_until(lambda: on.heard.said_)
        assert on.heard.said_ == [("said", "word " * 4000)]
        assert len(keys) < 2000


async def test_what_is_printed_in_any_way_keeps_its_order() -> None:
    """S22: an error on a standard stream appears above later output of the chat."""
    async with stage() as on:
        on.prompt.print_threadsafe("an error")
        on.prompt.print("nothing is lost")
        await wait_until(lambda: "nothing is lost" in on.seen.text)
        assert on.seen.text.index("an error") < on.seen.text.index("nothing is lost")


async def test_it_is_told_that_a_question_waits_for_the_line() -> None:
    """Text typed while a question waits does not answer it, and no hint suggests that it would."""
    async with stage() as on:
        await on.type("half", "half")
        asked = asyncio.create_task(on.prompt.asking.ask("run it? "))
        await wait_until(lambda: on.prompt.asking.is_waiting_for_pause)
        await on.type(" a message", "half a message")
        assert on.prompt.asking.is_waiting_for_pause
        await wait_until(
            lambda: on.prompt.asking.is_asked and not on.prompt.asking.is_waiting_for_pause
        )
        on.keys.send_text("y\r")
        assert await asked == "y"
        assert on.line == "half a message"


async def test_a_fault_in_what_stands_above_ends_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """S19: after a display error the prompt still works, and the error is named."""

    def fail(heard: Heard, columns: int, rows: int) -> list[str]:
        raise ZeroDivisionError("no rows")

    monkeypatch.setattr(Heard, "lines_above", fail)
    async with stage() as on:
        await on.type("still", "still")
        assert "ZeroDivisionError: no rows" in on.seen.text


def test_what_cannot_be_drawn_is_shown_as_it_was_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error in the Markdown layout, the complete text is shown without layout."""

    def fail(*_: object) -> str:
        raise RecursionError

    monkeypatch.setattr(_markdown_view, "render", fail)
    monkeypatch.setattr(_markdown_view, "tail", fail)
    screen, printed = LiveScreen(), list[str]()
    screen.prompt = prompt = SimpleNamespace(print=printed.append, columns=80, touch=lambda: None)  # type: ignore[assignment]
    assert prompt
    screen.write("**one**\n\ntwo **thr")
    assert screen._open_lines(80, 10) == ["two **thr"]  # type: ignore[attr-defined]
    screen.ended()
    assert "".join(printed).split() == ["**one**", "two", "**thr"]


class Deaf(Partner):
    """A partner that answers, and fails when it is steered."""

    name = "deaf"

    def __init__(self) -> None:
        self.asked: list[str] = []

    @handler
    async def answer(self, node: Any, said: Message | None, view: Any) -> None:  # type: ignore[override]
        self.asked.append("" if said is None else said.content or "")
        if len(self.asked) == 1:
            raise AnabranchError("not now")

    def steer(self, said: Message) -> bool:
        raise ZeroDivisionError("no ears")

    def messages(self) -> Sequence[Message]:
        return ()


class Faulty(LiveScreen):
    """A screen that fails to show the end of each answer."""

    def ended(self) -> None:
        raise ZeroDivisionError("no end")


async def test_the_chat_goes_on_where_showing_fails(capsys: pytest.CaptureFixture[str]) -> None:
    """No queued or steering message is lost by an error of the screen or the partner."""
    partner = Deaf()
    async with Commander(policy="isolate") as commander:
        home: Any = None
        chat = ChatLoop(Faulty(), commander, home, Status())
        chat.partner = partner
        chat.queue_message("one")
        chat.queue_message("two")
        talking = asyncio.create_task(chat._converse())  # type: ignore[attr-defined]
        await wait_until(lambda: len(partner.asked) == 2)
        await commander.call_handler(chat._steer("three"))  # type: ignore[attr-defined]
        await wait_until(lambda: len(partner.asked) == 3)
        chat.leave()
        assert await talking == 0
    assert partner.asked == ["one", "two", "three"]
    assert "no ears" in capsys.readouterr().err
