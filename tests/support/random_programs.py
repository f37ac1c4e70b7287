"""Random durable programs. A program is data, so that it can be made smaller and printed.

A body is a list of operations, `[name, ...]`. Some operations contain bodies, which run in durable
jobs, plain jobs or handlers. Equal inputs are frequent. No result depends on the order of tasks, so
every execution must end alike, whichever process is killed. Operations that cancel others (a
quorum, a failure, a cancel) happen at different times, so their order is fixed. A program notes its
actions in `Disk.seen`, for the contracts in `random_program_checks.py`.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

from anabranch import Message, Node, ToolCall, handler, tool
from anabranch.commander import NodeCancelled, Retry, quorum, settle
from anabranch.commander.durable import scope_here, scope_of
from anabranch.handlers import call_tools, respond
from anabranch.jobs import Job
from anabranch.messages import Conversation, Request
from anabranch.store import Done, Durable, DurableCalls, Journal, Live, NotDone, effect_key, live
from anabranch.store.errors import JournalError
from anabranch.testing import ScriptedBackend
from support.memory_journal import RUN_ID, act, current_disk

__all__ = ["KINDS", "LIVE", "SECRET", "TOOLS", "Body", "Walk", "program", "send_signals"]

Body = list[Any]

SECRET = "sk-never-written"
LIVE = {"secret": SECRET}
COPIES = 4  # of each signal: one for each attempt that takes it


# --- the nodes that play bodies


class Walk(Durable[Any]):
    body: Any
    how: Any = None
    secret: Live[str] = live()

    def __post_init__(self) -> None:
        self.at_done(note_end)
        if self.how and "after" in self.how:
            self.at_end(put_round)

    async def task(self) -> Any:
        note("body")
        self.gave = await play_walk(self, self.body, self.how or {})
        return self.gave


class PlainWalk(Job[Any]):
    body: Any
    how: Any = None

    async def task(self) -> Any:
        return await play_walk(self, self.body, self.how or {})


@handler
async def walk(node: Node[Any], body: Body, how: Any = None) -> Any:
    return await play_walk(node, body, how or {})


KINDS: dict[str, Any] = {"durable": Walk, "job": PlainWalk, "handler": walk}


async def play_walk(node: Node[Any], body: Body, how: dict[str, Any]) -> list[Any]:
    results = await play_body(node, body)
    if scope_here().attempt < how.get("tries", 1):  # type: ignore[union-attr]
        raise KeyError("once more")
    if how.get("fails"):
        raise ValueError(json.dumps(results))
    return results


def put_round(job: Any) -> None:
    job.put_job(Walk(job.how["after"]), parent=job.commander)


def note(what: str) -> None:
    """Note an action of the current node, with the number of rows at this moment."""
    _note(what, scope_here())


def note_end(job: Any) -> None:
    _note("end", scope_of(job))


def _note(what: str, scope: Any) -> None:
    disk = current_disk()
    disk.seen.append((what, len(disk.rows.get(RUN_ID, ())), scope))


def put(node: Node[Any], below: Node[Any], **options: Any) -> Node[Any]:
    call: Any = node.put_job if below._node_is_queued else node.call_handler
    call(below, **options)
    _note("put", scope_of(below))
    return below


async def end_of(below: Any) -> Any:
    """Return a node's result; a durable node must return a decoded copy, not its body's object."""
    given = await below
    assert given is not getattr(below, "gave", None)
    return given


# --- the operations


async def play_body(node: Node[Any], body: Body) -> list[Any]:
    """Perform the operations in order; return the list of their results."""
    results: list[Any] = []
    later: list[Node[Any]] = []
    for place, (name, *arguments) in enumerate(body):
        if name == "later":
            kind, below = arguments
            later.append(put(node, KINDS[kind](below), claim=True))
        else:
            results.append(await OPERATIONS[name](node, str(place), *arguments))
    return [*results, *[await end_of(each) for each in later]]


def unkeyed(text: str) -> str:
    # Below a retried node, equal effects differ only in their inputs, so any of them may match.
    return text.split("#")[0] if scope_here().is_retried else text  # type: ignore[union-attr]


async def do_act(node: Node[Any], place: str, value: int) -> str:
    return unkeyed(await act("act", value))


async def do_fail(node: Node[Any], place: str, value: int) -> None:
    with suppress(ValueError):  # a call in doubt that reconciles as done does not fail
        await act("fail", value, fails=f"no {value}")


async def add_one(value: int) -> int:
    note("body")
    await asyncio.sleep(0)
    return value + 1


def double(value: int) -> int:
    return 2 * value


async def do_step(node: Node[Any], place: str, value: int) -> int:
    return await DurableCalls(node).step(add_one, value)


async def do_thread(node: Node[Any], place: str, value: int) -> int:
    return await DurableCalls(node).step(double, value)


def echo(value: Any) -> Any:
    return value


async def stays(node: Node[Any], place: str, value: Any) -> bool:
    """Return whether a value equals the one that the first execution recorded at this place."""
    said = f"said {value}"
    return said == await DurableCalls(node).step(echo, said, key=f"{place} stays")


async def do_random(node: Node[Any], place: str) -> bool:
    return await stays(node, place, DurableCalls(node).random())


async def do_now(node: Node[Any], place: str) -> bool:
    return await stays(node, place, DurableCalls(node).now().isoformat())


async def do_sleep(node: Node[Any], place: str, seconds: float) -> None:
    await DurableCalls(node).sleep(seconds)


async def do_pause(node: Node[Any], place: str, turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def do_nap(node: Node[Any], place: str, seconds: float) -> None:
    await asyncio.sleep(seconds)  # runs again in each execution


async def do_signal(node: Node[Any], place: str, name: str) -> str:
    return await DurableCalls(node).signal(name, str)


async def do_silence(node: Node[Any], place: str, seconds: float) -> str:
    try:
        return await DurableCalls(node).signal("never sent", str, timeout=seconds)
    except TimeoutError:
        return "silence"


async def do_talk(node: Node[Any], place: str, name: str, count: int) -> list[str]:
    talk = DurableCalls(node).conversation(name)
    for number in range(count):
        talk.add(f"{name} {number}")
        await asyncio.sleep(0)
    return [str(message.content) for message in talk]


async def do_table(node: Node[Any], place: str, value: int) -> int:
    async with DurableCalls(node).transaction() as tx:
        await tx.execute("create table if not exists paid (value)")
        await tx.execute("insert into paid values (?)", value)
        rows = await tx.execute("select ?", value)
    return rows[0][0]


def answers(request: Request) -> Message | str:
    """Answer as a model without repetitions; call tools if the user's message asks for it."""
    last = request.messages[-1]
    if last.role == "user" and "act" in str(last.content):
        calls = [ToolCall(id=f"c{n}", name="mail", arguments={"n": 1}) for n in range(2)]
        return Message(role="assistant", content=f"said {next(SAID)}", tool_calls=calls)
    return f"said {next(SAID)}"


