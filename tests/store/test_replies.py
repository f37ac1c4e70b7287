"""Replies in a durable run are recorded, and no later execution requests them again."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from support.killed_executions import disk_after, execute_in_loop
from support.memory_journal import RUN_ID, Disk
from support.seeds import SEED, example_count

from anabranch import (
    BackendUnavailable,
    ConfigurationError,
    Conversation,
    ModelRetry,
    Node,
    ToolCall,
    handler,
)
from anabranch.backends import Backend, Fallback, Limits
from anabranch.backends._cassette import CassetteBackend
from anabranch.commander import BudgetExceeded
from anabranch.dispatch import FencedCode, Hermes, Think, fork
from anabranch.dispatch.assembly import assemble
from anabranch.handlers import respond
from anabranch.messages import Delta, Message, OutputMode, Request, ToolCallDelta, Usage
from anabranch.messages.compact_json import read_message, write_json, write_message
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, explore, pause

pytestmark = pytest.mark.contract("D4")


def request(text: str = "Go on.") -> Request:
    return Request([Message(role="user", content=text)])


class Numbered:
    """Returns the number of the reply over all executions, so that all replies differ."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, asked: Request) -> str:
        self.count += 1
        return f"reply {self.count}"


@handler
async def branch(node: Node[Any], backend: Backend) -> list[str | None]:
    """Make the same request as the others, and then one about the answer."""
    await pause()
    first = await backend.complete(request())
    await pause()
    second = await backend.complete(request(f"Shorten: {first.content}"))
    return [first.content, second.content]


class Branches(Durable[list[list[str]]]):
    backend: Live[Backend] = later()

    async def task(self) -> Any:
        branches = [self.call_handler(branch(self.backend)) for _ in range(3)]
        return [await each for each in branches]


def test_branches_that_ask_the_same_at_once_never_swap_replies() -> None:
    """D5: whichever branch is first in either execution, each gets its own replies again."""

    async def main() -> None:
        backend = ScriptedBackend(otherwise=Numbered())
        first = await execute_in_loop(Branches(backend))
        rows = random.randint(0, len(first.rows))
        known = [str(row.value) for row in first.rows[:rows] if row.kind == "reply"]
        asked = len(backend.requests)
        again = await execute_in_loop(Branches(backend), disk_after(first, rows))
        for before, now in zip(first.result, again.result, strict=True):
            for said, says in zip(before, now, strict=True):
                assert (said == says) == any(f'"{said}"' in each for each in known)
        assert len(backend.requests) - asked == 6 - len(known)

    explore(main, seeds=range(SEED, SEED + example_count(150, 3000)))


@handler
async def forked(node: Node[Any], backend: Backend) -> str:
    """Request a reply as `respond` does: another node reads it."""
    reply = fork(node, backend.stream(request()))
    return f"{''.join([text async for text in reply.text])}|{(await reply.message).content}"


class Asking(Durable[list[str]]):
    """Requests replies in each way of calling a backend, each twice."""

    backend: Live[Backend] = later()

    async def task(self) -> list[str]:
        said = [str((await self.backend.complete(request())).content) for _ in range(2)]
        said.append(await self.call_handler(forked(self.backend)))
        said.append(await self.in_thread(self.ask_sync))
        return said

    def ask_sync(self) -> str:
        return "".join(delta.text for delta in self.backend.stream_sync(request()))


class Plain(Backend):
    """A user's own backend that knows neither journals nor, by default, end marks."""

    def __init__(self, *end: Delta) -> None:
        super().__init__("plain")
        self.answer = Numbered()
        self.end = end

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(text=self.answer(request))
        for delta in self.end:
            yield delta


class Inherits(Plain):
    """Extends its base class's reply, which is not recorded beside its own."""

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(text="inherited ")
        async for delta in super().stream(request):
            yield delta


class Speaks:
    """A stream that is not from `Backend`."""

    answer: Numbered

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        yield Delta(text=self.answer(request), finish_reason="stop")


class Mixed(Speaks, Backend):
    def __init__(self) -> None:
        super().__init__("mixed")
        self.answer = Numbered()


DONE = Delta(finish_reason="stop")


def scripted() -> ScriptedBackend:
    return ScriptedBackend(otherwise=Numbered())


