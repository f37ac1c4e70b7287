"""Durable nodes end in the order of their rows in every execution.

Code that waits for the first of several nodes sees which of them have ended by then. So the ends of
one parent's nodes are kept apart, in the first execution as in each later one: the waiter of one
node continues before the next node ends. Only a crowd ends in one turn, and a row records that.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

from ..commander import Node
from ..commander.body_waits import (
    NO_WAIT,
    BodyWait,
    body_task,
    body_timeout,
    body_wait,
    count_relays,
    has_final_callbacks,
    has_siblings,
    immediate_receiver,
    is_parent_waiting_for_slot,
    is_putter_running,
    may_be_awaited,
    postpone,
    putter_of,
    wait_for_parent_slot,
    would_fail_parent,
)
from ..commander.durable import scope_of
from ..commander.waiting import LocalFuture, Wait, begin_wait
from ._failure import was_awaited
from .errors import JournalError, LeaseLost

if TYPE_CHECKING:
    from ._scope import NodeScope

__all__ = ["PAUSE_SECONDS", "CompletionOrder", "until_awaited"]

ENDED_STATES = ("completed", "failed", "cancelled")

# Turns of the loop between two ends that code can tell apart, plus one for each task that only
# relays the first end. So the waiter of the first node continues before the second node ends.
TURNS_BETWEEN_ENDS = 5
# Turns before an end that no node awaits yet. Tasks that were created together with the nodes
# begin to await them in that time, also through one another.
START_TURNS = 10
# Nodes that end one by one. If more wait at once, all end together, so the delay is bounded.
CROWD_NODES = 32
# How long a replayed failure waits until a node awaits it, as in the earlier execution, and the
# seconds between checks. Without a waiter it would make the parent fail.
AWAITED_SECONDS, PAUSE_SECONDS = 5.0, 0.01
TIMER_SLACK_SECONDS = 0.1  # a timer may fire this much earlier than recorded
LATE_FACTOR = 2.0  # times the recorded time; after that a wait is not expected to time out
MAX_ENDS_PER_TURN = 500  # so that a long replay does not block the loop
# The most turns to delay ends while the parent's body is about to continue, as it may never wait.
MAX_DELAYED_TURNS = 100


async def until_awaited(node: Node[Any], may_wait: Callable[[], bool] = lambda: True) -> None:
    """Wait until a node awaits `node`, for `AWAITED_SECONDS` and while `may_wait()` at most."""
    loop = asyncio.get_running_loop()
    turns, late = 5 * START_TURNS, loop.time() + AWAITED_SECONDS
    while may_wait() and may_be_awaited(node) and loop.time() < late:
        turns -= 1
        await asyncio.sleep(0 if turns > 0 else PAUSE_SECONDS)


def _scope(node: Node[Any]) -> NodeScope:
    return cast("NodeScope", scope_of(node))


class CompletionOrder:
    """Ends the nodes that one node has put, in the order of their rows."""

    def __init__(self, parent: NodeScope) -> None:
        self._parent = parent
        self._loop = parent.execution.loop
        # Whether bodies that begin must wait, as recorded ends are still to be repeated.
        self.replays = False
        # The number of waiting nodes whose outcome is from an earlier execution.
        self._recorded_count = 0
        # Functions of the engine that end a node of an earlier execution, and one of this.
        self._end_recorded: Callable[[Node[Any]], None]
        self._end_own: Callable[[Node[Any]], None]
        # The nodes that wait to end, and the row numbers of their outcomes. Two lists: the
        # garbage collector would have to traverse pairs.
        self._waiting: deque[Node[Any]] = deque()
        self._numbers: deque[int] = deque()
        # Whether they are in the order of their rows, which holds if they were put in that order.
        self._sorted = True
        # Whether the loop will call `_end_some`, or a task that holds the ends will.
        self._is_scheduled = False
        # Whether the first recorded node waits, and its siblings were not checked yet.
        self._is_first = False
        # For how many more turns all of them wait.
        self._turns = 0
        # The node that `_hold_task` has waited for: it ends now, even if `_is_early`.
        self._exempt: Node[Any] | None = None
        self._hold_task: asyncio.Task[None] | None = None
        # The `gather` that awaited the last node. It sees no order among the nodes that it awaits.
        self._gather: object | None = None
        # The wait of the putter's body in this turn.
        self._body_wait: BodyWait | None = None
        # For how many turns none has ended, as the parent's body was about to continue.
        self._delayed_turns = 0
        # Nodes that have ended except for their final callbacks, with the numbers of their rows.
        self._closing: list[tuple[int, Node[Any]]] = []
        # Futures of `until_seen`, which are set after each step.
        self._sight_futures: list[asyncio.Future[None]] = []
        # The waits of `until_replayed`, by the node that was then the last to end.
        self._waits: defaultdict[Node[Any], list[Wait]] = defaultdict(list)

    def add(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[Node[Any]], None]
    ) -> None:
        """Call `end(node)` in its turn, for a node that ended in an earlier execution."""
        if self._numbers:
            self._turns = START_TURNS
        elif fails:
            self._turns = TURNS_BETWEEN_ENDS if would_fail_parent(node) else START_TURNS
        else:
            self._is_first = True
        self.replays = True
        self._recorded_count += 1
        self._end_recorded = end
        self._push(number, node)

    def may_end(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[Node[Any]], None]
    ) -> bool:
        """Return whether a node with a recorded outcome may end now, else call `end` later."""
        if fails and would_fail_parent(node):
            return True  # it cancels its siblings at once, so no later end matters
        if not (self._waiting or self._turns or self._is_held_back(node, number)):
            own_waiter, timers = immediate_receiver(node), self._wait_of(node).timers
            if own_waiter is not None and self._gather in (None, own_waiter):
                self._note_callbacks(number, node)
                self._delay_next(node if fails or timers else own_waiter, node, count_relays(node))
                self._postpone_timers(timers)
                return True
            # A task may be about to await it, or the last waiter has to continue first.
            self._gather = None
            self._turns = START_TURNS if own_waiter is None else TURNS_BETWEEN_ENDS
        self._end_own = end
        self._push(number, node)
        return False

    def failures(self) -> list[bytes]:
        """Return the identities of the waiting nodes that have failed."""
        return [_scope(node).ident for node in self._waiting if self._fails(node)]

    def delay(self) -> None:
        """Delay the ends, as other tasks may put nodes that ended before."""
        self._turns = START_TURNS
        self._schedule()

    def first_unseen(self) -> int:
        """Return the number of the first recorded outcome whose node has not ended yet, or 0.

        The waiter of that node has not continued.
        """
        self._closing = [each for each in self._closing if each[1].state not in ENDED_STATES]
        numbers = [*self._numbers, *(number for number, _ in self._closing)]
        return min(numbers, default=0)

    async def until_seen(self, number: int) -> None:
        """Wait until the nodes before a row have ended and their waiters have continued."""
        while self._turns or min(self._numbers, default=number) < number:
            future = LocalFuture(loop=self._loop)
            self._sight_futures.append(future)
            await future

    async def until_replayed(self) -> None:
        """Wait until the recorded nodes have ended and their waiters have continued."""
        while self._recorded_count or self._turns:
            if not self._waiting:
                await asyncio.sleep(0)
                continue
            # During this wait a job lends its slot, which the parent may need to continue.
            wait = begin_wait(self._waiting[-1])
            self._waits[self._waiting[-1]].append(wait)
            await wait
        for _ in range(TURNS_BETWEEN_ENDS):
            await asyncio.sleep(0)
        if not self._recorded_count:
            self.replays = False  # bodies that begin later need not wait

    def _is_held_back(self, node: Node[Any], number: int) -> bool:
        """Return whether a node must not end in this turn, even if no other node waits."""
        early = _scope(node).given_up is not None or self._is_ahead(node, number)
        return early or is_parent_waiting_for_slot(node) or self._wait_of(node).goes_on

    def _wait_of(self, node: Node[Any]) -> BodyWait:
        """Return the current wait of the body that has put `node`.

        It is computed once in a turn, however many nodes end then, while the body stays there.
        """
        putter = putter_of(node)
        if putter is None:
            return NO_WAIT
        wait = self._body_wait
        if wait is None or wait.task is not body_task(putter) or not wait.lasts:
            if wait is None:
                self._loop.call_soon(self._forget_wait)
            wait = self._body_wait = body_wait(putter)
        return wait

    def _forget_wait(self) -> None:
        self._body_wait = None

    def _push(self, number: int, node: Node[Any]) -> None:
        if self._numbers and self._numbers[-1] > number:
            self._sorted = False
        self._numbers.append(number)
        self._waiting.append(node)
        self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._end_some)

    def _delay_next(self, waiter: object, node: Node[Any], relays: int) -> None:
        """Delay the next end until the waiter of this one has continued."""
        if waiter is node or self._waiting:
            self._gather = None
            self._turns = TURNS_BETWEEN_ENDS + relays
            self._schedule()
        else:
            self._gather = waiter

    def _postpone_timers(self, timers: list[asyncio.TimerHandle]) -> None:
        """Postpone the timers of the parent's body until the body has seen the last end."""
        if timers and self._turns:
            self._turns = max(self._turns, START_TURNS)
            for each in timers:
                postpone(each, lambda: self._turns > 0)

    def _note_callbacks(self, number: int, node: Node[Any]) -> None:
        if has_final_callbacks(node):
            self._closing.append((number, node))

    def _end_some(self) -> None:
        """End the next nodes; an error stops the run, as nodes would stay pending."""
        try:
            self._end_next()
        except Exception as error:  # noqa: BLE001 - only the loop calls this
            self._parent.execution.fail(error)
        finally:
            futures, self._sight_futures = self._sight_futures, []
            for future in futures:
                if not future.done():
                    future.set_result(None)
                self._schedule()

    def _end_next(self) -> None:
        """End the next nodes, with turns for other tasks in between.

        The second of two awaited nodes waits, as the first end may change what the waiter does. All
        nodes that one `gather` awaits end in one turn, up to one that fails: it sees no order.
        """
        self._is_scheduled = False
        if self._is_first:
            self._is_first = False
            node = self._waiting[0]
            if not self._turns and immediate_receiver(node) is None and has_siblings(node):
                self._turns = START_TURNS
        if self._turns:
            self._turns -= 1
            if self._turns or self._waiting:
                self._schedule()
            return
        if self._waiting and is_parent_waiting_for_slot(self._waiting[0]):
            self._let_parent_go_on(self._waiting[0])
            return
        timers: list[asyncio.TimerHandle] = []
        if self._waiting:
            wait = self._wait_of(self._waiting[0])
            timers = wait.timers
            self._delayed_turns = self._delayed_turns + 1 if wait.goes_on else 0
            if wait.goes_on and self._delayed_turns < MAX_DELAYED_TURNS:
                self._schedule()
                return
        waiting, numbers, waiter, last = self._waiting, self._numbers, None, None
        first: int | None = None
        crowd_end: int | None = None
        relays = 0
        try:
            for ended in range(min(len(waiting), MAX_ENDS_PER_TURN)):
                if not self._sorted:
                    self._sort()
                node, number = waiting[0], numbers[0]
                if self._is_early(node, number):
                    if not ended:  # else a later turn does, after the waiters of these ends
                        self._hold_first(node)
                    break
                first = number if first is None else first
                if (own_waiter := immediate_receiver(node)) is not None:
                    if waiter is not None and waiter is not own_waiter:
                        if crowd_end is None:
                            crowd_end = self._find_crowd_end(first, MAX_ENDS_PER_TURN - ended)
                        if number > crowd_end:
                            break
                    if waiter is not own_waiter:
                        relays = max(relays, count_relays(node))
                    waiter = own_waiter
                waiting.popleft()
                numbers.popleft()
                last = node
                for wait in self._waits.pop(node, ()):
                    if not wait.done():
                        wait.set_result(None)
                _scope(node).stray()
                self._note_callbacks(number, node)
                if number <= self._parent.execution.last_recorded:
                    self._recorded_count -= 1
                    self._end_recorded(node)
                else:
                    self._end_own(node)
                if own_waiter is not None and node.state != "completed":
                    waiter = node  # a failure ends a `gather`, which then sees this end alone
        finally:
            if last is not None:
                self._delayed_turns = 0
            if waiter is not None and last is not None:
                self._delay_next(last if timers else waiter, last, relays)
                self._postpone_timers(timers)
            if waiting:
                self._schedule()

    def _fails(self, node: Node[Any]) -> bool:
        scope = _scope(node)
        own = scope.own_outcome
        return (own[1] if own else scope.outcome and scope.outcome.kind) == "failure"

    def _is_early(self, node: Node[Any], number: int) -> bool:
        """Return whether something recorded before its end is still missing in this execution.

        The node was awaited before it failed, a wait for it timed out, or its putter's wait did.
        """
        scope = _scope(node)
        if node is self._exempt:
            return False
        return scope.given_up is not None or self._is_ahead(node, number) or self._fails_early(node)

    def _fails_early(self, node: Node[Any]) -> bool:
        """Return whether a recorded failure was awaited and is not awaited yet."""
        row = _scope(node).outcome
        return (
            row is not None
            and row.kind == "failure"
            and may_be_awaited(node)
            and was_awaited(row.value)
        )

    def _is_ahead(self, node: Node[Any], number: int) -> bool:
        """Return whether the putter's wait may still time out, as it did before the node ended.

        It did if the putter still has to reach an effect that began before the node's outcome was
        recorded, and so long after the effect before that the timer may have fired in between.
        """
        if (took := self._parent.leads_on(number)) is None:
            return False
        putter = putter_of(node)
        seconds = None if putter is None else body_timeout(putter)
        return seconds is not None and seconds <= took + TIMER_SLACK_SECONDS

    def _hold_first(self, node: Node[Any]) -> None:
        """Hold all ends until `node` may end, or until a node is put that ended before it."""

        async def hold() -> None:
            scope, number = _scope(node), self._numbers[0]
            if scope.given_up is None:
                await self._until_timed_out(node, number)
                if self._fails_early(node):
                    await until_awaited(node, lambda: self._sorted)
            while self._sorted and (wait := scope.given_up) is not None and is_putter_running(node):
                if self._loop.time() > scope.execution.started_at + LATE_FACTOR * wait["after"] + 1:
                    break
                await asyncio.sleep(PAUSE_SECONDS)
            if self._sorted:
                self._exempt = node

        self._hold(hold())

    async def _until_timed_out(self, node: Node[Any], number: int) -> None:
        """Wait while `_is_ahead`, but for each effect at most twice the recorded time."""
        took, late = None, 0.0
        while self._sorted and self._is_ahead(node, number):
            if took != (took := self._parent.leads_on(number)):
                late = self._loop.time() + LATE_FACTOR * (took or 0.0) + 1
            if self._loop.time() > late:
                break
            await asyncio.sleep(PAUSE_SECONDS)

    def _let_parent_go_on(self, node: Node[Any]) -> None:
        """Hold all ends until the parent has its slot: it has not seen the last end yet."""

        async def wait() -> None:
            await wait_for_parent_slot(node)
            self._turns = TURNS_BETWEEN_ENDS

        self._hold(wait())

    def _hold(self, wait: Coroutine[Any, Any, None]) -> None:
        """Hold all ends until `wait` is over; an error of it stops the run."""

        async def hold() -> None:
            try:
                await wait
            except Exception as error:  # noqa: BLE001 - this task is not awaited
                self._parent.execution.fail(error)
            self._is_scheduled = False
            self._schedule()

        self._is_scheduled = True
        self._hold_task = self._loop.create_task(hold())

    def _find_crowd_end(self, first: int, most: int) -> int:
        """Return the number of the last row of the crowd that ends in this turn, or 0.

        The crowd begins with the row `first`, and has at most `most` of the waiting nodes.
        """
        execution, numbers = self._parent.execution, self._numbers
        if numbers[0] <= execution.last_recorded:
            rows = execution.find_all(self._parent.ident, "together")
            crowds: list[list[int]] = [json.loads(row.value) for row in rows]
            return max((end for begin, end in crowds if begin <= numbers[0] <= end), default=0)
        if len(numbers) <= CROWD_NODES:
            return 0
        crowd = [first, numbers[min(len(numbers), most) - 1]]
        if not execution.suspended:
            with suppress(JournalError, LeaseLost):  # it has stopped the run
                execution.append(self._parent.ident, "together", json.dumps(crowd).encode())
        return crowd[1]

    def _sort(self) -> None:
        pairs = sorted(zip(self._numbers, self._waiting, strict=True), key=itemgetter(0))
        self._sorted = True
        for each in self._numbers, self._waiting:
            each.clear()
        for number, node in pairs:
            self._numbers.append(number)
            self._waiting.append(node)