SAID = itertools.count()


async def do_ask(node: Node[Any], place: str, question: str) -> list[Any]:
    talk = Conversation()
    talk.add(question)
    backend = ScriptedBackend(otherwise=answers)
    reply = await node.call_handler(respond(backend, talk, TOOLS))
    given = [unkeyed(str(each.content)) for each in talk if each.role == "tool"]
    return [given, await stays(node, place, reply.content)]


async def find(n: int, *, effect_key: str) -> Done | NotDone:
    done = current_disk().done
    return Done(done[effect_key]) if effect_key in done else NotDone()


@tool(reconcile=find, reconcile_after=0)
async def mail(n: int) -> str:
    await asyncio.sleep(0)
    return current_disk().do(effect_key(), f"mail({n})")


@tool(effect="keyed")
async def keyed(n: int) -> str:
    return current_disk().do(effect_key(), f"keyed({n})", again=True)


@tool(read_only=True)
async def look(n: int) -> str:
    return f"saw {n}"


@tool(reconcile=find, reconcile_after=0)
async def broken(n: int) -> str:
    raise ValueError(f"broken {n}")


TOOLS = [mail, keyed, look, broken]


async def calls_of(group: list[Any]) -> AsyncIterator[ToolCall]:
    for index, (name, n) in enumerate(group):
        yield ToolCall(id=f"c{index}", name=name, arguments={"n": n}, index=index)


async def do_tools(node: Node[Any], place: str, group: list[Any]) -> list[Any]:
    results = await node.call_handler(call_tools(calls_of(group), TOOLS))
    return [unkeyed(str(each.content)) for each in results]


# --- operations with bodies


async def do_below(node: Node[Any], place: str, kind: str, body: Body) -> Any:
    return await end_of(put(node, KINDS[kind](body)))


async def do_keyed(node: Node[Any], place: str, kind: str, body: Body) -> Any:
    return await end_of(put(node, KINDS[kind](body), key=f"{place} key"))


