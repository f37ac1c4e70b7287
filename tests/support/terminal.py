"""A terminal for tests that run `anabranch chat` and read its screen.

The program is a fork with the imports done, on a real pseudo-terminal. `pyte` renders its output.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import struct
import termios
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from fcntl import ioctl
from pathlib import Path

import pyte

from support.chat_command import environment
from support.forked_python import start_forked
from support.scripted_server import Reply, ScriptedServer
from support.waiting import wait_until

__all__ = ["CTRL_C", "CTRL_D", "ESC", "TAB", "Terminal", "open_chat", "open_terminal"]

PROMPT = "> "
TOOK = re.compile(r"^(?:\d+ min )?\d+(?:\.\d+)? s(?:,.*)?$", re.MULTILINE)
CTRL_C, CTRL_D, ESC, TAB = "\x03", "\x04", "\x1b", "\t"


class Terminal:
    """A terminal as a person uses it: `press` keys, and wait until it `shows` a text.

    `lines` are the scrollback and the screen; `sent` is the program's unprocessed output.
    """

    def __init__(self, master: int, status: int, columns: int, rows: int) -> None:
        self.sent = ""
        self.status: int | None = None
        self._master = master
        self._pipe = status
        self._told = b""
        self._screen = pyte.HistoryScreen(columns, rows, history=100_000)
        self._stream = pyte.ByteStream(self._screen)
        self._is_open = True
        os.set_blocking(master, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(master, self._read)
        loop.add_reader(status, self._read_status)

    def _read(self) -> None:
        try:
            data = os.read(self._master, 1 << 16)
        except BlockingIOError:
            return
        except OSError:  # the program has ended
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._master)
            self._is_open = False
        self.sent += data.decode("utf-8", "replace")
        self._stream.feed(data)

    def _read_status(self) -> None:
        data = os.read(self._pipe, 100)
        self._told += data
        if not data:
            asyncio.get_running_loop().remove_reader(self._pipe)
            self.status = int(self._told.split()[1])

    # --- the screen

    @property
    def screen(self) -> list[str]:
        """The lines of the screen."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """The lines of the scrollback and of the screen, without empty ones at the end."""
        columns = range(self._screen.columns)
        above = ["".join(line[x].data for x in columns) for line in self._screen.history.top]
        return "\n".join([*(line.rstrip() for line in above), *self.screen]).rstrip().split("\n")

    @property
    def text(self) -> str:
        """The scrollback and the screen as one text."""
        return "\n".join(self.lines)

    @property
    def line(self) -> str | None:
        """The text after the prompt in the current line; None without a prompt there."""
        row = self.screen[self._screen.cursor.y]
        return row[len(PROMPT) :] if row.startswith(PROMPT.rstrip()) else None

    # --- input

    async def press(self, keys: str) -> None:
        """Press keys, as fast as the terminal takes them."""
        data = keys.encode("utf-8", "surrogateescape")
        while data:
            with suppress(BlockingIOError):
                data = data[os.write(self._master, data) :]
            await asyncio.sleep(0)

    async def say(self, text: str) -> None:
        """Write a line and press Enter."""
        await self.press(f"{text}\r")

    async def wait(self, condition: Callable[[], object], patience: float = 30) -> None:
        """Wait until the shown text makes `condition` true."""
        try:
            await wait_until(condition, patience)
        except TimeoutError:
            raise AssertionError(f"it did not come to be; there stands:\n{self.text}") from None

    async def shows(self, *texts: str) -> None:
        """Wait until the screen or the scrollback contains all texts."""
        await self.wait(lambda: all(each in self.text for each in texts))

    async def writes(self, line: str) -> None:
        """Wait until the current line is `line`."""
        await self.wait(lambda: self.line == line)

    async def over(self, turns: int = 1, patience: float = 30) -> None:
        """Wait until `turns` turns are over; the chat prints a line with the time of each."""
        await self.wait(lambda: len(TOOK.findall(self.text)) >= turns, patience)

    def resize(self, columns: int, rows: int) -> None:
        """Change the size of the window."""
        self._screen.resize(rows, columns)
        ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    async def process(self) -> int:
        """Return the id of the program's process."""
        await self.wait(lambda: b"\n" in self._told)
        return int(self._told.split()[0])

    async def kill(self, number: int) -> None:
        """Send the program a signal."""
        os.kill(await self.process(), number)

    async def ended(self) -> int:
        """Wait for the program's end; return its status."""
        await self.wait(lambda: self.status is not None)
        await self.wait(lambda: not self._is_open)
        assert self.status is not None
        return self.status

    async def leave(self) -> None:
        """Leave the chat, and check that it exits with status 0."""
        await self.press("/exit\r")
        assert await self.ended() == 0

    async def close(self) -> None:
        """Close the terminal; the program gets SIGHUP, and SIGKILL after 10 seconds."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._master)
        os.close(self._master)
        try:
            if self.status is None:
                with suppress(TimeoutError):
                    await wait_until(lambda: self.status is not None, 10)
            if self.status is None:
                with suppress(ProcessLookupError):
                    os.kill(int(self._told.split()[0]), signal.SIGKILL)
                await wait_until(lambda: self.status is not None, 30)
        finally:
            loop.remove_reader(self._pipe)
            os.close(self._pipe)


@asynccontextmanager
async def open_terminal(
    *options: str,
    folder: Path,
    columns: int = 100,
    rows: int = 30,
    term: str = "xterm-256color",
    **env: str,
) -> AsyncGenerator[Terminal]:
    """Start `anabranch chat` in a new terminal, with all its data in `folder`."""
    master, slave = os.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kept = {f"XDG_{kind}_HOME": str(folder / ".kept") for kind in ("DATA", "STATE", "CONFIG")}
    status = start_forked(
        ["-m", "anabranch", "chat", *options],
        folder,
        environment(**{**kept, "TERM": term, **env}),
        [slave, os.dup(slave), os.dup(slave)],
        terminal=True,
    )
    terminal = Terminal(master, status, columns, rows)
    try:
        yield terminal
    finally:
        await terminal.close()


@asynccontextmanager
async def open_chat(
    folder: Path, *replies: Reply, options: tuple[str, ...] = (), **more: object
) -> AsyncGenerator[tuple[Terminal, ScriptedServer]]:
    """Chat with a scripted server in a terminal, from the first prompt on."""
    async with ScriptedServer(*replies) as server:
        model = ("--model", server.url, "--name", "m")
        async with open_terminal(*model, *options, folder=folder, **more) as terminal:  # type: ignore[arg-type]
            await terminal.shows("/help lists the commands")
            await terminal.wait(lambda: terminal.line is not None)
            yield terminal, server
