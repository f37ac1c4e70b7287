"""Match the effects and cancels of this execution with the recorded ones.

A new effect may be a recorded one that an edit of the code has moved to another node or renamed. So
it is held while such a recorded effect can still be replayed. If that one cannot be replayed any
more, the run is parked before anything is done.

Code that has not changed is never parked. All that a recorded effect waited for is recorded too, so
its caller reaches it again without the help of any new effect. A lock is the exception: this time
the new effect may have acquired it first. Where only locks block everything, the new effect runs.

A node whose cancel is recorded does nothing and ends when it is cancelled again. If it ended at
once, a parent that waits for the first of several would take another course than before.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from ..commander import ConfigurationError, Node, current_node
from ..commander.durable import is_in_side_task, scope_of
from ..commander.waiting import lend_slot, nodes_awaited_by
from ._json import digest
from ._unreplayed import SHORT_DIGITS, Intent, caller_in

if TYPE_CHECKING:
    from ._scope import NodeScope
    from ._state import JournalState

__all__ = ["EffectMatch", "end_again"]

POLL_SECONDS = 0.01
MAX_POLL_SECONDS = 0.25
WARNING_SECONDS = 30.0  # for which an effect is held before the log says so
LATE_FACTOR = 2.0  # times as long as before, after which a recorded cancel is not waited for

logger = logging.getLogger("anabranch.store")

Outlook: TypeAlias = Literal["past", "coming", "lost"]
"""Its part does not run again; it is still to come; the code does not make it any more."""


# --- which effect a call is


class EffectMatch:
    """The effect that a call of a node is, in each attempt and each execution.

    It is identified by its ordinal among equal calls of the node, in any attempt. If no attempt has
    made that call before, it takes over one with the same name and inputs that an earlier attempt
    below the same durable or retried node has begun, and that this attempt does not make again.
    That is recorded, so that each execution does the same. A `harmless` call belongs to its
    attempt. A call with a `key` is identified by that alone, below its root.
    """

    def __init__(
        self, caller: NodeScope, name: str, text: str, *, harmless: bool, key: str | None
    ) -> None:
        self.caller = caller
        self.stable = key
        self._ledger = caller.ledger
        self._name = name
        self._text = text
        self._aside = is_in_side_task()
        self._inputs = digest(text).hex()[:SHORT_DIGITS]
        # For the next attempt: the calls that it is one of, and its attempt.
        self.shared: dict[str, str] = {}
        # Its identity in this attempt alone, while it may still take over another call.
        self._here: bytes | None = None
        self.ident = self._identify(harmless) if key is None or harmless else self._find(key)
        self._ledger.claimed.add(self.ident)

    def _identify(self, harmless: bool) -> bytes:
        caller, ledger, name, text = self.caller, self._ledger, self._name, self._text
        number = caller.number(f"effect {name} {text}", aside=is_in_side_task())
        here = digest(caller.now, "effect", name, text, number)
        if harmless:
            return here
        mine = digest(caller.free_now, "effect", name, text, number)
        if caller.free_before is not None:
            before = digest(caller.free_before, "effect", name, text, number)
            intent = ledger.find(before, "intent")
            if intent is not None and (
                caller_in(json.loads(intent.value)) == caller.now.hex()
                or ledger.find(mine, "intent") is None
            ):
                mine = before
        if not caller.retried:
            return mine
        holder = caller.holder
        attempt, of = (
            each.hex()[:SHORT_DIGITS] for each in (holder.now, digest(holder.free, name, text))
        )
        self.shared = {"of": of, "in": attempt}
        if (row := ledger.find(here, "takes")) is not None:
            return bytes.fromhex(json.loads(row.value)["effect"])
        if ledger.intents.taken_over.get(mine) == attempt:
            return here
        ledger.intents.taken_over[mine] = attempt
        if mine not in ledger.intents.begun[of] and self._left():
            self._here = here
        return mine

    def _left(self) -> list[bytes]:
        """Return the equal calls of earlier attempts that this one has not made so far."""
        attempt, taken = self.shared["in"], self._ledger.intents.taken_over
        begun = self._ledger.intents.begun[self.shared["of"]].items()
        return [each for each, by in begun if by != attempt and taken.get(each) != attempt]

    def _find(self, key: str) -> bytes:
        """Return its identity by its key; refuse a key that another call of these attempts has."""
        caller, ledger = self.caller, self._ledger
        caller.number(f"key {key}", key, what="calls of tools")
        above = [*caller.up()]
        root = next(scope for scope in above if scope.is_root or scope.parent is None)
        ident = digest(root.free, "key", key)
        before = ledger.keyed.get(ident)
        if before and all(scope.attempt == attempt for scope, attempt in before):
            raise ConfigurationError(f"the key {key!r} is given to two calls of tools in one run")
        ledger.keyed[ident] = [(scope, scope.attempt) for scope in above]
        what = f"effect {self._name} {self._text}"
        if (row := ledger.find(ident, "takes")) is not None:
            found = bytes.fromhex(json.loads(row.value)["effect"])
        elif ledger.find(ident, "intent") is not None:
            return ident
        else:  # an earlier version of the code may have made this call without a key
            number, _ = (caller._counts or {}).get(what, (0, None))
            found = digest(caller.free_now, "effect", self._name, self._text, number)
            if ledger.find(found, "intent") is None:
                return ident
            ledger.record(ident, "takes", {"effect": found.hex(), "in": ""})
        caller.number(what)  # it still counts among those without a key
        return found

    async def settle(self) -> None:
        """Take over a call of an earlier attempt, once this attempt does not make it itself."""
        here, self._here = self._here, None
        if here is None:
            return
        ledger, holder = self._ledger, _caller_node(self.caller.holder)

        def decide() -> bool:
            return not self._left() or holder is None or holder in _Stuck(ledger)

        if await _hold(ledger, decide) and (left := self._left()):
            self.ident, attempt = left[0], self.shared["in"]
            ledger.intents.taken_over[self.ident] = attempt
            ledger.claimed.add(self.ident)
            ledger.record(here, "takes", {"effect": self.ident.hex(), "in": attempt})

    async def wait_for_unreplayed(self) -> None:
        """Hold a new effect while a recorded one that it may be can still be replayed.

        Raises `JournalMismatch` if that one cannot be replayed any more.
        """
        ledger, by = self._ledger, self.caller.now.hex()

        def left() -> list[Intent]:
            return [
                each
                for each in ledger.intents.like(by, self._name, self._inputs)
                if each.ident not in ledger.claimed and (self.stable is None or each.key is None)
            ]

        if not left():
            return
        here = _caller_node(self.caller)

        def decide() -> bool:
            stuck = _Stuck(ledger)
            outlooks = [(each, _outlook(ledger, each, self.caller, here, stuck)) for each in left()]
            for each, outlook in outlooks:
                if outlook == "lost":
                    raise ledger.mismatch(self._describe(each, here))
            return all(outlook == "past" for _, outlook in outlooks)

        def warn() -> None:
            if waiting := left():
                why = self._describe(waiting[0], here)
                logger.warning("the run %r waits: %s so far", ledger.run_id, why)

        timer = ledger.loop.call_later(WARNING_SECONDS, warn)
        try:
            await _hold(ledger, decide)
        finally:
            timer.cancel()

    def _describe(self, intent: Intent, here: Node[Any] | None) -> str:
        same = "the same inputs" if intent.inputs == self._inputs else "other inputs"
        path, where = self._ledger.intents.path(intent.by), ""
        if found := self._ledger.intents.put_on(path):
            node, now = found[0]
            below = [each for _, each in path].index(now)  # how many nodes were below it
            between = "/..." if below > 1 else ""
            where = f" at {node.path}{f'{between}/{intent.at}' if below else ''}"
        return (
            f"{(here or current_node()).path} would call {self._name!r}, but the journal has a call"
            f" of {intent.name!r} with {same}{where} (row {intent.seq}), which the code does not"
            " make again"
        )

    def intent(self) -> dict[str, Any]:
        """Return the JSON of the row that is written before the effect is called."""
        by = self._ledger.intents.name_caller(self.caller)
        value: dict[str, Any] = {"by": by, "name": self._name}
        if led := self._count_led(len(by.split())):
            value["led"] = led
            unseen = [scope.first_unseen() for scope in islice(self.caller.up(), led)]
            if any(unseen):
                value["unseen"] = unseen
        if self.stable is not None:
            value["key"] = self.stable
        at = (_caller_node(self.caller) or current_node())._node_name
        return {**value, "inputs": self._inputs, "at": at}

    def _count_led(self, most: int) -> int:
        """Return how many nodes, from the caller up, led to it by their own tasks."""
        count = 0
        for scope in () if self._aside else self.caller.up():
            count += 1
            if scope.aside or count == most:
                break
        return count

    def attempt(self) -> str:
        """Return what tells this attempt of the caller from others."""
        if self.stable is None:
            return self.caller.now.hex()
        # Wherever the call has moved: the attempts of all nodes above it that had more than one.
        return " ".join(str(each.attempt) for each in self.caller.up() if each.attempt > 1)


def _caller_node(caller: NodeScope) -> Node[Any] | None:
    """Return the node of this scope, at or above the running node."""
    node: Node[Any] | None = current_node()
    while node is not None and scope_of(node) is not caller:
        node = node.parent
    return node


def _outlook(
    ledger: JournalState, intent: Intent, caller: NodeScope, here: Node[Any] | None, stuck: _Stuck
) -> Outlook:
    if intent.ident in ledger.intents.lost:
        return "lost"
    path = ledger.intents.path(intent.by)
    if not path:  # of an earlier release: only its own caller is known
        if here is None or intent.by != caller.now.hex():
            return "past"
        return _outlook_below(here, stuck)
    if not ledger.runs_again(path):
        return "past"
    found = ledger.intents.put_on(path)
    if not found:
        return "past"
    for node, now in found:
        scope: Any = scope_of(node)
        skipped = scope.is_recorded or scope.skips or scope.cancel_reason is not None
        if skipped or scope.in_attempt.hex() != now:
            return "past"
    return _outlook_below(found[0][0], stuck)


def _outlook_below(node: Node[Any], stuck: _Stuck) -> Outlook:
    """Return whether a node still reaches what it did; it is the last that was put again."""
    if node.state == "completed":
        return "lost"
    if node.state in ("failed", "cancelled") or (node.state == "joining" and node.error):
        return "past"
    return "lost" if node in stuck else "coming"


# --- what waits for the replay


@lend_slot()
async def _hold(ledger: JournalState, decide: Callable[[], bool]) -> bool:
    """Wait until `decide()` is true; return False if all of the run waits for locks."""
    while True:
        # Other tasks first reach the points at which they wait.
        future = ledger.loop.create_future()
        timer = ledger.loop.call_later(POLL_SECONDS, future.set_result, None)
        ledger.held.add(future)
        try:
            await future
        finally:
            ledger.held.discard(future)
            timer.cancel()
        if decide():
            return True
        stuck = _Stuck(ledger, locks=True)
        if all(root in stuck for root in ledger.roots.running.values()):
            return False


async def end_again(scope: NodeScope, node: Node[Any]) -> None:
    """Wait until `node` is cancelled; cancel it if nothing else lets its parent go on.

    If the node that decided it runs again, wait as long as that may take, as timers cannot be
    foreseen. The other nodes of the same decision are cancelled together with it.
    """
    ledger, pause = scope.ledger, POLL_SECONDS
    decision = ledger.doomed[node] = ledger.cancelled[scope.ident]
    if not scope.is_root and ledger.runs_again(decision.by):
        await asyncio.sleep(ledger.start + LATE_FACTOR * decision.after + 1 - ledger.loop.time())
    while not (scope.is_root or node.parent is None or node.parent in _Stuck(ledger, doomed=True)):
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_POLL_SECONDS)
    for each in [each for each, why in ledger.doomed.items() if why == decision]:
        each.cancel(decision.reason)
    await asyncio.get_running_loop().create_future()


def _will_give_up(node: Node[Any], waiter: Node[Any]) -> bool:
    """Return whether the body of `waiter` still gives up its wait for `node`, as it did before."""
    scope, around = (cast("NodeScope | None", scope_of(each)) for each in (node, waiter))
    wait = None if scope is None else scope.given_up
    if scope is None or around is None or wait is None or wait["by"] != around.now.hex():
        return False
    return scope.ledger.loop.time() <= scope.ledger.start + LATE_FACTOR * wait["after"] + 1


class _Stuck:
    """The nodes that cannot go on until a held effect does.

    With `doomed`, also nodes that wait to be cancelled again; with `locks`, those that wait for a
    lock.
    """

    def __init__(self, ledger: JournalState, *, doomed: bool = False, locks: bool = False) -> None:
        self._known = dict.fromkeys(ledger.doomed if doomed else (), True)
        self._futures = ledger.held
        self._locks = locks

    def __contains__(self, node: object) -> bool:
        if node not in self._known:
            self._find(cast("Node[Any]", node))
        return self._known[cast("Node[Any]", node)]

    def _find(self, node: Node[Any]) -> None:
        """Find out about a node and all that it waits for; no recursion, as chains are long."""
        stack = [node]
        seen: set[Node[Any]] = set()
        moving: list[Node[Any]] = []
        waiters: defaultdict[Node[Any], list[Node[Any]]] = defaultdict(list)
        while stack:
            each = stack.pop()
            if each in seen:
                continue
            seen.add(each)
            if each in self._known:
                below = list[Node[Any]]() if self._known[each] else None
            elif each.state == "joining":
                below = list(each.children)
            else:
                below = nodes_awaited_by(each, self._futures, locks=self._locks)
                if below and any(_will_give_up(other, each) for other in below):
                    below = None
            if below is None:
                moving.append(each)
                continue
            stack += below
            for other in below:
                waiters[other].append(each)
        while moving:
            self._known[moving[-1]] = False
            moving += [each for each in waiters.pop(moving.pop(), ()) if each not in self._known]
        for each in seen:  # nodes that wait in a circle are stuck
            self._known.setdefault(each, True)