async def do_left(node: Node[Any], place: str, kind: str, body: Body) -> None:
    put(node, KINDS[kind](body))


async def do_settle(node: Node[Any], place: str, kind: str, *bodies: Body) -> list[Any]:
    ended = await settle(*[KINDS[kind](body) for body in bodies])
    for each in ended:
        if isinstance(each, Exception):
            raise each
    return ended


async def do_race(node: Node[Any], place: str, kind: str, *bodies: Body) -> list[str]:
    below = [asyncio.ensure_future(put(node, KINDS[kind](body))) for body in bodies]
    for each in below:  # so that asyncio logs no unretrieved failure
        each.add_done_callback(lambda task: task.cancelled() or task.exception())
    return sorted([json.dumps(await each) for each in asyncio.as_completed(below)])


async def do_retry(node: Node[Any], place: str, kind: str, body: Body) -> Any:
    return await end_of(put(node, KINDS[kind](body, {"tries": 2}), retry=AGAIN))


AGAIN = Retry(attempts=2, on=KeyError, backoff=0.1, jitter=0)


async def do_caught(node: Node[Any], place: str, kind: str, body: Body) -> str:
    try:
        return await put(node, KINDS[kind](body, {"fails": True}), claim=True)
    except ValueError as error:
        return str(error)


async def do_rounds(node: Node[Any], place: str, body: Body, after: Body) -> Any:
    return await end_of(put(node, Walk(body, {"after": after})))


# --- operations that cancel others; each of their bodies begins with a different sleep


async def told(below: Node[Any]) -> Any:
    try:
        return await end_of(below)
    except NodeCancelled as error:
        return f"cancelled {error.reason}"


@handler
async def group(node: Node[Any], kind: str, bodies: list[Body], fails: int) -> list[Any]:
    """Run all bodies; the one at index `fails` fails, or none of them for -1."""
    hows = [{"fails": number == fails} for number in range(len(bodies))]
    below = [KINDS[kind](body, how) for body, how in zip(bodies, hows, strict=True)]
    for each in below:
        put(node, each, claim=fails < 0)
    return [await told(each) for each in below] if fails < 0 else []


async def do_quorum(node: Node[Any], place: str, kind: str, *bodies: Body) -> Any:
    return await put(node, group(kind, [*bodies], -1), policy=quorum(1))


async def do_break(node: Node[Any], place: str, kind: str, *bodies: Body) -> Any:
    try:
        return await put(node, group(kind, [*bodies], 0), claim=True)
    except ValueError as error:
        return str(error)


async def do_collect(node: Node[Any], place: str, kind: str, *bodies: Body) -> Any:
    try:
        return await put(node, group(kind, [*bodies], 0), claim=True, policy="collect")
    except ExceptionGroup as error:
        return [str(each) for each in error.exceptions]


async def do_cancel(node: Node[Any], place: str, seconds: float, kind: str, body: Body) -> Any:
    below = put(node, KINDS[kind](body), claim=True)
    await DurableCalls(node).sleep(seconds)
    below.cancel("not needed")
    return await told(below)


async def do_limit(node: Node[Any], place: str, seconds: float, kind: str, body: Body) -> Any:
    try:
        return await put(node, KINDS[kind](body), claim=True, timeout=seconds)
    except TimeoutError:
        return "too late"


OPERATIONS: dict[str, Callable[..., Any]] = {
    name.removeprefix("do_"): each for name, each in [*globals().items()] if name[:3] == "do_"
}


# --- running programs


def program(body: Body) -> Callable[[], Walk]:
    return lambda: Walk(body)


def signals_of(body: Any) -> list[str]:
    """Return the names of the signals that a body waits for."""
    if not isinstance(body, list):
        return []
    if body[:1] == ["signal"]:
        return [body[1]]
    return [name for each in body for name in signals_of(each)]


def send_signals(body: Body) -> Callable[[Journal], Any]:
    """Return a function that sends a run the signals it still needs.

    It does not repeat signals that the inbox already has from an earlier execution.
    """

    async def send(journal: Journal) -> None:
        await journal.start(Walk(body, secret=SECRET), run_id=RUN_ID)
        sent = [each.name for each in await journal._file.letters(RUN_ID)]
        for name in signals_of(body):
            for number in range(sent.count(name), COPIES):
                with suppress(JournalError):  # the run has ended without receiving all signals
                    await journal.signal(RUN_ID, name, f"{name} {number}")

    return send
