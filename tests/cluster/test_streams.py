"""The streams of an actor, without Ray: limits, ends and questions."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from support.clock import sleep_virtual

from anabranch import AgentMessage
from anabranch.cluster._agent_actor import MessageSender, TextCache
from anabranch.cluster._mailbox import MailboxActor
from anabranch.cluster._payload import Result, pack
from anabranch.cluster._protocol import (
    Ask,
    CancelAsk,
    ReportDelivery,
    Subscribe,
    TurnRequest,
    TurnReturned,
)
from anabranch.cluster._stream import STREAM_CAPACITY, ServiceActor, StreamWriter
from anabranch.commander import WorkerLost
from anabranch.messages import Usage
from anabranch.testing import run_seeded

Play = Callable[[StreamWriter], Awaitable[None]]


class Playing:
    """A service with the given functions as streams."""

    def __init__(self, play: Play) -> None:
        self.play_one = play
        self.ended = 0

    async def serve(self, writer: StreamWriter, request: Any) -> None:
        try:
            await self.play_one(writer)
        finally:
            self.ended += 1

    async def aclose(self) -> None:
        """Do nothing."""


def an_actor(play: Play) -> tuple[ServiceActor, Playing]:
    service = Playing(play)
    return ServiceActor(service), service


async def call(actor: ServiceActor, key: str = "a", lease: float = 30) -> tuple[Result, bool]:
    if key in actor._writers:
        packed, last = await actor.next(key, lease)
    else:
        packed, last = await actor.open(key, pack(None, "nothing"), lease)
    return Result.load(packed), last


async def for_ever(writer: StreamWriter) -> None:
    writer.send_nowait("begun")
    await asyncio.Event().wait()


def test_a_producer_waits_for_its_reader() -> None:
    """It fills the stream, which arrives at once and in order, and then waits."""
    made = 0

    async def play(writer: StreamWriter) -> None:
        nonlocal made
        for made in range(3 * STREAM_CAPACITY):
            await writer.send(made)

    async def main() -> None:
        actor, _ = an_actor(play)
        read: list[int] = []
        last = False
        while not last:
            outcome, last = await call(actor)
            read += outcome.get()
            await sleep_virtual(1)  # run everything that can run
            assert made <= len(read) + STREAM_CAPACITY
        assert read == list(range(3 * STREAM_CAPACITY))

    run_seeded(main, seed=0)


def test_a_failure_comes_after_what_came_before_it() -> None:
    """In the same batch, if both are ready."""

    async def play(writer: StreamWriter) -> None:
        writer.send_nowait("begun")
        raise KeyError("x")

    async def main() -> None:
        actor, _ = an_actor(play)
        outcome, last = await call(actor)
        assert (outcome.value, type(outcome.failure), last) == (["begun"], KeyError, True)

    run_seeded(main, seed=0)


def test_a_stream_whose_reader_is_not_heard_of_is_ended() -> None:
    """A renewed lease keeps it running."""

    async def main() -> None:
        actor, service = an_actor(for_ever)
        await call(actor, lease=30)
        for _ in range(5):
            await sleep_virtual(20)
            await actor.keep("a", 30)
            assert not service.ended
        await sleep_virtual(40)
        assert service.ended
        packed, last = await actor.next("a", 30)
        assert isinstance(Result.load(packed).failure, TimeoutError)
        assert last

    run_seeded(main, seed=0)


def test_closing_waits_for_the_producers_end_and_may_overtake_the_opening() -> None:
    """Calls may arrive in any order: a stream that was closed first does not start."""

    async def main() -> None:
        actor, service = an_actor(for_ever)
        await call(actor)
        await actor.close("a")
        assert service.ended == 1
        await actor.close("b")
        outcome, last = await call(actor, "b")
        assert (outcome.value, last, service.ended) == ([], True, 1)

    run_seeded(main, seed=0)


def test_who_still_reads_when_an_actor_is_stopped_is_told() -> None:
    """Whether the reader waits or is about to call."""

    async def main() -> None:
        actor, _ = an_actor(for_ever)
        await call(actor)
        await call(actor, "b")
        waiting = asyncio.ensure_future(call(actor))
        await sleep_virtual(1)
        await actor.stop()
        packed, last = await actor.next("b", 30)
        for outcome in ((await waiting)[0], Result.load(packed)):
            with pytest.raises(WorkerLost, match="closed"):
                outcome.get()
        assert last

    run_seeded(main, seed=0)


def test_a_producer_may_ask_its_reader() -> None:
    """It gets the answer or its failure; a cancel withdraws the question."""

    async def play(writer: StreamWriter) -> None:
        writer.send_nowait(await writer.ask("first"))
        try:
            await writer.ask("second")
        except KeyError:
            writer.send_nowait("refused")
        try:
            async with asyncio.timeout(5):
                await writer.ask("third")
        except TimeoutError:
            writer.send_nowait("given up")

    async def main() -> None:
        actor, _ = an_actor(play)
        assert (await call(actor))[0].get() == [Ask(1, "first")]
        await actor.answer("a", 1, Result("well").dump())
        assert (await call(actor))[0].get() == ["well", Ask(2, "second")]
        await actor.answer("a", 2, Result(failure=KeyError("no")).dump())
        assert (await call(actor))[0].get() == ["refused", Ask(3, "third")]
        assert (await call(actor))[0].get() == [CancelAsk(3), "given up"]
        await actor.answer("a", 3, Result("too late").dump())

    run_seeded(main, seed=0)


def test_a_report_waits_for_home_and_is_answered_when_it_is_taken() -> None:
    """However early it arrives; the mailbox holds at most one of each call."""

    async def main() -> None:
        actor = MailboxActor()
        telling = asyncio.ensure_future(actor.deliver("inbox", "call", 1, b"report"))
        await sleep_virtual(1)
        packed, last = await actor.open("home", pack(Subscribe("inbox"), "an inbox"), 30)
        assert Result.load(packed).get() == [ReportDelivery("inbox", "call", 1, b"report")]
        assert not last
        await telling
        telling = asyncio.ensure_future(actor.deliver("inbox", "call", 2, b"more"))
        await sleep_virtual(1)
        assert not telling.done()
        await actor.next("home", 30)
        await telling

    run_seeded(main, seed=0)


def test_a_turn_is_over_when_it_is_given_back_or_whoever_had_it_has_gone() -> None:
    """The reader gets the usage, if it is known."""

    async def main() -> None:
        actor = MailboxActor()
        seen: list[Any] = []

        async def read() -> None:
            packed, _ = await actor.open("home", pack(Subscribe("inbox"), "an inbox"), 1_000)
            while True:
                for item in Result.load(packed).get():
                    seen.append(item)
                    if isinstance(item, Ask):
                        await actor.answer("home", item.number, Result(None).dump())
                packed, _ = await actor.next("home", 1_000)

        reading = asyncio.ensure_future(read())
        for number in ("kept", "lost"):
            wanted = TurnRequest("inbox", "call", number, "tiny", 9, None)
            packed, _ = await actor.open(number, pack(wanted, "a turn"), 30)
            (given,) = Result.load(packed).get()
            if number == "kept":
                usage = Usage(output_tokens=3)
                await actor.answer(number, given.number, Result(usage).dump())
        await sleep_virtual(60)
        assert [item for item in seen if isinstance(item, TurnReturned)] == [
            TurnReturned("call", "kept", Usage(output_tokens=3)),
            TurnReturned("call", "lost", None),
        ]
        reading.cancel()
        await actor.close("home")

    run_seeded(main, seed=0)


@pytest.mark.parametrize("read_each", [1, 3, 100])
def test_texts_arrive_whole_whatever_was_joined(read_each: int) -> None:
    """For two senders at once; only new text is sent."""

    def part(sender: str, said: str, delta: str, state: Any) -> AgentMessage:
        extra = {"delta": delta}
        return AgentMessage(content=said, sender=sender, extra=extra, stream_state=state)

    parts: list[AgentMessage] = []
    said = {"alice": "", "bob": ""}
    for number in range(40):
        sender = "alice" if number % 3 else "bob"
        state = "streaming" if said[sender] else "begin"
        said[sender] += f"{number} "
        parts.append(part(sender, said[sender], f"{number} ", state))
    parts.append(AgentMessage(content=said["bob"], sender="bob"))
    parts.append(part("bob", "again", "again", "begin"))

    async def main() -> None:
        async def play(writer: StreamWriter) -> None:
            teller = MessageSender(writer)
            for n, each in enumerate(parts, 1):
                teller(each)
                if n % read_each == 0:
                    await sleep_virtual(1)

        actor, _ = an_actor(play)
        texts, heard, last = TextCache(), list[AgentMessage](), False
        while not last:
            outcome, last = await call(actor)
            assert all(told.part.content is None for told in outcome.get()[:-2])
            heard += [texts.expand(told.part) for told in outcome.get()]
        told = {"alice": "", "bob": ""}
        for each in heard:
            assert each.content == told[each.sender] + each.extra.get("delta", "")
            told[each.sender] = "" if each.stream_state == "end" else each.content
        assert told == {"alice": said["alice"], "bob": "again"}
        assert [each.content for each in texts.interrupt_all()] == [said["alice"], "again"]

    run_seeded(main, seed=0)
