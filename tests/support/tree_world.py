"""A tree of puppets, which a program of small steps drives on a seeded loop, with a record of it.

A program is a list of `(name, a, b, c)`. Any numbers choose valid nodes and options, so every list
is a program, and so is each shorter one. `tree_checks.py` contains the invariants.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any
from unittest.mock import patch

from anabranch.commander import (
    Commander,
    Node,
    NodeCancelled,
    NodeClosed,
    _cancel,
    current_node,
)
from anabranch.commander._record import record_of
from anabranch.commander._report import describe
from anabranch.testing import SeededLoop
from support.broken_objects import FACTORIES, broken_log, plain
from support.clock import sleep_virtual
from support.tree_puppet import DONE, FAILURES, MOMENTS, ODD_KINDS, Operation, Part, Told
from support.waiting import run_turns, settle_loop

# The factories that run bodies are five times as frequent as those that break them.
ODD_FACTORIES = [*FACTORIES.values()] + 5 * [
    FACTORIES[name] for name in ("plain", "old", "pure", "wrapping", "eager", "inner", "deaf")
]


class CheckedLoop(SeededLoop):
    """A loop that lets the world check the tree before every turn."""

    on_turn: Callable[[], None] = staticmethod(lambda: None)

    def _run_once(self) -> None:
        self.on_turn()
        super()._run_once()  # type: ignore[misc]


class World:
    """One execution of one program."""

    def __init__(
        self,
        program: list[Operation],
        seed: int,
        *,
        limit: int | None = None,
        policy: Any = None,
        ending: int = 0,
        listen: bool = False,
        faults: bool = False,
        hurry: bool = False,
        sweep: int = 500,
    ) -> None:
        self.program = program
        self.loop = CheckedLoop(seed, turns=20_000)
        self.limit = limit
        self.policy = policy or "isolate"
        self.ending = ending
        self.listen = listen
        # Whether each step draws broken exceptions, predicates, log handlers and task factories.
        self.faults = faults
        # Whether all nodes have a timeout.
        self.hurry = hurry
        # The number of nodes that one turn cancels.
        self.sweep = sweep
        self.commander: Commander = None  # type: ignore[assignment]
        self.parts: list[Part] = []
        self.errors: list[tuple[Told, Part, int]] = []
        self.records: list[logging.LogRecord] = []
        self.violations: list[str] = []
        self.waiters: list[asyncio.Task[None]] = []
        self.futures: list[tuple[Part, concurrent.futures.Future[Any]]] = []
        self.finishing = False
        self.exited = False
        self.turn = 0
        # The jobs that wait for a slot, and the number of turns they have waited with one free.
        self.waiting: list[Part] = []
        self.idle_turns = 0
        self.made = 0
        self.events: Any = None
        self.block_error: BaseException | None = None
        self.unhandled: list[dict[str, Any]] = []
        self.tasks_left: set[asyncio.Task[Any]] = set()

    def expect(self, condition: object, message: str) -> None:
        if not condition:
            self.violations.append(message)

    def error(self, part: Part, callbacks: list[BaseException] | None = None) -> Told:
        kind = self.loop.random.choice(ODD_KINDS) if self.faults else Told
        error = kind(len(self.errors))
        self.errors.append((error, part, part.attempts))
        if callbacks is not None:
            callbacks.append(error)
        return error

    # --- choosing and adding nodes

    def pick(self, a: int) -> Part:
        placed = [part for part in self.parts if part.node.parent is not None]
        live = [part for part in placed if part.node.state not in DONE]
        chosen = live if live and a % 5 else placed
        return chosen[a // 5 % len(chosen)]

    def prepare(self, parent: Part | None, a: int, b: int) -> Part | None:
        if len(self.parts) >= 60:
            return None
        part = Part(self, self.made, a, b, parent)
        self.made += 1
        self.parts.append(part)
        if parent is not None:
            parent.children.append(part)
            state = parent.node.state
            # A child that is put during the start callbacks belongs to the attempt they precede.
            waiting = state == "pending" or (state == "running" and not parent.in_body)
            part.parent_attempt = parent.attempts + waiting
            part.early = waiting
            part.doomed = (
                record_of(parent.node).cancel_reason is not None
                or record_of(parent.node).abort_error is not None
            )
        part.put_turn = self.turn
        return part

    def forget(self, part: Part) -> None:
        self.parts.remove(part)
        if part.parent is not None:
            part.parent.children.remove(part)

    def put(self, parent: Part | None, a: int, b: int) -> Part | None:
        return self._place(self.prepare(parent, a, b), parent)

    make = put

    def put_beside(self, part: Part) -> None:
        self._place(self.prepare(part.parent, part.number, 0), part.parent, by=part.node)

    def _place(
        self, part: Part | None, parent: Part | None, by: Node[Any] | None = None
    ) -> Part | None:
        if part is None:
            return None
        owner = self.commander if parent is None else parent.node
        closed = self.exited if parent is None else parent.closing or parent.node.state in DONE
        options: dict[str, Any] = {"parent": owner, "timeout": part.timeout, "retry": part.retry}
        options |= {"policy": part.policy, "claim": part.claim}
        if part.is_job:
            options["priority"] = part.priority
        try:
            put = by or owner
            (put.put_job if part.is_job else put.call_handler)(part.node, **options)
        except NodeClosed:
            self.expect(closed or _puts_nothing(), f"{parent} refused a child")
            self.forget(part)
            return None
        if closed and parent is None:
            part.doomed = True  # a new round in a tree that closes is cancelled at once
            closed = not record_of(part.node).never_runs
        self.expect(not closed, f"{parent} is done and took {part}")
        return part

    # --- waiting

    def would_circle(self, other: Part, me: Part | None) -> bool:
        """Return whether `other` cannot end before `me` does, so that a wait would deadlock."""
        if me is None:
            return False
        by_node = {part.node: part for part in self.parts}
        seen: set[int] = set()
        stack = [other]
        while stack:
            part = stack.pop()
            if part is me:
                return True
            if part.number in seen or part.node.state in DONE:
                continue
            seen.add(part.number)
            stack += part.children
            stack += [by_node[node] for node in part.waits if node in by_node]
        return False

    async def await_node(self, other: Part, me: Part | None) -> None:
        above = [] if me is None else [me.node, *me.node.ancestors]
        if other.node in above and other.node.state not in DONE:
            await self._await_refused(other)
            return
        if self.would_circle(other, me):
            return
        alive = other.node.state not in DONE
        other.awaited |= alive
        if me is not None:
            me.waits.append(other.node)
        try:
            value = await other.node
        except asyncio.CancelledError:
            raise
        except NodeCancelled as error:
            own = other.node.state == "cancelled" or error is other.node.error
            self.expect(own, f"{other}, awaited, gave {error!r}")
            other.receivers += 1
            raise
        except BaseException as error:
            self.expect(
                other.node.state == "failed" and error is other.node.error,
                f"{other}, awaited, gave {describe(error)} and not its own failure",
            )
            other.takers += alive or other.claim
            other.receivers += 1
            raise
        finally:
            if me is not None:
                me.waits.remove(other.node)
        self.expect(other.node.state == "completed", f"{other}, awaited, gave {value!r}")
        self.expect(value == other.node.result, f"{other}, awaited, gave another's result")

    async def _await_refused(self, other: Part) -> None:
        try:
            await other.node
        except RuntimeError:
            return
        self.expect(False, f"{other} was awaited from below")

    # --- execution

    def play(self) -> None:
        self.loop.on_turn = self._on_turn
        self.loop.set_exception_handler(lambda _, context: self.unhandled.append(context))
        handler = _Recorder(self.records)
        logger = logging.getLogger("anabranch")
        logger.addHandler(handler)
        propagate, logger.propagate = logger.propagate, False
        if self.faults:
            self.loop.set_task_factory(self._make_task)
        try:
            per_turn = patch.object(_cancel, "NODES_PER_TURN", self.sweep)
            with per_turn, broken_log() if self.faults else nullcontext():
                self.loop.run_until_complete(self._main())
        finally:
            logger.removeHandler(handler)
            logger.propagate = propagate

    def _make_task(self, loop: Any, body: Any, **options: Any) -> Any:
        driver = body.__name__ in ("_drive", "_run_rest")  # all others are tasks of this world
        factory = self.loop.random.choice(ODD_FACTORIES) if driver else plain
        return factory(loop, body, **options)

    def close(self) -> None:
        """Close the loop, also after a failure."""
        self.loop.on_turn = lambda: None
        for task in asyncio.all_tasks(self.loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        self.loop.close()

    def _on_turn(self) -> None:
        from support.tree_checks import check_turn

        self.turn += 1
        check_turn(self)

    async def _main(self) -> None:
        before = asyncio.all_tasks()
        block = asyncio.ensure_future(self._block())
        await asyncio.wait((block,))
        for waiter in self.waiters:
            await asyncio.wait((waiter,))
        await settle_loop()
        self.tasks_left = asyncio.all_tasks() - before - {block, *self.waiters}
        if not block.cancelled():
            self.block_error = block.exception()
        else:
            self.block_error = asyncio.CancelledError()

    async def _block(self) -> None:
        host = asyncio.current_task()
        assert host is not None
        options = {"max_concurrency": self.limit, "policy": self.policy, "slow_after": None}
        async with Commander(**options) as self.commander:
            if self.listen:
                self.events = self.commander.events(capacity=100_000)
            try:
                self.put(None, 1, 0)
                for operation in self.program:
                    await self.do(*operation)
                await asyncio.sleep(0)
            finally:
                self._let_finish()
            await self._end(host)

    def _let_finish(self) -> None:
        self.finishing = True
        for part in self.parts:
            part.ring()

    async def _end(self, host: asyncio.Task[Any]) -> None:
        match self.ending:
            case 1:
                raise Told("out of the block")
            case 2:
                self.loop.call_soon(host.cancel)
            case 3:
                self.exited = True
                await self.commander.drain(2)
            case 4:
                self.exited = True
                self.commander.exit("out")
            case 5:
                self.loop.call_later(1, host.cancel)
                self.loop.call_later(2, host.cancel)
            case _:
                pass

    async def do(self, name: str, a: int, b: int, c: int) -> None:
        """Execute one step of the program."""
        if name in COMMANDS:
            part = self.pick(a)
            part.inbox.append((name, b, c, a))
            part.ring()
            return
        match name:
            case "turns":
                await run_turns(a % 5)
            case "time":
                await sleep_virtual((0.5, 1, 2, 4)[a % 4])
            case "new":
                self.put(None if a % 4 == 0 else self.pick(a), b, c)
            case "cancel":
                self.pick(a).node.cancel("told")
            case "kill":
                self._kill([self.pick(a)])
            case "kill_all":
                self._kill(self.parts)
            case "watch":
                self.waiters.append(asyncio.ensure_future(self._watch(self.pick(a))))
            case "unwatch":
                if self.waiters:
                    self.waiters[a % len(self.waiters)].cancel()
            case "future":
                self._put_threadsafe(a, b, c)
            case "drop":
                if self.futures:
                    self.futures[a % len(self.futures)][1].cancel()
            case _:
                self._decorate(name, self.pick(a), b, c)

    def _kill(self, parts: list[Part]) -> None:
        for part in parts:
            task = record_of(part.node).task
            if task is not None:
                part.killed = True
                task.cancel()

    def _decorate(self, name: str, part: Part, b: int, c: int) -> None:
        if name == "exit":
            self.exited = True
            self.commander.exit("out")
        elif part.node.state in DONE:
            return
        elif name == "callback":
            part.add_callback(MOMENTS[b % 4], c)
        elif name == "start":
            if part.attempts == 0 and part.node.state == "pending":
                part.add_start(b)
        elif name == "end":
            part.add_end()

    async def _watch(self, part: Part) -> None:
        with suppress(*FAILURES, asyncio.CancelledError):
            await self.await_node(part, None)

    def _put_threadsafe(self, a: int, b: int, c: int) -> None:
        part = self.prepare(None, b, c)
        if part is None:
            return
        part.claim, part.priority = True, 0
        put = (
            self.commander.put_job_threadsafe
            if part.is_job
            else (self.commander.call_handler_threadsafe)
        )
        future = put(part.node, timeout=part.timeout, retry=part.retry, policy=part.policy)
        self.futures.append((part, future))


def _puts_nothing() -> bool:
    try:
        return record_of(current_node()).never_runs
    except LookupError:
        return False


class _Recorder(logging.Handler):
    def __init__(self, records: list[logging.LogRecord]) -> None:
        super().__init__()
        self.records = records

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


COMMANDS = (
    "return",
    "fail",
    "return_new",
    "return_other",
    "await",
    "await_new",
    "await_two",
    "run",
    "put",
    "sleep",
    "raise_cancelled",
    "cancel_self",
    "cancel_up",
)
STEPS = (
    "turns",
    "time",
    "new",
    "cancel",
    "kill",
    "kill_all",
    "watch",
    "unwatch",
    "future",
    "drop",
    "callback",
    "start",
    "end",
    "exit",
)
