"""Lines from any kind of standard input."""

import asyncio
import io
import sys
import threading
from random import Random

import pytest
from support.seeds import example_count, seeds

from anabranch.jobs import read_line


class Input:
    """Has a `readline` and no other method of a file."""

    def __init__(self, outcome: object) -> None:
        self.outcome = outcome

    def readline(self) -> object:
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


def closed() -> io.StringIO:
    stdin = io.StringIO("never read")
    stdin.close()
    return stdin


@pytest.mark.parametrize(
    ("stdin", "line"),
    [
        (io.StringIO("a line\nanother"), "a line"),
        (io.StringIO("the last"), "the last"),
        (io.StringIO("\nanother"), ""),
        (io.StringIO(), None),
        (closed(), None),
        (None, None),
        (Input("a line\n"), "a line"),
    ],
)
async def test_a_line_or_the_end_of_the_input(
    monkeypatch: pytest.MonkeyPatch, stdin: object, line: str | None
) -> None:
    """Missing or closed input counts as ended."""
    monkeypatch.setattr(sys, "stdin", stdin)
    async with asyncio.timeout(5):
        assert await read_line() == line


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text"), ValueError),
        (OSError("gone"), OSError),
        (EOFError(), EOFError),
        (AttributeError("fileno"), AttributeError),
        (StopIteration(), RuntimeError),
        (SystemError("odd"), SystemError),
    ],
)
async def test_what_the_input_raises_is_raised_by_the_call(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException, seen: type[BaseException]
) -> None:
    """For any exception; no caller waits for ever."""
    monkeypatch.setattr(sys, "stdin", Input(raised))
    async with asyncio.timeout(5):
        with pytest.raises(seen):
            await read_line()


class Slow:
    """Gives each line when the test allows it."""

    def __init__(self, *lines: str) -> None:
        self.lines = list(lines)
        self.allowed = threading.Semaphore(0)

    def readline(self) -> str:
        assert self.allowed.acquire(timeout=20)
        return self.lines.pop(0)


@pytest.mark.parametrize("seed", seeds(example_count(20, 200)))
async def test_no_line_is_lost_when_calls_are_cancelled(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """The next call gets the line, before or after it was read."""
    draw = Random(seed)
    expected = [f"line {each}" for each in range(draw.randint(1, 6))]
    stdin = Slow(*(f"{line}\n" for line in expected))
    monkeypatch.setattr(sys, "stdin", stdin)
    found: list[str | None] = []
    async with asyncio.timeout(20):
        for _ in expected:
            for _ in range(draw.randint(0, 2)):
                task = asyncio.create_task(read_line())
                for _ in range(draw.randint(0, 3)):
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            if draw.random() < 0.5:
                stdin.allowed.release()
                found.append(await read_line())
            else:
                task = asyncio.create_task(read_line())
                await asyncio.sleep(0)
                stdin.allowed.release()
                found.append(await task)
    assert found == expected


async def test_another_standard_input_does_not_get_the_lines_of_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = Slow("old\n")
    monkeypatch.setattr(sys, "stdin", first)
    task = asyncio.create_task(read_line())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    first.allowed.release()
    monkeypatch.setattr(sys, "stdin", io.StringIO("new\n"))
    async with asyncio.timeout(20):
        assert await read_line() == "new"
