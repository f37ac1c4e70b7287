"""The puppets of `tree_world.py`: nodes whose bodies obey commands, one step at a time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anabranch.commander import Node, NodeCancelled, NodeClosed, QuorumNotMet, Retry, quorum
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import pause
from support.broken_objects import ERRORS, Closed, Nameless, retry_predicate
from support.clock import sleep_virtual

if TYPE_CHECKING:
    from support.tree_world import World

Operation = tuple[str, int, int, int]

DONE = ("completed", "failed", "cancelled")
MOMENTS = ("end", "exception", "terminate", "done")
POLICIES = ("fail_fast", "fail_fast", "collect", "isolate", quorum(1), quorum(2))
STYLES = ("obey", "obey", "slow", "swallow", "fail", "put")


class Told(Exception):
    """An error with a unique number, which one body or callback raises once."""


# Subclasses with all oddities that an exception can have.
ODD_KINDS = [
    type(f"Told{name}", (kind, Told), {})
    for name, kind in ERRORS.items()
    if isinstance(kind, type) and kind not in (Closed, Nameless)  # pytest itself fails on these
]

FAILED = (Told, ExceptionGroup, TimeoutError, QuorumNotMet)
FAILURES = (*FAILED, NodeCancelled)


class PuppetJob(Job[Any]):
    def __init__(self, part: Part) -> None:  # like a class that does not call super's
        self.part = part

    async def task(self) -> Any:
        return await self.part.play()


@handler
async def puppet(node: Node[Any], part: Part) -> Any:
    return await part.play()


class Part:
    """The model's state of one node."""

    def __init__(self, world: World, number: int, a: int, b: int, parent: Part | None) -> None:
        self.world = world
        self.number = number
        self.parent = parent
        self.children: list[Part] = []
        self.is_job = a % 2 == 0
        self.style = STYLES[a // 2 % len(STYLES)]
        self.claim = a // 12 % 4 == 3
        self.priority = a // 48 % 3 - 1 if self.is_job else 0
        self.policy = POLICIES[b % len(POLICIES)]
        self.doomed = False
        self.timeout = (1, 3)[b // 6 % 2] if world.hurry else (None, None, None, 1, 3)[b // 6 % 5]
        self.retry = (None, None, None, Retry(attempts=2), Retry(attempts=3, backoff=2))[
            b // 30 % 5
        ]
        self.undecided = world.faults and a % 7 == 0
        if self.retry is not None and world.faults:
            answer = "Mute" if self.undecided else "true"
            self.retry = replace(self.retry, on=retry_predicate(answer))
        self.node: Node[Any] = PuppetJob(self) if self.is_job else puppet(self)
        self.inbox: deque[Operation] = deque()
        self.bell: asyncio.Future[None] | None = None
        self.put_turn = self.start_turn = -1
        self.attempts = 0
        self.parent_attempt = 0
        # Whether it was put before its parent's attempt began.
        self.early = False
        self.attempt_began = 0.0
        self.in_body = False
        self.outcome: tuple[str, Any] = ("never", None)
        self.waits: list[Node[Any]] = []
        # The turns that it has queued, and the turns since its body could have resumed.
        self.queued_turns = self.resuming_turns = 0
        # The number of nodes that awaited it at its end, and of all that ever got its failure.
        self.takers = self.receivers = 0
        # Whether any node awaited it before its end, successfully or not.
        self.awaited = False
        # The nodes that returned it. They take over its failure.
        self.adopters: list[Part] = []
        self.closing = False
        # Whether its task was cancelled directly, without the tree.
        self.killed = False
        self.must_cancel = False
        self.last_state = "pending"
        self.added: list[tuple[str, str]] = []
        self.ran: list[str] = []
        self.starts: list[int] = []
        self.kept = 0
        self.callback_errors: list[BaseException] = []
        self.recovered_from: list[BaseException | None] = []
        self.recovered_with: Any = None
        self.final_error: BaseException | None = None
        for moment in MOMENTS:
            self.add_callback(moment, 0)

    def __repr__(self) -> str:
        return f"{self.node!r}"

    # --- its body

    async def play(self) -> Any:
        self.begin()
        try:
            value = await self.obey_commands()
            self.outcome = ("returned", value)
        except asyncio.CancelledError:
            return await self.meet_cancellation()
        except BaseException as error:
            self.outcome = ("raised", error)
            raise
        else:
            return value
        finally:
            self.in_body = False

    def begin(self) -> None:
        expect = self.world.expect
        expect(not self.in_body, f"{self} runs twice at once")
        for above in self.node.ancestors:
            record = record_of(above)
            late = record.cancel_reason is not None and not self.starts
            expect(not late, f"{self} begins below {above}, which is cancelled")
        self.attempts += 1
        for child in self.children:
            late = child.node.state not in DONE and child.parent_attempt < self.attempts
            expect(not late, f"{self} began again while {child} was alive")
        self.attempt_began = self.world.loop.time()
        self.in_body = True
        if self.start_turn < 0:
            self.start_turn = self.world.turn

    async def meet_cancellation(self) -> Any:
        self.outcome = ("cancelled", None)
        if self.style == "swallow":
            self.outcome = ("returned", "swallowed")
            return "swallowed"
        if self.style == "slow":
            await pause(3)
        if self.style == "put":
            self.world.put(self, 0, 0)
        if self.style == "fail":
            raise self.world.error(self)
        raise asyncio.CancelledError

    async def next_command(self) -> Operation:
        while not self.inbox:
            if self.world.finishing:
                return ("return", 0, 0, 0)
            self.bell = asyncio.get_running_loop().create_future()
            await self.bell
        return self.inbox.popleft()

    def ring(self) -> None:
        if self.bell is not None and not self.bell.done():
            self.bell.set_result(None)

    async def obey_commands(self) -> Any:
        world = self.world
        while True:
            name, a, b, c = await self.next_command()
            match name:
                case "return":
                    return self.number * 1000 + a
                case "fail":
                    raise world.error(self)
                case "return_new":
                    child = world.make(self, a, b)
                    return child.node if child else None
                case "return_other":
                    other = world.pick(a)
                    if not world.would_circle(other, self):
                        self.waits.append(other.node)
                        other.awaited = True
                        other.adopters.append(self)
                        return other.node
                case "await":
                    await self.await_part(world.pick(a), b)
                case "await_new":
                    child = world.make(self, a, b)
                    if child:
                        await self.await_part(child, c)
                case "await_two":
                    await self.await_both(world.pick(a), world.pick(b))
                case "run":
                    await self.run_new(a, b, c)
                case "put":
                    world.put(self, a, b)
                case "sleep":
                    await sleep_virtual(a % 3)
                case "raise_cancelled":
                    raise asyncio.CancelledError
                case "cancel_self":
                    self.node.cancel("itself")
                case "cancel_up":
                    above = self.node.parent
                    if above is not None and above.parent is not None:
                        above.cancel("from below")
                case _:
                    raise AssertionError(name)

    async def await_part(self, other: Part, mode: int) -> None:
        try:
            await self.world.await_node(other, self)
        except FAILURES:
            if mode % 3 == 0:
                raise

    async def await_both(self, first: Part, second: Part) -> None:
        waits = (self.world.await_node(part, self) for part in (first, second))
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def run_new(self, a: int, b: int, c: int) -> None:
        part = self.world.prepare(None, a, b)
        if part is None:
            return
        part.claim, part.priority = True, 0
        self.waits.append(part.node)
        try:
            value = await self.world.commander.run(
                part.node, timeout=part.timeout, retry=part.retry, policy=part.policy
            )
            self.world.expect(
                part.node.state == "completed" or value == "out", f"run gave {value} for {part}"
            )
        except NodeClosed:
            self.world.forget(part)
        except FAILED:
            part.takers += part.node.state == "failed"
            if c % 3 == 0:
                raise
        except NodeCancelled:
            part.receivers += 1
        finally:
            self.waits.remove(part.node)

    # --- its callbacks

    def add_callback(self, moment: str, kind: int) -> None:
        label = f"{moment}{len(self.added)}"
        callback = self.make_callback(moment, label, kind % 12)
        getattr(self.node, f"at_{moment}")(callback)
        self.added.append((moment, label))

    def make_callback(self, moment: str, label: str, kind: int) -> Callable[[Any], Any]:
        def enter(node: Node[Any]) -> None:
            expect = self.world.expect
            expect(node is self.node, f"a callback of {self} was given {node}")
            expect(node.state == "joining", f"{self} is {node.state} in its callback")
            expect(not node.children, f"{self} has children in its callback")
            expect(not self.in_body, f"{self} has a callback beside its body")
            for child in self.children:
                expect(child.node.state in DONE, f"{child} ends after its parent {self}")
            self.closing = True
            self.ran.append(label)

        def plain(node: Node[Any]) -> None:
            enter(node)
            if kind == 1:
                raise self.world.error(self, self.callback_errors)
            if kind == 2 and moment == "exception":
                self.recover(node, label)
            if kind == 3:
                self.world.put_beside(self)
            if kind == 4:
                node.cancel("in its own callback")
            if kind == 5 and len(self.added) < 20:
                self.add_callback("done", 0)

        async def later(node: Node[Any]) -> None:
            enter(node)
            await pause(3)
            if kind == 7:
                raise self.world.error(self, self.callback_errors)
            if kind == 8 and moment == "exception" and node.error is not None:
                self.recover(node, label)
            if kind == 9:
                with suppress(*FAILURES):
                    await self.world.await_node(self.world.pick(self.number * 7), self)
            if kind > 9:
                await self.outlast_timeouts(node)

        return plain if kind < 6 else later

    async def outlast_timeouts(self, node: Node[Any]) -> None:
        """Take longer than any timeout, in a phase that the node's timeout does not limit."""
        try:
            await sleep_virtual(5)
        except asyncio.CancelledError:
            cut = self.killed or record_of(node).cancel_reason is not None
            self.world.expect(cut, f"a final callback of {self} was cut short, but not {self}")
            raise

    def recover(self, node: Node[Any], value: object) -> None:
        if node.error is None or issubclass(type(node.error), NodeCancelled):
            return
        self.recovered_from.append(node.error)
        self.recovered_with = value
        node.recover(value)

    def add_start(self, kind: int) -> None:
        async def start(node: Node[Any]) -> None:
            self.world.expect(not self.in_body, f"{self} has a start callback beside its body")
            self.starts.append(self.attempts)
            if kind % 5 == 1:
                await pause(3)
            if kind % 5 == 2:
                raise self.world.error(self)
            if kind % 5 == 3:
                node.cancel("at its start")
            if kind % 5 == 4:
                await sleep_virtual(2)

        (self.node.at_retry if kind // 5 % 2 else self.node.at_start)(start)

    def add_end(self) -> None:
        def at_end(node: Node[Any]) -> None:
            self.world.expect(node.state in DONE, f"{self} is {node.state} at the commander's end")
            self.kept += 1

        self.node.at_commander_end(at_end)
        self.kept -= 1
