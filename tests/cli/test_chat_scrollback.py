"""The scrollback has each line once, even after changes of the window's size."""

from __future__ import annotations

import asyncio
import random
import re
import shlex
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from support.chat_command import CHAT, environment
from support.scripted_server import DONE, Played, Reply, ScriptedServer, chunk
from support.seeds import SEED, example_count
from support.waiting import wait_until

pytestmark = pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is not installed")


class Tmux:
    """A chat in a separate tmux, a terminal that wraps its lines to a new width."""

    def __init__(self, folder: Path) -> None:
        self._socket = str(folder / "tmux")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", self._socket, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def start(self, folder: Path, columns: int, *options: str) -> None:
        kept = {f"XDG_{kind}_HOME": str(folder / ".kept") for kind in ("DATA", "STATE", "CONFIG")}
        env = [f"{name}={value}" for name, value in environment(**kept).items()]
        command = shlex.join(["env", *env, *CHAT, *options])
        # Before there is a window: those that are there keep their limit.
        limit = ("start-server", ";", "set-option", "-g", "history-limit", "50000", ";")
        size = ("-x", str(columns), "-y", "30")
        self._tmux(*limit, "new-session", "-d", *size, "-c", str(folder), command)

    @property
    def text(self) -> str:
        """Return the scrollback and the screen, with wrapped lines joined."""
        return self._tmux("capture-pane", "-p", "-J", "-S", "-")

    def keys(self, *keys: str) -> None:
        self._tmux("send-keys", *keys)

    def say(self, text: str) -> None:
        self._tmux("send-keys", "-l", text)
        self._tmux("send-keys", "Enter")

    def resize(self, columns: int, rows: int = 30) -> None:
        self._tmux("resize-window", "-x", str(columns), "-y", str(rows))

    def close(self) -> None:
        with suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")

    async def wait(self, condition: Callable[[str], object]) -> str:
        """Wait until the text satisfies a condition, and return it."""
        try:
            await wait_until(lambda: condition(self.text))
        except TimeoutError:
            raise AssertionError(f"it did not come to be; there stands:\n{self.text}") from None
        return self.text


@asynccontextmanager
async def tmux(folder: Path, columns: int, *replies: Reply) -> AsyncGenerator[Tmux]:
    async with ScriptedServer(*replies) as server:
        made = Tmux(folder)
        try:
            made.start(folder, columns, "--model", server.url, "--name", "m", "-t", "none")
            await made.wait(lambda text: "/help lists" in text and "\n>" in text)
            yield made
        finally:
            made.close()


def paragraphs(first: int, count: int) -> list[str]:
    return [f"P{number:03} has *some* words of its own.\n\n" for number in range(first, count)]


def streamed(pieces: list[str]) -> tuple[Reply, list[asyncio.Event]]:
    events = [asyncio.Event() for _ in pieces]
    steps: list[Played] = []
    for go_on, piece in zip(events, pieces, strict=True):
        steps += [go_on, chunk({"content": piece})]
    return Reply([*steps, chunk(finish="stop"), DONE]), events


def shown(text: str) -> list[str]:
    return re.findall(r"P\d+(?= has)", text)


@pytest.mark.parametrize("columns", [80, 200])
async def test_the_scrollback_has_each_line_once(columns: int, tmp_path: Path) -> None:
    """S22: also after resizes, while the chat is idle and while a reply streams."""
    whole = Reply([chunk({"content": each}) for each in paragraphs(0, 40)] + [chunk(finish="stop")])
    reply, events = streamed(paragraphs(40, 60))
    async with tmux(tmp_path, columns, Reply([*whole.steps, DONE]), reply) as on:
        on.say("fill the screen")
        await on.wait(lambda text: "P039" in text)
        other = 280 - columns
        for width, rows in ((other, 30), (columns, 20), (columns, 40), (columns, 30)):
            on.resize(width, rows)
        on.say("go on")
        sizes = [(other, 30), (columns, 30), (columns, 24), (other, 36), (columns, 30)]
        for number, go_on in enumerate(events):
            on.resize(*sizes[number % len(sizes)])
            go_on.set()
            await on.wait(lambda text, number=number: f"P{40 + number:03}" in text)  # type: ignore[misc]
        text = await on.wait(lambda text: text.rstrip().endswith(">") and "P059" in text)
        assert shown(text) == [f"P{number:03}" for number in range(60)]
        assert len(re.findall(r"^> go on$", text, re.MULTILINE)) == 1


@pytest.mark.long
async def test_a_long_session_of_anything_leaves_each_line_once(tmp_path: Path) -> None:
    """S22: with random keys, queued messages, interrupts and resizes while replies stream."""
    draw = random.Random(SEED)
    turns, size = example_count(5, 60), 20
    played = [streamed(paragraphs(turn * size, (turn + 1) * size)) for turn in range(turns)]
    async with tmux(tmp_path, 100, *(reply for reply, _ in played)) as on:
        for turn, (_, events) in enumerate(played):
            on.say(f"turn {turn}")
            for number, go_on in enumerate(events):
                match draw.randrange(6):
                    case 0 | 1:
                        on.resize(draw.randint(60, 220), draw.randint(14, 50))
                    case 2:
                        on.keys("-l", "typed")
                    case 3:
                        on.keys("-l", "/tr")
                        on.keys("Escape")
                    case 4:
                        on.keys("C-u")
                    case _:
                        pass
                go_on.set()
                last = f"P{turn * size + number:03} has"
                await on.wait(lambda text, last=last: last in text)  # type: ignore[misc]
            on.keys("C-u")
            await on.wait(lambda text: text.rstrip().endswith(">"))
            on.keys("C-u")
        text = on.text
        assert shown(text) == [f"P{number:03}" for number in range(turns * size)]
