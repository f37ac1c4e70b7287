"""The live prompt: keys, questions, and output above it."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from prompt_toolkit.completion import WordCompleter
from prompt_toolkit.data_structures import Size
from prompt_toolkit.input import PipeInput, create_pipe_input
from prompt_toolkit.output.vt100 import Vt100_Output
from support.waiting import wait_until

from anabranch.cli import _keyboard
from anabranch.cli.chat._prompt import LivePrompt


class Seen:
    """Collects the output to a terminal."""

    encoding = "utf-8"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None:
        pass

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 1


class Heard:
    """Records the person's actions."""

    def __init__(self) -> None:
        self.said_: list[tuple[str, str]] = []
        self.waiting: list[str] = []
        self.lines: list[str] = []
        self.looks = 0  # how often it was asked what stands above

    def take_message(self, text: str) -> None:
        self.said_.append(("said", text))

    def queue_message(self, text: str) -> None:
        self.said_.append(("queued", text))
        self.waiting.append(text)

    def take_back(self) -> str | None:
        return self.waiting.pop() if self.waiting else None

    def interrupt(self) -> None:
        self.said_.append(("interrupt", ""))

    def leave(self) -> None:
        self.said_.append(("leave", ""))

    def lines_above(self, columns: int, rows: int) -> list[str]:
        self.looks += 1
        return self.lines


class Stage:
    """A live prompt with a simulated keyboard and screen."""

    def __init__(self, keys: PipeInput, seen: Seen, heard: Heard, prompt: LivePrompt) -> None:
        self.keys, self.seen, self.heard, self.prompt = keys, seen, heard, prompt

    @property
    def line(self) -> str:
        return self.prompt._session.default_buffer.text  # type: ignore[attr-defined]

    async def type(self, keys: str, line: str) -> None:
        """Press keys, and wait until the input line has the expected text."""
        self.keys.send_text(keys)
        await wait_until(lambda: self.line == line, 5)


@asynccontextmanager
async def stage(*, words: list[str] | None = None) -> AsyncGenerator[Stage]:
    heard, seen = Heard(), Seen()
    output = Vt100_Output(seen, lambda: Size(rows=24, columns=80), term="xterm")  # type: ignore[arg-type]
    output.enable_cpr = False
    completer = WordCompleter(words, sentence=True) if words else None
    with create_pipe_input() as keys:
        prompt = LivePrompt(heard, completer, input=keys, output=output)
        running = asyncio.create_task(prompt.run())
        await wait_until(lambda: ">" in seen.text, 5)
        try:
            yield Stage(keys, seen, heard, prompt)
        finally:
            prompt.close()
            await running


async def test_enter_says_and_tab_queues() -> None:
    """Enter sends the line and Tab queues it; an empty line does nothing."""
    async with stage() as on:
        on.keys.send_text("one\rtwo\t\r\t  \r")
        await wait_until(lambda: len(on.heard.said_) == 2, 5)
        assert on.heard.said_ == [("said", "one"), ("queued", "two")]


async def test_escape_takes_the_newest_back_above_what_is_being_written() -> None:
    """The queued text comes back into the line before the typed text."""
    async with stage() as on:
        on.keys.send_text("first\tsecond\t")
        await wait_until(lambda: len(on.heard.waiting) == 2, 5)
        await on.type("third", "third")
        await on.type("\x1b", "second\nthird")
        assert on.heard.waiting == ["first"]


async def test_alt_enter_and_a_backslash_begin_another_line() -> None:
    """Both start a new line of the message."""
    async with stage() as on:
        on.keys.send_text("a\x1b\rb\\\rc\r")
        await wait_until(lambda: on.heard.said_, 5)
        assert on.heard.said_ == [("said", "a\nb\nc")]


async def test_ctrl_c_empties_the_line_first() -> None:
    """Ctrl-C interrupts and Ctrl-D exits only if the line is empty."""
    async with stage() as on:
        await on.type("half", "half")
        await on.type("\x03", "")
        on.keys.send_text("\x03\x04")
        await wait_until(lambda: len(on.heard.said_) == 2, 5)
        assert on.heard.said_ == [("interrupt", ""), ("leave", "")]


async def test_tab_completes_a_command() -> None:
    """If the line begins with a slash, Tab completes it and queues nothing."""
    async with stage(words=["/help", "/model"]) as on:
        await on.type("/he", "/he")
        await on.type("\t", "/help")
        assert on.heard.said_ == []
        on.keys.send_text("\r")
        await wait_until(lambda: on.heard.said_ == [("said", "/help")], 5)


async def test_what_is_printed_stands_above_and_the_line_stays() -> None:
    """S19: output of the program and its threads does not change the input line."""
    async with stage() as on:
        await on.type("half a mess", "half a mess")
        printed = [f"line {number}" for number in range(20)]
        for number, text in enumerate(printed):
            if number % 2:
                threading.Thread(target=on.prompt.print_threadsafe, args=(text,)).start()
            else:
                on.prompt.print(text)
        await wait_until(lambda: all(text in on.seen.text for text in printed), 5)
        assert on.line == "half a mess"
        await on.type("age", "half a message")