@pytest.mark.parametrize("kind", ["scripted", "plain", "inherits", "mixed", "fallback", "cassette"])
async def test_no_reply_that_is_kept_is_asked_again(kind: str, tmp_path: Any) -> None:
    """Also below a composite backend, whose own reply alone is recorded; in each way of calling."""
    source = scripted()
    backend: Any = {
        "scripted": lambda: source,
        "plain": lambda: Plain(DONE),
        "inherits": lambda: Inherits(DONE),
        "mixed": Mixed,
        "fallback": lambda: Fallback([ScriptedBackend(otherwise=BackendUnavailable("x")), source]),
        "cassette": lambda: CassetteBackend(tmp_path / "tape", record=source),
    }[kind]()
    counter: Any = getattr(backend, "answer", None) or source._otherwise
    first = await execute_in_loop(Asking(backend))
    assert first.count("reply") == counter.count == 4
    for rows in range(len(first.rows) + 1):
        asked, known = counter.count, sum(row.kind == "reply" for row in first.rows[:rows])
        again = await execute_in_loop(Asking(backend), disk_after(first, rows))
        assert again.result[:known] == first.result[:known]
        assert (again.count("reply"), counter.count - asked) == (4, 4 - known)


class Streams(Durable[str]):
    backend: Live[Backend] = later()

    async def task(self) -> str:
        return str([delta async for delta in self.backend.stream(request())])


async def test_a_backend_without_end_marks_is_played_without_them() -> None:
    """A fork of the first execution saw it break off, and so does a replay."""
    backend = Plain()
    first = await execute_in_loop(Streams(backend))
    again = await execute_in_loop(Streams(backend), disk_after(first, 1))
    assert again.result == first.result
    assert "done=True" not in first.result
    assert backend.answer.count == 1


async def test_the_end_of_a_reply_is_seen_only_when_it_is_kept() -> None:
    """Else the journal could have a consequence of the reply without the reply."""
    seen: list[int] = []

    class Looks(Durable[None]):
        backend: Live[Backend] = later()

        async def task(self) -> None:
            execution: Any = self.durable._scope.execution
            async for delta in self.backend.stream(request()):
                if delta.finish_reason or delta.done:
                    kept = [row for row in execution.file.disk.rows[RUN_ID] if row.kind == "reply"]
                    seen.append(len(kept))

    await execute_in_loop(Looks(ScriptedBackend("reply")))
    assert seen == [1, 1]


# --- usage


def paid(tokens: int) -> Message:
    return Message(role="assistant", content="yes", usage=Usage(input_tokens=tokens))


class Pays(Durable[list[int]]):
    """Makes three requests: below it, in a job with a recorded result, and in its body."""

    backend: Live[Backend] = later()

    async def task(self) -> list[int]:
        await self.put_job(Part(self.backend))
        usage = [(await self.backend.complete(request(str(n)))).usage for n in range(2)]
        spent: Any = self.commander.usage(self)
        return [each.input_tokens for each in (*usage, spent["scripted"]) if each]


class Part(Durable[str]):
    backend: Live[Backend] = later()

    async def task(self) -> str:
        return str((await self.backend.complete(request("part"))).content)


class Bounded(Durable[list[int]]):
    backend: Live[Backend] = later()
    limits: Live[Limits] = later()

    async def task(self) -> list[int]:
        return await self.put_job(Pays(self.backend), limits=self.limits)


async def test_a_budget_goes_on_where_it_stood() -> None:
    """Replayed replies and recorded jobs take no turn, and their usage counts again."""

    def script(start: int) -> ScriptedBackend:
        own = Limits(budget=1000, requests_per_minute=3 - start or None)
        return ScriptedBackend(*[paid(100 * n) for n in range(1 + start, 4)], limits=own)

    first = await execute_in_loop(Bounded(script(0), Limits(budget=1000)))
    assert first.result == [200, 300, 600]
    for rows in range(len(first.rows) + 1):
        known = sum(row.kind == "reply" for row in first.rows[:rows])
        limits, backend = Limits(budget=1000, concurrency=1), script(known)
        again = await execute_in_loop(Bounded(backend, limits), disk_after(first, rows))
        assert again.result == first.result
        ended = any(row.kind == "result" for row in first.rows[:rows])
        if not any(row.kind == "result" and row.value[:1] == b"[" for row in first.rows[:rows]):
            assert limits.spent == 600
            assert backend.limits.spent == (500 if ended else 600)

    replies = [row.seq for row in first.rows if row.kind == "reply"]
    with pytest.raises(BudgetExceeded):
        await execute_in_loop(Bounded(script(2), Limits(budget=300)), disk_after(first, replies[1]))


