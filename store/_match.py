"""Match the effects and cancels of this execution with the recorded ones.

A new effect may be a recorded one that an edit of the code has moved to another node or renamed. So
it is held while such a recorded effect can still be replayed. Once that one cannot be replayed any
more, the run is parked before the new effect is called.

A run whose code has not changed is never parked. Everything that a recorded effect waited for is
recorded too, so its caller reaches it again without any new effect. A lock is the exception: a new
effect may have acquired it first this time. If only locks block the run, the new effect is called.

A node whose cancel is recorded does nothing and ends when it is cancelled again. If it ended at
once, a parent that waits for the first of several nodes would take another course than before.
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
    from ._execution import Execution
    from ._scope import NodeScope

__all__ = ["EffectMatch", "end_again"]

HOLD_POLL_SECONDS = 0.01
MAX_CANCEL_POLL_SECONDS = 0.25
HOLD_WARNING_SECONDS = 30.0  # after which a warning names the effect that is held
LATE_FACTOR = 2.0  # times the recorded time, after which a cancel or timeout is not expected

logger = logging.getLogger("anabranch.store")

Outlook: TypeAlias = Literal["past", "coming", "lost"]
"""Of a recorded effect: its node does not run again; it may still be replayed; it cannot be."""


# --- which effect a call is


class EffectMatch:
    """Finds the effect that a call is, the same in each attempt and each execution.

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
        self._execution = caller.execution
        self._name = name
        self._text = text
        self._aside = is_in_side_task()
        self._inputs = digest(text).hex()[:SHORT_DIGITS]
        # Fields of its intent, for later attempts: the digest of equal calls, and its attempt.
        self.shared: dict[str, str] = {}
        # Its identity in this attempt only, while it may still take over another call.
        self._here: bytes | None = None
        self.ident = self._identify(harmless) if key is None or harmless else self._find(key)
        self._execution.reached.add(self.ident)

    def _identify(self, harmless: bool) -> bytes:
        caller, execution, name, text = self.caller, self._execution, self._name, self._text
        number = caller.number(f"effect {name} {text}", aside=is_in_side_task(), label=name)
        here = digest(caller.attempt_ident, "effect", name, text, number)
        if harmless:
            return here
        mine = digest(caller.base_attempt_ident, "effect", name, text, number)
        if caller.old_base_ident is not None:
            before = digest(caller.old_base_ident, "effect", name, text, number)
            intent = execution.find(before, "intent")
            if intent is not None and (
                caller_in(json.loads(intent.value)) == caller.attempt_ident.hex()
                or execution.find(mine, "intent") is None
            ):
                mine = before
        if not caller.is_retried:
            return mine
        holder = caller.effect_sharer
        attempt, of = (
            each.hex()[:SHORT_DIGITS]
            for each in (holder.attempt_ident, digest(holder.base_ident, name, text))
        )
        self.shared = {"of": of, "in": attempt}
        if (row := execution.find(here, "takes")) is not None:
            return bytes.fromhex(json.loads(row.value)["effect"])
        if execution.intents.takeovers.get(mine) == attempt:
            return here
        execution.intents.takeovers[mine] = attempt
        if mine not in execution.intents.attempts_by_call[of] and self._left():
            self._here = here
        return mine

    def _left(self) -> list[bytes]:
        """Return the equal calls of earlier attempts that this one has not made so far."""
        attempt, taken = self.shared["in"], self._execution.intents.takeovers
        begun = self._execution.intents.attempts_by_call[self.shared["of"]].items()
        return [each for each, by in begun if by != attempt and taken.get(each) != attempt]

    def _find(self, key: str) -> bytes:
        """Return its identity by its key; raise `ConfigurationError` for a second such call."""
        caller, execution = self.caller, self._execution
        caller.number(f"key {key}", key, label="calls of tools")
        above = [*caller.up()]
        root = next(scope for scope in above if scope.is_root or scope.parent is None)
        ident = digest(root.base_ident, "key", key)
        before = execution.keyed_callers.get(ident)
        if before and all(scope.attempt == attempt for scope, attempt in before):
            raise ConfigurationError(
                f"two calls of tools in one run have the key {key!r}: give each its own key"
            )
        execution.keyed_callers[ident] = [(scope, scope.attempt) for scope in above]
        what = f"effect {self._name} {self._text}"
        if (row := execution.find(ident, "takes")) is not None:
            found = bytes.fromhex(json.loads(row.value)["effect"])
        elif execution.find(ident, "intent") is not None:
            return ident
        else:  # an earlier version of the code may have made this call without a key
            number, _ = (caller._counts or {}).get(what, (0, None))
            found = digest(caller.base_attempt_ident, "effect", self._name, self._text, number)
            if execution.find(found, "intent") is None:
                return ident
            execution.record(ident, "takes", {"effect": found.hex(), "in": ""})
        caller.number(what)  # so that later calls without a key keep their ordinals
        return found

    async def settle(self) -> None:
        """Take over a call of an earlier attempt, once this attempt does not make it itself."""
        here, self._here = self._here, None
        if here is None:
            return
        execution, holder = self._execution, _caller_node(self.caller.effect_sharer)

        def decide() -> bool:
            return not self._left() or holder is None or holder in _Stuck(execution)

        if await _hold(execution, decide) and (left := self._left()):
            self.ident, attempt = left[0], self.shared["in"]
            execution.intents.takeovers[self.ident] = attempt
            execution.reached.add(self.ident)
            execution.record(here, "takes", {"effect": self.ident.hex(), "in": attempt})

    async def wait_for_unreplayed(self) -> None:
        """Hold a new effect while a recorded one that it may be can still be replayed.

        Raises `JournalMismatch` if that one cannot be replayed any more.
        """
        execution, by = self._execution, self.caller.attempt_ident.hex()

        def left() -> list[Intent]:
            return [
                each
                for each in execution.intents.find_candidates(by, self._name, self._inputs)
                if each.ident not in execution.reached and (self.stable is None or each.key is None)
            ]

        if not left():
            return
        here = _caller_node(self.caller)

        def decide() -> bool:
            stuck = _Stuck(execution)
            outlooks = [
                (each, _outlook(execution, each, self.caller, here, stuck)) for each in left()
            ]
            for each, outlook in outlooks:
                if outlook == "lost":
                    raise execution.park(self._describe(each, here))
            return all(outlook == "past" for _, outlook in outlooks)

        def warn() -> None:
            if waiting := left():
                why = self._describe(waiting[0], here)
                logger.warning("the run %r waits: %s so far", execution.run_id, why)

        timer = execution.loop.call_later(HOLD_WARNING_SECONDS, warn)
        try:
            await _hold(execution, decide)
        finally:
            timer.cancel()

    def _describe(self, intent: Intent, here: Node[Any] | None) -> str:
        same = "the same inputs" if intent.inputs == self._inputs else "other inputs"
        path, where = self._execution.intents.path(intent.by), ""
        if found := self._execution.intents.find_nodes(path):
            node, now = found[0]
            below = [each for _, each in path].index(now)  # the nodes between it and the call
            between = "/..." if below > 1 else ""
            where = f" at {node.path}{f'{between}/{intent.at}' if below else ''}"
        return (
            f"{(here or current_node()).path} would call {self._name!r}, but the journal has a call"
            f" of {intent.name!r} with {same}{where} (row {intent.seq}), which the code does not"
            " make again"
        )

    def intent(self) -> dict[str, Any]:
        """Return the JSON of the row that is written before the effect is called."""
        by = self._execution.intents.name_caller(self.caller)
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
        """Return how many nodes, from the caller up, reached it in the task of their body."""
        count = 0
        for scope in () if self._aside else self.caller.up():
            count += 1
            if scope.is_aside or count == most:
                break
        return count

    def attempt(self) -> str:
        """Return a text that differs between attempts of the caller."""
        if self.stable is None:
            return self.caller.attempt_ident.hex()
        # The call may have moved to another node: only the attempts above it count.
        return " ".join(str(each.attempt) for each in self.caller.up() if each.attempt > 1)


