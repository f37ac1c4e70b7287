"""The completion order of durable nodes, which every execution repeats: that of their rows.

Code that waits for the first of several sees which of them have ended by then. So the ends of one
parent's nodes are kept apart, in the first execution as in each later one: whoever waits for one of
them goes on before the next one ends. Only a crowd ends together, and the journal says so.
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

__all__ = ["PAUSE", "Endings", "until_awaited"]

DONE = ("completed", "failed", "cancelled")

# Turns of the loop between two ends where others can tell one from the next, besides one for each
# task that only hands on the first: what waits for the first of several goes on before the next.
TURNS = 5
# Turns before an end of which nobody hears yet: tasks that are made together with the nodes come to
# await them in that time, through one another.
START = 10
# Nodes that end one by one; of more that wait at once, all end together. It bounds the delay.
CROWD = 32
# Seconds in which a failure that was awaited before is awaited again, and the pauses meanwhile. It
# would make the parent fail if it came before the parent awaits it.
AWAITED_WITHIN, PAUSE = 5.0, 0.01
SLACK = 0.1  # seconds by which a timer may seem to have run out too early
LATE = 2.0  # times as long as it took before, after which a wait is not given up any more
AT_ONCE = 500  # nodes that end in one turn of the loop
# Turns in which none ends as the parent's body is about to go on. It bounds the delay where the
# body never waits.
MOVES = 100


async def until_awaited(node: Node[Any], goes_on: Callable[[], bool] = lambda: True) -> None:
    """Wait until somebody awaits `node`; not for ever, and no longer than `goes_on` says so."""
    loop = asyncio.get_running_loop()
    turns, late = 5 * START, loop.time() + AWAITED_WITHIN
    while goes_on() and may_be_awaited(node) and loop.time() < late:
        turns -= 1
        await asyncio.sleep(0 if turns > 0 else PAUSE)


def _scope(node: Node[Any]) -> NodeScope:
    return cast("NodeScope", scope_of(node))


class Endings:
    """The nodes that one node has put and that are to end: of an earlier row first."""

    def __init__(self, parent: NodeScope) -> None:
        self._parent = parent
        self._loop = parent.ledger.loop
        # Whether bodies that begin wait, as ends of earlier executions are still to be repeated.
        self.replays = False
        # How many of those that wait have their outcome from an earlier execution.
        self._recorded = 0
        # End a node of an earlier execution, and one of this: the engine gives them with each node.
        self._end_recorded: Callable[[Node[Any]], None]
        self._end_own: Callable[[Node[Any]], None]
        # The nodes, and the numbers of the rows of their outcomes. Two lists, and not one of pairs,
        # which the garbage collector would have to go through.
        self._waiting: deque[Node[Any]] = deque()
        self._numbers: deque[int] = deque()
        # Whether they stand in the order of their rows, as they do if they were put as before.
        self._sorted = True
        # Whether the loop calls `_end_some`.
        self._called = False
        # Whether a recorded one waits, and it was not looked whether there are others beside it.
        self._is_first = False
        # For how many more turns they wait.
        self._turns = 0
        # The failure that nobody awaited in time; and what waits for that.
        self._given_up: Node[Any] | None = None
        self._holding: asyncio.Task[None] | None = None
        # The `gather` that alone awaited the last one: it cannot tell another of its own from that.
        self._gather: object | None = None
        # The wait at which the putter's body stood in this turn.
        self._seen: BodyWait | None = None
        # For how many turns none has ended, as the parent's body was about to go on.
        self._moved = 0
        # Those that have ended but for their final callbacks, with the numbers of their rows.
        self._closing: list[tuple[int, Node[Any]]] = []
        # What waits until nodes have ended, or their turns are over.
        self._sight: list[asyncio.Future[None]] = []
        # The waits of bodies for the last of these nodes.
        self._waits: defaultdict[Node[Any], list[Wait]] = defaultdict(list)

    def add(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[Node[Any]], None]
    ) -> None:
        """Let `end(node)` be called in its turn, of a node that ended in an earlier execution."""
        if self._numbers:
            self._turns = START
        elif fails:
            self._turns = TURNS if would_fail_parent(node) else START
        else:
            self._is_first = True
        self.replays = True
        self._recorded += 1
        self._end_recorded = end
        self._push(number, node)

    def may_end(
        self, number: int, node: Node[Any], fails: bool, end: Callable[[Node[Any]], None]
    ) -> bool:
        """Say whether a node whose outcome is a row now may end; if not, `end(node)` is called."""
        if fails and would_fail_parent(node):
            return True  # nobody awaits it, and others are cut short at once
        if not (self._waiting or self._turns or self._is_held_back(node, number)):
            heard, timers = immediate_receiver(node), self._wait_of(node).timers
            if heard is not None and self._gather in (None, heard):
                self._note_callbacks(number, node)
                self._keep_apart(node if fails or timers else heard, node, count_relays(node))
                self._hold_back(timers)
                return True
            # Somebody may be about to await it; or what was told of the last one is to go on first.
            self._gather, self._turns = None, START if heard is None else TURNS
        self._end_own = end
        self._push(number, node)
        return False

    def failures(self) -> list[bytes]:
        """Return the identities of the nodes that have failed and are to end."""
        return [_scope(node).ident for node in self._waiting if self._fails(node)]

    def hold(self) -> None:
        """Let them wait, as other tasks may put more."""
        self._turns = START
        self._call()

    def first_unseen(self) -> int:
        """Return the number of the first row of a node that has not ended yet; 0 if there is none.

        Code that waits for the node has not gone on.
        """
        self._closing = [each for each in self._closing if each[1].state not in DONE]
        numbers = [*self._numbers, *(number for number, _ in self._closing)]
        return min(numbers, default=0)

    async def until_seen(self, number: int) -> None:
        """Wait until those before a row have ended, and who waited for them has gone on."""
        while self._turns or min(self._numbers, default=number) < number:
            future = LocalFuture(loop=self._loop)
            self._sight.append(future)
            await future

    async def over(self) -> None:
        """Wait until the recorded ones have ended, and who waited for them has gone on."""
        while self._recorded or self._turns:
            if not self._waiting:
                await asyncio.sleep(0)
                continue
            # In this wait a job lends its slot, which the parent may need to go on.
            wait = begin_wait(self._waiting[-1])
            self._waits[self._waiting[-1]].append(wait)
            await wait
        for _ in range(TURNS):
            await asyncio.sleep(0)
        if not self._recorded:
            self.replays = False  # who begins later has nobody to wait for

    def _is_held_back(self, node: Node[Any], number: int) -> bool:
        """Say whether a node must not end in this turn, even if no other one waits to end."""
        early = _scope(node).given_up is not None or self._is_ahead(node, number)
        return early or is_parent_waiting_for_slot(node) or self._wait_of(node).goes_on

    def _wait_of(self, node: Node[Any]) -> BodyWait:
        """Return the wait at which the body stands that has put `node`.

        It is looked at once in a turn, however many end then, while the body stays there.
        """
        putter = putter_of(node)
        if putter is None:
            return NO_WAIT
        seen = self._seen
        if seen is None or seen.task is not body_task(putter) or not seen.lasts:
            if seen is None:
                self._loop.call_soon(self._forget_wait)
            seen = self._seen = body_wait(putter)
        return seen

    def _forget_wait(self) -> None:
        self._seen = None

    def _push(self, number: int, node: Node[Any]) -> None:
        if self._numbers and self._numbers[-1] > number:
            self._sorted = False
        self._numbers.append(number)
        self._waiting.append(node)
        self._call()

    def _call(self) -> None:
        if not self._called:
            self._called = True
            self._loop.call_soon(self._end_some)

    def _keep_apart(self, told: object, node: Node[Any], relays: int) -> None:
        """Let the next one wait until whoever was told of this end has gone on."""
        if told is node or self._waiting:
            self._gather = None
            self._turns = TURNS + relays
            self._call()
        else:
            self._gather = told

    def _hold_back(self, timers: list[asyncio.TimerHandle]) -> None:
        """Let no timer of the parent's body call back before the body has seen the last end."""
        if timers and self._turns:
            self._turns = max(self._turns, START)
            for each in timers:
                postpone(each, lambda: self._turns > 0)

    def _note_callbacks(self, number: int, node: Node[Any]) -> None:
        if has_final_callbacks(node):
            self._closing.append((number, node))

    def _end_some(self) -> None:
        """End the next ones; if that fails, the run does, as nodes would be left pending."""
        try:
            self._end_next()
        except Exception as error:  # noqa: BLE001 - nobody calls this but the loop
            self._parent.ledger.fail(error)
        finally:
            sight, self._sight = self._sight, []
            for future in sight:
                if not future.done():
                    future.set_result(None)
                self._call()

    def _end_next(self) -> None:
        """End the next ones; other tasks go on in between.

        Of two that are awaited already the second waits: the first may have decided something. What
        one `gather` awaits ends at once, up to one that fails: nobody can tell one from the next.
        """
        self._called = False
        if self._is_first:
            self._is_first = False
            node = self._waiting[0]
            if not self._turns and immediate_receiver(node) is None and has_siblings(node):
                self._turns = START
        if self._turns:
            self._turns -= 1
            if self._turns or self._waiting:
                self._call()
            return
        if self._waiting and is_parent_waiting_for_slot(self._waiting[0]):
            self._let_parent_go_on(self._waiting[0])
            return
        timers: list[asyncio.TimerHandle] = []
        if self._waiting:
            wait = self._wait_of(self._waiting[0])
            timers = wait.timers
            self._moved = self._moved + 1 if wait.goes_on else 0
            if wait.goes_on and self._moved < MOVES:
                self._call()
                return
        waiting, numbers, told, last = self._waiting, self._numbers, None, None
        first: int | None = None
        together: int | None = None
        relays = 0
        try:
            for ended in range(min(len(waiting), AT_ONCE)):
                if not self._sorted:
                    self._sort()
                node, number = waiting[0], numbers[0]
                if self._is_early(node, number):
                    if not ended:
                        self._hold_first(node)
                    break
                first = number if first is None else first
                if (heard := immediate_receiver(node)) is not None:
                    if told is not None and told is not heard:
                        if together is None:
                            together = self._together(first, AT_ONCE - ended)
                        if number > together:
                            break
                    if told is not heard:
                        relays = max(relays, count_relays(node))
                    told = heard
                waiting.popleft()
                numbers.popleft()
                last = node
                for wait in self._waits.pop(node, ()):
                    if not wait.done():
                        wait.set_result(None)
                _scope(node).stray()
                self._note_callbacks(number, node)
                if number <= self._parent.ledger.before:
                    self._recorded -= 1
                    self._end_recorded(node)
                else:
                    self._end_own(node)
                if heard is not None and node.state != "completed":
                    told = node
        finally:
            if last is not None:
                self._moved = 0
            if told is not None and last is not None:
                self._keep_apart(last if timers else told, last, relays)
                self._hold_back(timers)
            if waiting:
                self._call()

    def _fails(self, node: Node[Any]) -> bool:
        scope = _scope(node)
        kept = scope.kept_as
        return (kept[1] if kept else scope.outcome and scope.outcome.kind) == "failure"

    def _is_early(self, node: Node[Any], number: int) -> bool:
        """Say whether a node is not to end yet, as something came before in an earlier execution.

        It was awaited before it failed, a wait for it was given up, or its putter's wait timed out.
        """
        scope = _scope(node)
        if node is self._given_up:
            return False
        return scope.given_up is not None or self._is_ahead(node, number) or self._fails_early(node)

    def _fails_early(self, node: Node[Any]) -> bool:
        """Say whether a recorded failure that was awaited is not awaited yet in this execution."""
        row = _scope(node).outcome
        return (
            row is not None
            and row.kind == "failure"
            and may_be_awaited(node)
            and was_awaited(row.value)
        )

    def _is_ahead(self, node: Node[Any], number: int) -> bool:
        """Say whether the putter may still time out of a wait, as it did before a node ended.

        It did if it comes to an effect that was begun before the row with the node's outcome, and
        so long after the one before that the timer may have run out meanwhile.
        """
        if (took := self._parent.leads_on(number)) is None:
            return False
        putter = putter_of(node)
        seconds = None if putter is None else body_timeout(putter)
        return seconds is not None and seconds <= took + SLACK

    def _hold_first(self, node: Node[Any]) -> None:
        """Let no more end until `node` may, or until another one is put that ended before."""

        async def hold() -> None:
            scope, number = _scope(node), self._numbers[0]
            if scope.given_up is None:
                await self._until_timed_out(node, number)
                if self._fails_early(node):
                    await until_awaited(node, lambda: self._sorted)
            while self._sorted and (wait := scope.given_up) is not None and is_putter_running(node):
                if self._loop.time() > scope.ledger.start + LATE * wait["after"] + 1:
                    break
                await asyncio.sleep(PAUSE)
            if self._sorted:
                self._given_up = node

        self._hold(hold())

    async def _until_timed_out(self, node: Node[Any], number: int) -> None:
        """Wait while `_is_ahead`, for no effect longer than the putter may need to come to it."""
        took, late = None, 0.0
        while self._sorted and self._is_ahead(node, number):
            if took != (took := self._parent.leads_on(number)):
                late = self._loop.time() + LATE * (took or 0.0) + 1
            if self._loop.time() > late:
                break
            await asyncio.sleep(PAUSE)

    def _let_parent_go_on(self, node: Node[Any]) -> None:
        """Let no more end until the parent has its slot: it has not seen yet what has ended."""

        async def wait() -> None:
            await wait_for_parent_slot(node)
            self._turns = TURNS

        self._hold(wait())

    def _hold(self, wait: Coroutine[Any, Any, None]) -> None:
        """Let no more end until `wait` is over; if that fails, the run does."""

        async def hold() -> None:
            try:
                await wait
            except Exception as error:  # noqa: BLE001 - nobody awaits this task
                self._parent.ledger.fail(error)
            self._called = False
            self._call()

        self._called = True
        self._holding = self._loop.create_task(hold())

    def _together(self, first: int, most: int) -> int:
        """Return the number of the last row of the crowd that ends in this turn; 0 if none does.

        It begins with the row `first`, and at most so many of those that wait still belong to it.
        """
        ledger, numbers = self._parent.ledger, self._numbers
        if numbers[0] <= ledger.before:
            rows = ledger.every(self._parent.ident, "together")
            crowds: list[list[int]] = [json.loads(row.value) for row in rows]
            return max((end for begin, end in crowds if begin <= numbers[0] <= end), default=0)
        if len(numbers) <= CROWD:
            return 0
        crowd = [first, numbers[min(len(numbers), most) - 1]]
        if not ledger.suspended:
            with suppress(JournalError, LeaseLost):  # which stops the run
                ledger.append(self._parent.ident, "together", json.dumps(crowd).encode())
        return crowd[1]

    def _sort(self) -> None:
        pairs = sorted(zip(self._numbers, self._waiting, strict=True), key=itemgetter(0))
        self._sorted = True
        for each in self._numbers, self._waiting:
            each.clear()
        for number, node in pairs:
            self._numbers.append(number)
            self._waiting.append(node)
