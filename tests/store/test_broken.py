"""Replies that fail, break off or are closed early are the same in each execution."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from copy import deepcopy
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, disk_after, effects_in_doubt, run_execution
from support.killed_executions import execute_in_loop as journalled
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch.backends import Backend, Fallback
from anabranch.commander import (
    BackendError,
    BackendUnavailable,
    BadResponse,
    Node,
    RateLimited,
    Retry,
    StreamInterrupted,
)
from anabranch.dispatch import fork
from anabranch.handlers import handler, respond
from anabranch.messages import Conversation, Delta, Message, Request, ToolCallDelta, Usage
from anabranch.store import Durable, JournalMismatch, Live, NotStorable
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("D21")


def request(text: str = "Go on.") -> Request:
    return Request([Message(role="user", content=text)])


class World(Backend):
    """A model that never answers twice alike: other numbers, failures, broken or slow replies."""

    def __init__(self, seed: int) -> None:
        super().__init__("world")
        self.chance = random.Random(seed)
        self.asked = 0

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        self.asked += 1
        how = self.chance.choice(["fails", "breaks", "slow", "good", "good"])
        if how == "fails":
            raise RateLimited(f"down {self.asked}", status=429, retry_after=self.asked)
        for word in ("reply ", f"{self.asked}", " is", " here"):
            if how == "slow":
                await asyncio.sleep(2)
            yield Delta(text=word)
            if how == "breaks" and word == " is":
                raise BackendUnavailable("gone")
        yield Delta(finish_reason="stop", usage=Usage(input_tokens=1))


@handler
async def ask(node: Node[Any], backend: Backend) -> str:
    """Return what became of a reply, or raise its error."""
    return str((await backend.complete(request())).content)


@handler
async def ask_forked(node: Node[Any], backend: Backend, leave: bool) -> str:
    reply = fork(node, backend.stream(request()))
    said = ""
    async for text in reply.text:
        said += text
        if leave and len(said) > 6:
            break
    if leave:
        await reply.aclose()
        return f"left at {said[:7]}"
    try:
        return f"{said}|{(await reply.message).content}"
    except StreamInterrupted as error:
        return f"{said}|{error.partial and error.partial.content}"


class Ways(Durable[list[str]]):
    """Requests replies in many ways, and calls an effect for each outcome."""

    seed: int
    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        chance = random.Random(self.seed)
        ways = [self.caught, self.recovered, self.left, self.timed, self.forked, self.talked]
        ways += [self.raced, self.hedged]
        done = []
        for number in range(3):
            said = await chance.choice(ways)(chance)
            done.append(await act(f"{number}", said))
        return done

    async def caught(self, chance: random.Random) -> str:
        for _ in range(3):
            try:
                return await self.call_handler(ask(self.backend), claim=True)
            except BackendError as error:
                failed = f"{type(error).__name__} {error} {getattr(error, 'retry_after', None)}"
                await act("failed", failed)
        return "never"

    async def recovered(self, chance: random.Random) -> str:
        node = ask(self.backend).at_exception(lambda node: node.recover(f"not: {node.error}"))
        return await self.call_handler(node)

    async def left(self, chance: random.Random) -> str:
        said = ""
        with suppress(BackendError):
            async with aclosing(self.backend.stream(request())) as deltas:
                async for delta in deltas:
                    said += delta.text
                    if len(said) > 6:
                        break
        return said

    async def timed(self, chance: random.Random) -> str:
        try:
            async with asyncio.timeout(5):
                return str((await self.backend.complete(request())).content)
        except (TimeoutError, BackendError) as error:
            return f"too slow, or {type(error).__name__}: {error}"

    async def forked(self, chance: random.Random) -> str:
        try:
            return await self.call_handler(
                ask_forked(self.backend, chance.random() < 0.5), claim=True
            )
        except BackendError as error:
            return f"failed: {error}"

    async def talked(self, chance: random.Random) -> str:
        talk = Conversation()
        talk.add("Go on.")
        for _ in range(2):
            with suppress(BackendError):
                await self.call_handler(respond(self.backend, talk), claim=True)
        return str([message.content for message in talk.messages])

    async def raced(self, chance: random.Random) -> str:
        nodes = [self.call_handler(ask(self.backend), claim=True) for _ in range(2)]
        tasks = [asyncio.ensure_future(self.wait_for(node)) for node in nodes]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for node in nodes:
            node.cancel("not the first")
        await asyncio.wait(tasks)
        return str(sorted(task.result() for task in done))

    async def wait_for(self, node: Node[str]) -> str:
        try:
            return await node
        except Exception as error:
            return f"{type(error).__name__} {error}"

    async def hedged(self, chance: random.Random) -> str:
        first = self.call_handler(ask(self.backend), claim=True)
        with suppress(TimeoutError, BackendError):
            async with asyncio.timeout(3):
                return await first
        first.cancel("too slow")
        try:
            return await self.call_handler(ask(self.backend), claim=True)
        except BackendError as error:
            return f"both: {error}"


def require_one_way(execution: Execution, where: str) -> None:
    """Require that the last execution has seen all effects, and no others."""
    assert execution.error is None, f"{where}: {execution.error!r}"
    assert execution.state == "completed", where
    done = {name for name in execution.disk.done.values() if not name.startswith("failed")}
    assert done == set(execution.result), f"{where}: {done ^ set(execution.result)}"


@pytest.mark.parametrize("seed", seeds(example_count(30, 2000)))
def test_each_life_goes_the_way_that_the_journal_has(seed: int) -> None:
    """D5: a model may answer differently later, but recorded outcomes of replies count."""
    backend = World(seed)
    first = run_execution(lambda: Ways(seed, backend))
    require_one_way(first, "the first life")
    for rows in range(len(first.rows) + 1):
        for done in {frozenset(effects_in_doubt(first, rows)), frozenset[str]()}:
            execution = run_execution(
                lambda: Ways(seed, backend), Kill(rows, done).of(first), seed=rows
            )
            require_one_way(execution, f"seed {seed}, killed after row {rows}, done {done}")


# --- one by one


class Once(Durable[list[Any]]):
    """Requests one reply, in a thread if asked to, and returns all that is known of it."""

    backend: Live[Backend] = later()
    thread: bool = False

    async def task(self) -> list[Any]:
        try:
            if self.thread:
                return [await self.in_thread(lambda: [*self.backend.stream_sync(request())]), ""]
            reply = fork(self, self.backend.stream(request()))
            return [(await reply.message).content]
        except BackendError as error:
            partial: Message | None = getattr(error, "partial", None)
            said = None if partial is None else partial.model_dump(exclude_defaults=True)
            return [type(error).__name__, str(error), vars(error).get("retry_after"), said]


CALL = ToolCallDelta(0, "c", "f", '{"a": 1')
BREAKS = {
    "at once": RateLimited("slow down", status=429, retry_after=7.5),
    "in the middle": [Delta(text="half "), Delta(text="a"), StreamInterrupted("gone")],
    "in a call": [Delta(text="half", tool_calls=(CALL,)), BadResponse("nonsense", status=500)],
    "with its own partial": [
        Delta(text="half"),
        StreamInterrupted("gone", partial=Message(role="assistant", content="other \ud83d")),
    ],
}


@pytest.mark.parametrize("thread", [False, True])
@pytest.mark.parametrize("how", BREAKS)
async def test_a_failed_reply_fails_alike_in_each_life(how: str, thread: bool) -> None:
    """The error has the same type, attributes and partial text; nothing is requested again."""
    script = ScriptedBackend(deepcopy(BREAKS[how]))  # `fork` adds the partial text as a note
    first = await journalled(Once(script, thread))
    again = await journalled(
        Once(ScriptedBackend(), thread), disk_after(first, first.count("broken"))
    )
    assert (first.count("broken"), again.result) == (1, first.result)
    if "partial" in how or ("middle" in how and not thread):
        assert first.result[-1]["content"] in ("half a", "other \ud83d")


class Tries(Durable[str]):
    backend: Live[Backend] = later()

    async def task(self) -> str:
        return await self.call_handler(ask(self.backend), retry=Retry(attempts=3, backoff=0))


down = [BackendUnavailable("one"), BackendUnavailable("two")]


async def test_a_new_attempt_asks_anew() -> None:
    """D21: a recorded failure belongs to its attempt, in a later execution too."""
    first = await journalled(Tries(ScriptedBackend(*down, "three")))
    assert (first.result, first.count("broken")) == ("three", 2)
    for rows in range(len(first.rows) + 1):
        known = sum(row.kind in ("broken", "reply") for row in first.rows[:rows])
        again = ScriptedBackend(*[*down, "three"][known:])
        assert (await journalled(Tries(again), disk_after(first, rows))).result == "three"


async def test_a_failure_that_cannot_be_made_again_is_refused() -> None:
    """D18: the first execution refuses it too, so that all executions see the same error."""

    class Odd(Exception):
        pass

    with pytest.raises(NotStorable, match="Odd"):
        await journalled(Once(ScriptedBackend(Odd("x"))))


async def test_no_key_is_in_the_row_of_a_failure() -> None:
    """A key is in neither the partial text, over any number of deltas, nor the error."""

    class Keyed(ScriptedBackend):
        def redact(self, text: str) -> str:
            return text.replace("sk-secret", "***")

    half = Message(role="assistant", content="it is sk-secret")
    script = [Delta(text="key: sk-"), Delta(text="secret"), StreamInterrupted("x", partial=half)]
    execution = await journalled(Once(Keyed(script)))
    rows = "".join(row.value.decode() for row in execution.rows if row.kind == "broken")
    assert "key: ***" in rows
    assert "it is ***" in rows
    assert "sk-secret" not in rows
    assert "sk-" not in rows


class Reads(Durable[str]):
    backend: Live[Backend] = later()
    whole: Live[bool] = later()

    async def task(self) -> str:
        said = ""
        with suppress(Exception):
            async with aclosing(self.backend.stream(request())) as deltas:
                async for delta in deltas:
                    said += delta.text
                    if not self.whole:
                        break
        return said


async def test_a_reply_that_was_left_is_not_read_on() -> None:
    """The rest of such a reply is unknown: code that reads further has changed, and is stopped."""
    first = await journalled(Reads(ScriptedBackend("a long reply"), whole=False))
    rows = first.count("broken")
    again = await journalled(Reads(ScriptedBackend(), whole=False), disk_after(first, rows))
    assert again.result == first.result == "a lo"
    with pytest.raises(JournalMismatch, match="was closed early"):
        await journalled(Reads(ScriptedBackend(), whole=True), disk_after(first, rows))


async def test_a_fallback_is_one_reply() -> None:
    """The reply of a composite backend is recorded, and not the failures inside it."""
    backends = [ScriptedBackend(BackendUnavailable("x")) for _ in range(2)]
    first = await journalled(Once(Fallback(backends)))
    assert first.count("broken") == 1
    again = await journalled(Once(Fallback([ScriptedBackend("up")])), disk_after(first, 1))
    assert again.result == first.result