class AsksInTheEnd(Durable[str]):
    backend: Live[Backend] = later()
    seen: Live[list[int]] = later()

    def __post_init__(self) -> None:
        self.at_end(self.ask).at_done(self.look)

    async def task(self) -> str:
        return str((await self.backend.complete(request("first"))).content)

    async def ask(self, _: Node[Any]) -> None:
        await self.backend.complete(request("last"))
        raise ValueError("after all")

    def look(self, _: Node[Any]) -> None:
        spent: Any = self.commander.usage(self)["scripted"]
        self.seen.append(spent.input_tokens)


async def test_what_a_callback_has_spent_is_charged_once() -> None:
    """Callbacks run again in each execution and replay their replies, so no other sum has these."""
    seen: list[int] = []
    with pytest.raises(ValueError, match="after all"):
        await execute_in_loop(AsksInTheEnd(ScriptedBackend(paid(100), paid(200)), seen))
    disk = Disk()
    with suppress(ValueError):
        await execute_in_loop(AsksInTheEnd(ScriptedBackend(paid(100), paid(200)), []), disk)
    kept = disk.rows[RUN_ID]
    over = next(row.seq for row in kept if row.kind == "over")
    for rows in range(over):
        known = sum(row.kind == "reply" for row in kept[:rows])
        again = AsksInTheEnd(ScriptedBackend(*[paid(100), paid(200)][known:]), seen)
        with suppress(ValueError):
            await execute_in_loop(again, disk.cut(rows, {}))
    assert seen == [300] * over  # once the failure is recorded, no callback runs again


# --- refused requests, and text that is not stored


async def test_tasks_of_one_node_that_ask_the_same_at_once_are_refused() -> None:
    """They could not be distinguished; nodes could."""

    class Gathers(Durable[None]):
        backend: Live[Backend] = later()
        same: bool = False

        async def task(self) -> None:
            texts = ("a", "a") if self.same else ("a", "b")
            await asyncio.gather(*(self.backend.complete(request(text)) for text in texts))

    await execute_in_loop(Gathers(scripted()))
    with pytest.raises(ConfigurationError, match="several tasks start requests to a model"):
        await execute_in_loop(Gathers(scripted(), same=True))


async def test_no_request_and_no_key_is_in_a_row() -> None:
    """A server that returns the key does not get it into the journal."""

    class Keyed(Plain):
        def redact(self, text: str) -> str:
            return text.replace("sk-secret", "***")

        async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
            for text in ("your key: sk-", "secret, reply 1"):
                yield Delta(text=text)
            yield DONE

    class Once(Durable[int]):
        backend: Live[Backend] = later()

        async def task(self) -> int:
            return len((await self.backend.complete(request("a secret question"))).content or "")

    rows = (await execute_in_loop(Once(Keyed()))).rows
    text = "".join(row.value.decode() for row in rows)
    assert "your key: ***, reply 1" in text
    assert not any(secret in text for secret in ("sk-secret", "question"))


# --- replays

TEXTS = ["", "a", " ", "\ud83d", "\ude00", "é", "<tool_call>", '{"name": "f", "arguments": {}}',
         "</tool_call>", "```json\n", "```", "<think>", "</think>"]  # fmt: skip
PIECES = ["", "{", "}", "{}", '{"a": 1}', '"a": ', '"\\ud83d"', " ", "\n", "1"]


def random_delta(chance: random.Random) -> Delta:
    calls = [
        ToolCallDelta(
            chance.choice([-1, 0, 0, 1, 2, 7]),
            chance.choice([None, None, "x", "y", ""]),
            chance.choice([None, None, "f", "g", ""]),
            chance.choice(PIECES),
        )
        for _ in range(chance.choice([0, 0, 1, 1, 2]))
    ]
    return Delta(
        text=chance.choice(TEXTS),
        reasoning=chance.choice(["", "", *TEXTS]),
        refusal=chance.choice(["", "", "", "no", "\ud83d"]),
        tool_calls=calls,
        usage=chance.choice([None, None, Usage(), Usage(input_tokens=3, reasoning_tokens=1)]),
    )


