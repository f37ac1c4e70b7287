"""A fork always closes its source, and an error of the close is only logged (F6)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from support.fork import CALL_DELTAS, TIMEOUT_SECONDS, BodyNode, DeltaSource, run_body
from support.waiting import wait_until

from anabranch.commander import Commander, Node, NodeCancelled, NodeClosed
from anabranch.dispatch import Format, Hermes, fork
from anabranch.messages import Delta, Message

pytestmark = pytest.mark.contract("F6")

Fails = Callable[[], BaseException]
FAILURES: list[Fails] = [
    lambda: ValueError("no"),
    lambda: TimeoutError(),
    lambda: asyncio.CancelledError("of its own"),
    lambda: ExceptionGroup("many", [OSError("gone")]),
]


class BadlyClosed(DeltaSource):
    """A source whose `aclose` raises."""

    def __init__(self, *deltas: Delta, close: Fails, failure: Exception | None = None) -> None:
        super().__init__(*deltas, failure=failure)
        self._close = close

    async def aclose(self) -> None:
        await super().aclose()
        await asyncio.sleep(0)
        raise self._close()


class BadlyClosedAtOnce(DeltaSource):
    """A source with a plain `close` that raises."""

    aclose: Any = None

    def __init__(self, *deltas: Delta, close: Fails) -> None:
        super().__init__(*deltas)
        self._close = close

    def close(self) -> None:
        self.closed = True
        raise self._close()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


@pytest.mark.parametrize("kind", [BadlyClosed, BadlyClosedAtOnce])
@pytest.mark.parametrize("close", FAILURES)
async def test_a_close_that_fails_after_a_whole_reply_is_logged_once_and_harms_nobody(
    kind: Any, close: Fails, caplog: pytest.LogCaptureFixture
) -> None:
    """F6: the message is complete, the calls were passed on, and the node completes."""
    source = kind(*CALL_DELTAS, close=close)

    async def body(node: Node[Any]) -> Message:
        reply = fork(node, source, to_user="to_user")
        message = await reply.message
        assert [call.name async for call in reply.tool_calls] == ["f"]
        return message

    assert (await run_body(body)).content == "Wait."
    assert source.closed
    (warning,) = warnings(caplog)
    assert kind.__name__ in warning


async def test_a_close_that_fails_after_a_failure_does_not_hide_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F6: the branches raise the source's own error."""

    async def body(node: Node[Any]) -> None:
        failure = ValueError("broken")
        reply = fork(node, BadlyClosed(close=FAILURES[1], failure=failure))
        with pytest.raises(ValueError, match="broken") as raised:
            await reply.message
        assert raised.value is failure

    await run_body(body)
    assert len(warnings(caplog)) == 1


@pytest.mark.parametrize("turns", range(8))
async def test_a_cancel_while_the_source_closes_is_a_cancel(turns: int) -> None:
    """T5 and F6: at any moment. An error of the close does not replace the cancel."""

    async def body(node: Node[Any]) -> None:
        fork(node, BadlyClosed(*CALL_DELTAS, close=FAILURES[0]))
        for _ in range(turns):
            await asyncio.sleep(0)
        node.cancel("enough")

    with pytest.raises(NodeCancelled):
        await run_body(body)


async def test_the_iterator_that_a_source_makes_is_closed_with_it() -> None:
    """F6: also if the cancelled pump was waiting for a reader instead of the source."""
    left: list[str] = []

    class Made:
        async def __aiter__(self) -> AsyncIterator[Delta]:
            try:
                while True:
                    yield Delta("x" * 100)
            finally:
                left.append("left")

    async def body(node: Node[Any]) -> None:
        reply = fork(node, Made(), limit=1)
        await anext(reply.text)
        node.cancel()

    with pytest.raises(NodeCancelled):
        await run_body(body)
    assert left == ["left"]


@pytest.mark.parametrize("turns", range(12))
async def test_a_source_is_closed_once(turns: int) -> None:
    """F6: at its end, or after a cancel at any moment. No source gets a second close."""

    class Counted(DeltaSource):
        closes = 0

        def __aiter__(self) -> Any:
            self.items = super().__aiter__()
            return self

        async def __anext__(self) -> Delta:
            return await anext(self.items)

        async def aclose(self) -> None:
            self.closes += 1

    source = Counted(*CALL_DELTAS)

    async def body(node: Node[Any]) -> None:
        fork(node, source)
        for _ in range(turns):
            await asyncio.sleep(0)
        node.cancel()

    with pytest.raises(NodeCancelled):
        await run_body(body)
    assert source.closes == 1