async def test_what_is_printed_before_it_stands_there_is_not_lost() -> None:
    """Output from before the prompt appears, and does not delay later output."""
    seen = Seen()
    output = Vt100_Output(seen, lambda: Size(rows=24, columns=80), term="xterm")  # type: ignore[arg-type]
    with create_pipe_input() as keys:
        prompt = LivePrompt(Heard(), input=keys, output=output)
        prompt.print("early")
        running = asyncio.create_task(prompt.run())
        await wait_until(lambda: ">" in seen.text, 5)
        prompt.print("late")
        await wait_until(lambda: "late" in seen.text, 5)
        assert seen.text.index("early") < seen.text.index("late")
        prompt.close()
        await running


async def test_a_write_to_the_standard_output_stands_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Output of a tool, in pieces of any size, appears as lines above the prompt."""
    out = Seen()
    monkeypatch.setattr(sys, "stdout", out)
    async with stage() as on:
        print("it ", end="")
        print("has begun")
        await wait_until(lambda: "it has begun" in on.seen.text, 5)
        assert out.text == ""
    assert sys.stdout is out


async def test_a_question_waits_until_nobody_is_typing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's draft does not answer the question, and comes back afterwards."""
    monkeypatch.setattr(_keyboard, "STOPPED_SECONDS", 0.3)
    async with stage() as on:
        await on.type("yes, but", "yes, but")
        asking = asyncio.create_task(on.prompt.asking.ask("run it? "))
        on.keys.send_text(" f")
        await wait_until(lambda: on.line == "yes, but f", 5)
        await wait_until(lambda: "run it?" in on.seen.text and on.line == "", 5)
        on.keys.send_text("y\r")
        assert await asking == "y"
        assert on.line == "yes, but f"
        assert on.heard.said_ == []


async def test_a_burst_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer in a burst of keys is refused, and a marked paste is ignored."""
    async with stage() as on:
        asking = asyncio.create_task(on.prompt.asking.ask("run it? "))
        await wait_until(lambda: "run it?" in on.seen.text, 5)
        on.keys.send_text("y\rand more\ry\r")
        await wait_until(lambda: on.seen.text.count("type the answer alone") == 3, 5)
        on.keys.send_text("y\x1b[200~y\n\x1b[201~")
        await wait_until(lambda: on.line == "y", 5)
        loop, last = asyncio.get_running_loop(), on.prompt.asking._last_key  # type: ignore[attr-defined]
        await wait_until(lambda: loop.time() - last > _keyboard.QUIET_SECONDS, 5)
        assert not asking.done()
        on.keys.send_text("n\r")  # the rest of the burst is dropped
        assert await asking == "n"


@pytest.mark.parametrize("key", ["\x03", "\x04", "\x1b"])
async def test_a_question_may_be_left_unanswered(key: str) -> None:
    """Ctrl-C, Ctrl-D and Esc end a question without an answer; the prompt continues."""
    async with stage() as on:
        asking = asyncio.create_task(on.prompt.asking.ask("run it? "))
        await wait_until(lambda: "run it?" in on.seen.text, 5)
        on.keys.send_text(key)
        assert await asking is None
        assert on.heard.said_ == []


async def test_questions_come_one_after_the_other() -> None:
    """Each of several waiting questions gets its own answer, in order."""
    async with stage() as on:
        asking = [asyncio.create_task(on.prompt.asking.ask(f"number {n}? ")) for n in range(3)]
        for number, each in enumerate(asking):
            await wait_until(lambda number=number: f"number {number}?" in on.seen.text, 5)  # type: ignore[misc]
            on.keys.send_text(f"{number}\r")
            assert await each == str(number)


async def test_a_question_that_is_cancelled_gives_the_line_back() -> None:
    """The cancellation of a call removes its visible question and restores the draft."""
    async with stage() as on:
        await on.type("draft", "draft")
        asking = asyncio.create_task(on.prompt.asking.ask("run it? "))
        await wait_until(lambda: "run it?" in on.seen.text and on.line == "", 5)
        asking.cancel()
        await wait_until(lambda: on.line == "draft", 5)
        on.keys.send_text("\r")
        await wait_until(lambda: on.heard.said_ == [("said", "draft")], 5)


async def test_a_question_at_the_end_has_no_answer() -> None:
    """Closing the prompt ends its question without an answer."""
    async with stage() as on:
        asking = asyncio.create_task(on.prompt.asking.ask("run it? "))
        await wait_until(lambda: "run it?" in on.seen.text, 5)
        on.prompt.close()
        assert await asking is None


async def test_a_key_does_not_wait_for_what_stands_above() -> None:
    """S19: a key is drawn at once below the last lines, which are composed only after a change."""
    async with stage() as on:
        looks = on.heard.looks
        await on.type("a", "a")
        await on.type("b", "ab")
        await wait_until(lambda: "b" in on.seen.text, 5)
        assert on.heard.looks == looks
        on.heard.lines = ["changed"]
        on.prompt.touch()
        await wait_until(lambda: "changed" in on.seen.text, 5)
        assert on.heard.looks == looks + 1


async def test_nothing_is_drawn_where_nothing_has_changed() -> None:
    """A tick without a change writes nothing to the terminal."""
    async with stage() as on:
        seen, looks = on.seen.text, on.heard.looks
        on.prompt.touch(now=True)
        on.prompt.touch()
        await wait_until(lambda: on.heard.looks == looks + 2, 5)
        on.prompt.print("a line")
        await wait_until(lambda: "a line" in on.seen.text, 5)
        assert on.seen.text[len(seen) :].startswith("\x1b[?2026h")
