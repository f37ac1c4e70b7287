"""Lines from any kind of standard input."""

import asyncio
import io
import sys

import pytest

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


async def test_a_cancelled_call_is_cancelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread may end earlier or later, and never disturbs the loop."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("a line\n"))
    task = asyncio.create_task(read_line())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