class Unusable(Format):
    """A format with the same marker as Hermes."""

    open = "<tool_call>!"


async def closed_node() -> Node[Any]:
    async def nothing(_: Node[Any]) -> None: ...

    async with Commander() as commander:
        return commander.call_handler(BodyNode(nothing))


@pytest.mark.parametrize("closes", ["later", "at once", "badly", "not started"])
async def test_a_fork_that_is_refused_closes_its_source(closes: str) -> None:
    """F6: on a node that has ended, and for every other reason."""
    closed: list[str] = []

    class Later(DeltaSource):
        async def aclose(self) -> None:
            await asyncio.sleep(0)
            closed.append("later")

    class AtOnce(DeltaSource):
        aclose: Any = None

        def close(self) -> None:
            closed.append("at once")

    class Badly(DeltaSource):
        async def aclose(self) -> None:
            closed.append("badly")
            raise ValueError("no")

    async def never() -> Any:
        raise AssertionError

    kinds = {"later": Later, "at once": AtOnce, "badly": Badly}

    def make() -> Any:
        return kinds[closes]() if closes in kinds else never()

    node = await closed_node()
    with pytest.raises(NodeClosed):
        fork(node, make())

    async def body(node: Node[Any]) -> None:
        with pytest.raises(ValueError, match="begins two formats"):
            fork(node, make(), formats=[Hermes(), Unusable()])

    await run_body(body)
    if closes in kinds:
        await wait_until(lambda: closed == [closes] * 2)


async def test_a_fork_from_another_thread_is_refused_and_its_source_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F6: that thread cannot await an async close, which is logged. A plain close is called."""

    async def body(node: Node[Any]) -> None:
        for source in (DeltaSource(), BadlyClosedAtOnce(close=FAILURES[0])):
            with pytest.raises(RuntimeError):
                await asyncio.to_thread(fork, node, source)

    await run_body(body)
    assert len(warnings(caplog)) == 2


async def test_a_task_that_would_have_given_the_source_is_cancelled_with_the_fork() -> None:
    """F6: the task may be waiting for a connection."""
    task = asyncio.create_task(asyncio.sleep(TIMEOUT_SECONDS))

    with pytest.raises(NodeClosed):
        fork(await closed_node(), task)
    await asyncio.wait([task])
    assert task.cancelled()


async def test_a_blocking_source_whose_close_fails_is_left_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """F6: its thread ends before the node does."""

    class Blocking:
        def __iter__(self) -> Iterator[Delta]:
            return iter([Delta("Hi"), Delta(done=True)])

        def close(self) -> None:
            raise OSError("gone")

    async def body(node: Node[Any]) -> Message:
        return await fork(node, Blocking()).message

    assert (await run_body(body)).content == "Hi"
    assert len(warnings(caplog)) == 1


class Refusing(Format):
    """A format whose `read` raises."""

    open, close = "<<", ">>"

    def read(self, body: str) -> Any:
        raise OSError(f"no {body}")


@pytest.mark.parametrize("waits", [0, 1])
async def test_a_source_is_closed_when_a_format_raises(waits: int) -> None:
    """Also during a step of an async generator: the fork cancels the step."""
    seen: list[object] = []
    never = asyncio.Event()

    async def source() -> AsyncIterator[Delta]:
        try:
            yield Delta(text="a <<b>> c")
            for _ in range(waits):
                await never.wait()
            yield Delta(text="d")
        except BaseException as error:
            seen.append(type(error))
            raise
        finally:
            await asyncio.sleep(0)
            seen.append("closed")

    async def body(node: Node[Any]) -> Message:
        return await fork(node, source(), formats=[Refusing()]).message

    with pytest.raises(OSError, match="no b") as raised:
        await run_body(body)
    assert raised.value.__context__ is None
    assert seen[-1:] == ["closed"]


async def test_a_source_that_goes_on_after_a_format_has_raised_is_left() -> None:
    """The fork reads no further, and passes nothing to the failed format."""
    given: list[int] = []

    class Deaf(DeltaSource):
        async def __aiter__(self) -> AsyncIterator[Delta]:
            while True:
                with suppress(asyncio.CancelledError):
                    await asyncio.sleep(0)
                given.append(1)
                yield Delta(text="<<b>>")

    source = Deaf()

    async def body(node: Node[Any]) -> Message:
        return await fork(node, source, formats=[Refusing()]).message

    with pytest.raises(OSError, match="no b"):
        await run_body(body)
    assert source.closed
    assert len(given) < 3000