class Says(Backend):
    """Sends deltas unchanged."""

    def __init__(self, deltas: list[Delta]) -> None:
        super().__init__("says")
        self.deltas = deltas

    async def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        for delta in self.deltas:
            yield delta


class Hears(Durable[int]):
    """Stores its events outside the journal."""

    backend: Live[Backend] = later()
    heard: Live[list[Delta]] = later()

    async def task(self) -> int:
        self.heard += [delta async for delta in self.backend.stream(request())]
        return len(self.heard)


async def test_what_is_played_makes_the_very_same_message() -> None:
    """For any reply in any format, also for calls without an id, whose id Anabranch creates."""
    chance = random.Random(SEED)
    ways = [(), (Hermes(),), (FencedCode(tool="run"), Think())]
    for number in range(example_count(600, 20_000)):
        said = [random_delta(chance) for _ in range(chance.randrange(6))]
        if number % 2:  # as most models send them: one kind of part after the other
            said = [Delta(text=chance.choice(TEXTS)) for _ in said]
            calls = random_delta(chance).tool_calls
            said = [Delta(reasoning=chance.choice(TEXTS)), *said, Delta(tool_calls=calls)]
        said.append(Delta(finish_reason=chance.choice(["stop", "length", "tool_calls"])))
        first = await execute_in_loop(Hears(Says(said), []))
        played: list[Delta] = []
        await execute_in_loop(Hears(Says([]), played), disk_after(first, 1))
        for formats in ways:
            assert assemble(played, formats) == assemble(said, formats)


def test_a_message_is_read_as_it_was_written() -> None:
    """Also one with faulty calls, or with lone surrogates."""
    chance = random.Random(SEED)
    for _ in range(example_count(3000, 50_000)):
        said = assemble([random_delta(chance) for _ in range(chance.randrange(6))])
        assert read_message(json.loads(write_json(write_message(said)).encode())) == said


# --- typed output


class Priced(Durable[list[str]]):
    backend: Live[Backend] = later()
    mode: OutputMode = "text"

    async def task(self) -> list[str]:
        """Ask for two numbers; a validator rejects one, and one reply does not fit."""
        conversation = Conversation()
        checked: list[int] = []

        async def check(number: int) -> int:
            checked.append(number)
            await pause_of_loop()
            if number < 5:
                raise ModelRetry("too low")
            return number + 1

        for _ in range(2):
            message = await self.call_handler(
                respond(
                    self.backend,
                    conversation,
                    output_type=int,
                    output_mode=self.mode,
                    output_validators=[check],
                )
            )
            conversation.add(f"So it was {message.output}. And now?")
        return [f"{each.role}: {each.content}" for each in conversation] + [str(checked)]


async def pause_of_loop() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("mode", ["text", "schema", "tool"])
async def test_typed_output_is_the_same_after_every_kill(mode: OutputMode) -> None:
    """No recorded reply is requested again; validators run in each execution."""

    def scripted_numbers() -> ScriptedBackend:
        numbers = iter(["3", '"x"', "7", "9"])

        def answer(asked: Request) -> Message:
            text = next(numbers)
            if mode != "tool":
                return Message(role="assistant", content=text)
            arguments = {"response": json.loads(text)}
            call = ToolCall(id="c0", name="final_answer", arguments=arguments)
            return Message(role="assistant", tool_calls=[call])

        return ScriptedBackend(otherwise=answer)

    backend = scripted_numbers()
    first = await execute_in_loop(Priced(backend, mode))
    assert len(backend.requests) == 4
    assert first.result[-1] == "[3, 7, 9]"
    for rows in range(len(first.rows) + 1):
        known = sum(row.kind == "reply" for row in first.rows[:rows])
        again = scripted_numbers()
        for _ in range(known):
            again._otherwise(request())  # pyright: ignore - the script goes on after the replies
        resumed = await execute_in_loop(Priced(again, mode), disk_after(first, rows))
        assert resumed.result == first.result, rows
        assert len(again.requests) == 4 - known