def _caller_node(caller: NodeScope) -> Node[Any] | None:
    """Return the node of this scope, at or above the running node."""
    node: Node[Any] | None = current_node()
    while node is not None and scope_of(node) is not caller:
        node = node.parent
    return node


def _outlook(
    execution: Execution, intent: Intent, caller: NodeScope, here: Node[Any] | None, stuck: _Stuck
) -> Outlook:
    if intent.ident in execution.intents.lost_effects:
        return "lost"
    path = execution.intents.path(intent.by)
    if not path:  # of an earlier release: only its own caller is known
        if here is None or intent.by != caller.attempt_ident.hex():
            return "past"
        return _outlook_below(here, stuck)
    if not execution.runs_again(path):
        return "past"
    found = execution.intents.find_nodes(path)
    if not found:
        return "past"
    for node, now in found:
        scope: Any = scope_of(node)
        skipped = scope.is_recorded or scope.returns_recorded or scope.cancel_reason is not None
        if skipped or scope.last_attempt_ident.hex() != now:
            return "past"
    return _outlook_below(found[0][0], stuck)


def _outlook_below(node: Node[Any], stuck: _Stuck) -> Outlook:
    """Return whether a node may still replay its effects; the nodes below it are not put yet."""
    if node.state == "completed":
        return "lost"
    if node.state in ("failed", "cancelled") or (node.state == "joining" and node.error):
        return "past"
    return "lost" if node in stuck else "coming"


# --- waits for the replay


@lend_slot()
async def _hold(execution: Execution, decide: Callable[[], bool]) -> bool:
    """Wait until `decide()` is true; return False if the whole run waits for locks."""
    while True:
        # Other tasks first reach their next wait, so that `decide` sees which nodes are stuck.
        future = execution.loop.create_future()
        timer = execution.loop.call_later(HOLD_POLL_SECONDS, future.set_result, None)
        execution.held_effects.add(future)
        try:
            await future
        finally:
            execution.held_effects.discard(future)
            timer.cancel()
        if decide():
            return True
        stuck = _Stuck(execution, locks=True)
        if all(root in stuck for root in execution.roots.running.values()):
            return False


async def end_again(scope: NodeScope, node: Node[Any]) -> None:
    """Wait until `node` is cancelled; cancel it if its parent is stuck without that.

    If the node that decided the cancel runs again, first wait as long as that may take, as its
    timers are not recorded. All nodes of one decision are cancelled together.
    """
    execution, pause = scope.execution, HOLD_POLL_SECONDS
    decision = execution.pending_cancels[node] = execution.recorded_cancels[scope.ident]
    if not scope.is_root and execution.runs_again(decision.by):
        await asyncio.sleep(
            execution.started_at + LATE_FACTOR * decision.after + 1 - execution.loop.time()
        )
    while not (
        scope.is_root or node.parent is None or node.parent in _Stuck(execution, cancels=True)
    ):
        await asyncio.sleep(pause)
        pause = min(2 * pause, MAX_CANCEL_POLL_SECONDS)
    for each in [each for each, why in execution.pending_cancels.items() if why == decision]:
        each.cancel(decision.reason)
    await asyncio.get_running_loop().create_future()


def _will_give_up(node: Node[Any], waiter: Node[Any]) -> bool:
    """Return whether the wait of `waiter` for `node` may still time out, as recorded."""
    scope, around = (cast("NodeScope | None", scope_of(each)) for each in (node, waiter))
    wait = None if scope is None else scope.given_up
    if scope is None or around is None or wait is None or wait["by"] != around.attempt_ident.hex():
        return False
    return (
        scope.execution.loop.time() <= scope.execution.started_at + LATE_FACTOR * wait["after"] + 1
    )


class _Stuck:
    """The set of nodes that cannot continue until a held effect does.

    With `cancels` it has the nodes that wait to be cancelled again, with `locks` those that wait
    for a lock.
    """

    def __init__(self, execution: Execution, *, cancels: bool = False, locks: bool = False) -> None:
        self._known = dict.fromkeys(execution.pending_cancels if cancels else (), True)
        self._futures = execution.held_effects
        self._locks = locks

    def __contains__(self, node: object) -> bool:
        if node not in self._known:
            self._find(cast("Node[Any]", node))
        return self._known[cast("Node[Any]", node)]

    def _find(self, node: Node[Any]) -> None:
        """Decide for a node and all that it waits for; no recursion, as chains are long."""
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
            if below is None:  # it waits for something outside the tree, or does not wait
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
