"""The scope of a node: finds the node's rows (journal entries) and appends new ones.

Invariants:

- A plain node (a handler, or a job that is not durable) runs again in each execution. This includes
  nodes that have failed, because other nodes may have seen results of theirs. So everything in it
  that could differ is recorded: replies, effects, steps, timeouts and cancels.
- A durable node with an outcome does not run again. No cancel of this execution reaches it, because
  it ended before.
- A node whose cancel is recorded does not run again. It ends when it is cancelled again (`_match`).
- After some rows a body does not run again: its end, its next attempt, a timeout, a cancel. Before
  such a row is appended, the rounds that the body has put are recorded. Its conversations also get
  the messages that it added in earlier executions, because this execution may not have reached the
  lines that add them.
- An exception has the identities of the rows that record it (`attach_idents`). So a node that fails
  knows which failures caused its own. A failure that the user's code caught is not among them, so
  `Journal.resume` keeps it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import lru_cache, partial
from typing import Any, ClassVar, Literal, Protocol, cast

from ..commander import ConfigurationError, Node, NodeLimits
from ..commander.body_waits import (
    has_siblings,
    immediate_receiver,
    is_awaited_alone,
    is_putter_running,
)
from ..commander.durable import DurableScope, is_in_side_task, put_options_of, scope_here
from ..commander.errors import is_final
from ..commander.stored_names import stored_name
from ..commander.waiting import lend_slot
from ._codec import Codec
from ._completion_order import PAUSE_SECONDS, CompletionOrder, until_awaited
from ._effect import INSIDE_EFFECT, DurableEffect, Limited
from ._execution import Execution
from ._failure import attach_idents, encode_failure, failure_idents, was_awaited
from ._identity import NodeIdentity
from ._json import canonical_inputs, digest, digest_put
from ._match import end_again
from ._reply import ReplyRow, charge_recorded, usage_below
from ._roots import RoundPutter
from ._transaction import IN_TRANSACTION, require_no_transaction
from ._unreplayed import child_ident, name_bytes
from .errors import JournalError, JournalMismatch, LeaseLost, NotStorable

__all__ = ["NodeScope"]

FIRST_COUNT = (1, None)  # an entry of `_counts`, shared by all nodes that are put once
ON_COURSE_SECONDS = 30.0  # how long `until_on_course` waits for the entries to be replayed


class DurableNode(Protocol):
    """A node whose outcome is recorded."""

    _node_is_durable: ClassVar[bool]

    def _node_prepare(self, execution: Execution) -> tuple[str, bool]:
        """Fill in the live fields before the node is put; raise if one is missing.

        Returns the text of its inputs, and whether that text is complete.
        """
        ...

    def _node_codec(self) -> Codec:
        """Return the codec of its result."""
        ...


class NodeScope(NodeIdentity):
    """The scope of one node, whose methods the engine calls as the node goes through its states."""

    __slots__ = ()

    # The attempt whose timeout also counts the time of earlier executions.
    timeout_ident: bytes | None = None
    # The identities of recorded failures that no code has received (see `record_lost_failure`).
    lost_failures: frozenset[bytes] = frozenset()
    # The reason why its options cannot be recorded; it fails with this when it begins.
    refusal: ConfigurationError | None = None
    # The order in which its children end. Made when code may notice which of two ended first.
    _order: CompletionOrder | None = None
    # Whether a timer had another outcome than in an earlier execution, so that the node may do
    # other things than the recorded ones.
    has_strayed = False
    # The number and the kind of the row with its outcome, if this execution has appended it.
    own_outcome: tuple[int, str] | None = None

    @property
    def identity(self) -> tuple[str, str]:
        return self.execution.run_id, self.ident.hex()

    @property
    def limits(self) -> NodeLimits | None:
        return self.execution.limits

    @property
    def is_suspended(self) -> bool:
        return self.execution.suspended and not self.has_recorded_end

    # --- nodes that it puts

    def enter(
        self,
        node: Node[Any],
        key: str | None,
        loop: asyncio.AbstractEventLoop,
        is_root: bool,
        in_side_task: bool,
        may_retry: bool,
        in_callback: bool,
    ) -> NodeScope:
        if IN_TRANSACTION.get():
            require_no_transaction()
        execution = self.execution
        durable: Any = node if node._node_is_durable else None
        if durable is not None:
            inputs, is_complete = durable._node_prepare(execution)
        else:
            inputs, is_complete = canonical_inputs(node)
        name = node._node_name
        kind, name_part = _kind(type(node), name)
        if key is None:
            description = f"{kind} {inputs}"
        else:
            description, name_part = f"{kind} [{key}]", name_bytes(f"{name}[{key}]")
        if (
            execution.keys
        ):  # removed from the inputs in the row of a round: its identity must not depend on them
            cut = execution.keys.cut_text
            description = cut(description)
            name_part = name_bytes(cut(name if key is None else f"{name}[{key}]"))
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        putter, base, number = self._attempt_ident or self.attempt_ident, self.base_ident, 0
        ident = digest_put(putter, description, 0)
        # Nodes with incomplete inputs look equal. If several tasks put them, their order is not
        # reproducible, so `number` may refuse them.
        if ident not in counts and (is_complete or not in_side_task):
            counts[ident] = FIRST_COUNT
        elif number := self.number(ident, key, aside=in_side_task and not is_complete, label=name):
            ident = digest_put(putter, description, number)
        if durable is not None:
            if loop is not execution.loop:
                self.require_own_loop(node)
            ident = child_ident(putter, ident, name_part)
            if execution.last_recorded:
                execution.reached.add(ident)
        old_base = None
        if base == putter:  # there are only first attempts above
            base = ident
        else:
            old_base = digest_put(self.old_base_ident or base, description, number)
            base_putter = self.base_attempt_ident
            base = digest_put(base_putter, description, number)
            if durable is not None:
                base = child_ident(base_putter, base, name_part)
            # The row of a round has the identity under which its effects were recorded.
            if is_root and (row := execution.find(ident, "root")) is not None:
                base = old_base = bytes.fromhex(json.loads(row.value)["free"])
        if ident in execution.intents.node_idents:
            execution.intents.nodes_by_ident[ident] = node
        scope = NodeScope(execution, ident, base, self, ident if is_root else self.root)
        if old_base is not None and old_base != base:
            scope.old_base_ident = old_base
        if may_retry or self.is_retried:
            scope.is_retried, scope.shares_effects = True, may_retry
        if durable is not None:
            scope.shares_effects = scope.is_durable = True
        elif is_root:
            raise ConfigurationError(
                f"{node!r} is put beside the root of its run, so a restart would lose it. Make it"
                " a Durable job, or put it below a node of the run"
            )
        if is_root:
            execution.roots.add_round(scope, node, key, RoundPutter(self.path(), not in_callback))
        if in_side_task:
            scope.is_aside = True
        if in_side_task and durable is not None:
            # Another task may still put a node that ended before this one, so recorded ends wait.
            order = self._completion_order()
            if scope.is_recorded:
                order.delay()
        return scope

    # --- its states

    def recorded_attempts(self, node: Node[Any], now: float) -> tuple[list[float], float]:
        if self.has_recorded_end and self._recorded_usage is not None:
            charge_recorded(json.loads(self._recorded_usage.value), node)
        attempts = [] if self.has_recorded_end else self.execution.find_all(self.ident, "attempt")
        if not attempts:
            return [], 0.0
        rows = [json.loads(row.value) for row in attempts]
        self.attempt, self._attempt_ident = self.execution.next_attempt(self.ident)
        self.execution.conversations.catch_up(self, until=attempts[-1].seq)
        charge_recorded(rows[-1]["usage"], node)
        clock = self.execution.clock()
        # The wall clock may have been set back since the attempt was recorded.
        pause = rows[-1]["due"] - max(time.time(), attempts[-1].time)
        return [now - max(0.0, clock - row["clock"]) for row in rows], pause

    def begin_attempt(self, node: Node[Any], timeout: float | None) -> float | None:
        self.execution.roots.record_new(self.ident)  # its row precedes the rows below it
        if self.refusal is not None:
            raise self.refusal
        self.began: float = self.execution.clock()
        self._counts = None
        # The recorded attempt was aborted: its body must not run again, and it ends the same way.
        if (row := self.execution.find(self.attempt_ident, "aborted")) is not None:
            self.execution.conversations.catch_up(self)
            raise self.execution.read_failure(row.value, self.attempt_ident)
        # The timeout of an effect starts from zero: the call of the earlier execution is dead.
        if timeout is None or isinstance(node, Limited):
            return timeout
        # The attempt had ended in an earlier execution, so it starts with the whole timeout.
        if self.execution.find(self.attempt_ident, "ended") is not None:
            return timeout
        self.timeout_ident = self.attempt_ident
        if (row := self.execution.find(self.attempt_ident, "began")) is None:
            self.execution.append(
                self.attempt_ident, "began", json.dumps({"clock": self.began}).encode()
            )
            return timeout
        return timeout - max(0.0, self.execution.clock_at_start - json.loads(row.value)["clock"])

    async def wait_for_recorded_cancel(self, node: Node[Any]) -> None:
        await end_again(self, node)

    def schedule_replay(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> None:
        if self._recorded_usage is not None:
            charge_recorded(json.loads(self._recorded_usage.value), node)
        parent, outcome = self.parent, self.outcome
        if parent is None or outcome is None:
            self.execution.loop.call_soon(end, node)  # a root: no other end is before it
            return
        order = parent._completion_order()
        order.add(outcome.seq, node, outcome.kind == "failure", end)

    async def wait_for_turn(self, node: Node[Any]) -> None:
        parent = self.parent
        aborted = self.execution.find(self.attempt_ident, "aborted")
        # A node awaited the recorded failure. If the failure happened now, before that node awaits
        # it again, it would make the parent fail.
        if aborted is not None and was_awaited(aborted.value):
            await until_awaited(node)
        if parent is not None and (self.is_durable or aborted is not None):
            order = parent._order
            if order is not None and order.replays:
                await order.until_replayed()

    def record_abandoned_wait(self, waiter: DurableScope | None) -> None:
        execution = self.execution
        if not isinstance(waiter, NodeScope) or execution.suspending or execution.suspended:
            return  # a suspension gives up waits that the next execution begins again
        if execution.find(self.ident, "given up") is not None:
            # The recorded timeout has happened again, so the node may end.
            self.given_up: dict[str, Any] | None = None
        elif execution.last_recorded and execution.unreplayed.names_below(waiter.attempt_ident):
            # In the earlier execution, it may have reached these entries before it gave up.
            waiter.has_strayed = True
        else:
            after = execution.loop.time() - execution.started_at
            with suppress(LeaseLost, JournalError):  # `append` has stopped the run
                value = json.dumps({"by": waiter.attempt_ident.hex(), "after": after}).encode()
                execution.append(self.ident, "given up", value, find=True)

    def stray(self) -> None:
        """Note that the node ends before its waiter timed out, unlike in the earlier execution.

        That waiter may now do other things than the recorded ones.
        """
        if (wait := self.given_up) is not None and self.parent is not None:
            for scope in self.parent.up():
                if scope.attempt_ident.hex() == wait["by"]:
                    scope.has_strayed = True

    async def until_on_course(self) -> None:
        """Wait, before a new effect, until this execution has reached its recorded entries.

        It waits only below a node that has strayed: a timer of the program had another outcome.
        Raises `JournalMismatch` if the entries are not reached in time.
        """
        execution = self.execution
        for scope in self.up():
            late = execution.loop.time() + ON_COURSE_SECONDS
            while scope.has_strayed and (
                left := execution.unreplayed.names_below(scope.attempt_ident)
            ):
                if execution.loop.time() >= late:
                    raise execution.park(
                        "a wait that timed out in an earlier execution did not time out now, and"
                        f" {', '.join(left)} was not called again"
                    )
                async with lend_slot():  # which the job that is awaited may need
                    await asyncio.sleep(PAUSE_SECONDS)

    def may_end(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> bool:
        parent, outcome = self.parent, self.own_outcome
        if parent is None or (outcome is None and self.given_up is None):
            return True  # no row records when it ended
        number, kind = outcome or (self.execution.last_number + 1, "")
        try:
            early = self.given_up is not None or parent.leads_on(number) is not None
            is_ordered = parent._order is not None or early or has_siblings(node)
            # An only child whose end one waiter sees needs no order, which costs turns of the loop.
            if not is_ordered and (is_awaited_alone(node) or not is_putter_running(node)):
                return True
            return parent._completion_order().may_end(number, node, kind == "failure", end)
        except Exception as error:  # noqa: BLE001 - the node would be left pending
            self.execution.fail(error)
            return True

    def leads_on(self, number: int) -> float | None:
        """Return the time between the next recorded effect of its body and the effect before that.

        In seconds, as recorded. None if no recorded effect is left, or if the next one began after
        the row `number`.
        """
        execution = self.execution
        if not execution.last_recorded:
            return None
        first, took = execution.intents.first_unreached(self.attempt_ident, execution.reached)
        return took if first <= number else None

    def set_putter(self, putter: Node[Any]) -> None:
        super().set_putter(putter)
        if self.is_durable and self.parent is not None:
            self.parent._completion_order()  # not the putter, but the parent orders its end

    async def until_seen(self, number: int) -> None:
        """Wait until the body has seen the end of each node that ended before a row.

        Also waits for the bodies above it, up to the nearest durable node. So code that gets a
        recorded result and then asks which nodes are done gets the same answer as before.
        """
        for scope in self.up():
            if scope._order is not None:
                await scope._order.until_seen(number)
            if scope.is_durable:
                break

    def first_unseen(self) -> int:
        """Return the number of the first outcome that its body has not seen yet; 0 if none."""
        return 0 if self._order is None else self._order.first_unseen()

    def _completion_order(self) -> CompletionOrder:
        if self._order is None:
            self._order = CompletionOrder(self)
        return self._order

    def load_outcome(self, node: Any) -> Any:
        outcome = self.outcome
        assert outcome is not None
        self._attempt_ident = self._counts = None  # only final callbacks put nodes from now on
        self.execution.conversations.catch_up(self)  # its body does not add them again
        if outcome.kind == "failure":
            raise self.execution.read_failure(outcome.value, self.ident)
        try:
            return node._node_codec().decode(outcome.value)
        except JournalMismatch as mismatch:
            self.execution.fail(mismatch)
            raise

    def record_retry(self, node: Node[Any], delay: float) -> None:
        due = time.time() + delay
        with suppress(JournalError, LeaseLost):  # such an error has stopped the run
            self._record_before_leaving()
            self._append("attempt", {"clock": self.began, "due": due, "usage": usage_below(node)})
        self.lost_failures = frozenset()
        self.attempt: int = self.attempt + 1
        self._attempt_ident = digest(self.ident, self.attempt)
        self._end_attempt("cut")

    def record_outcome(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
        *,
        leaving: bool,
    ) -> Any:
        execution = self.execution
        if self.cancel_reason is not None:
            execution.pending_cancels.pop(node, None)
            execution.conversations.catch_up(self)  # its body did not run
        durable = cast("DurableNode", node) if node._node_is_durable else None
        if is_final(error) and not self.is_recorded:
            execution.stop_for_context(error)
        if not execution.suspended:
            is_new = not (self.is_recorded or self.returns_recorded)
            if execution.last_recorded and ending == "completed" and is_new:
                execution.unreplayed.report(self.attempt_ident, node.path)
            if self.timeout_ident is not None and durable is None and not leaving:
                # A later execution runs it again, with the whole timeout.
                execution.append(self.timeout_ident, "ended")
        attempt_ident = self._attempt_ident
        if self._attempt is not None:
            has_outcome = durable is not None and ending != "cancelled"
            is_cut = (
                self.ident in execution.recorded_cancels
                or execution.find(self.attempt_ident, "aborted") is not None
            )
            self._end_attempt("cut" if is_cut else "kept" if has_outcome else "")
        # Final callbacks run also if no attempt is made, so their nodes belong to no attempt.
        self._attempt_ident = self._counts = None
        if ending == "completed" and durable is not None and not self.is_recorded:
            return self._record_result(node, result)
        if self.has_recorded_end or execution.suspended:
            return result  # the end of a suspended node is not its end in the run
        aborted = (
            ()
            if attempt_ident is None or execution.find(attempt_ident, "aborted") is None
            else (attempt_ident,)
        )
        if ending == "cancelled":
            if self.lost_failures and self.parent is not None:
                # If the parent fails, a resume lets both run again.
                self.parent.lost_failures |= {*self.lost_failures, self.ident, *aborted}
            self.has_recorded_end: bool = not leaving and durable is not None
            if self.has_recorded_end or (not leaving and self.ident in execution.recorded_cancels):
                self._record_usage(node)
        elif error is not None:
            attach_idents(error, *failure_idents(error), *self.lost_failures, *aborted)
            if durable is not None or aborted:
                execution.record_causes(self.ident, error)
                # A plain node may fail with an error that cannot be stored: it fails again.
                with nullcontext() if durable is not None else suppress(NotStorable):
                    awaited = immediate_receiver(node) is not None
                    encode = partial(encode_failure, error, awaited=awaited)
                    data = self._record_end(node, "failure", encode)
                    # The recorded failure lacks a key: raise what a later execution will read.
                    if execution.keys and data != encode():
                        again = execution.read_failure(data, self.ident)
                        raise again.with_traceback(error.__traceback__) from None
            attach_idents(error, self.ident)
        return result

    def record_lost_failure(self, error: BaseException) -> None:
        self.lost_failures |= failure_idents(error)

    def _record_result(self, node: Node[Any], result: Any) -> Any:
        # Decoded: code gets the same value as in a later execution.
        codec, keys = cast("DurableNode", node)._node_codec(), self.execution.keys
        return codec.decode(self._record_end(node, "result", lambda: keys.write(codec, result)))

    def record_abort(
        self, error: BaseException, *, timed_out: bool = False, awaited: bool = False
    ) -> None:
        execution = self.execution
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            execution.suspend()  # the process ends, but not the run
            return
        if is_final(error) and self.is_durable:
            execution.stop_for_context(error)
            return
        # A plain body runs again, and fails again because of its child.
        decided = timed_out or self.is_durable
        if (
            decided
            and not execution.suspended
            and execution.find(self.attempt_ident, "aborted") is None
        ):
            with suppress(NotStorable, LeaseLost, JournalError):
                self._record_before_leaving()
                # Children that failed in the same turn of the loop: a resume runs them again too.
                others = [] if self._order is None else self._order.failures()
                execution.record_causes(self.attempt_ident, error, *others)
                data = encode_failure(error, awaited=awaited)
                execution.append(self.attempt_ident, "aborted", data, find=True)

    def suspend(self, error: BaseException | None = None) -> asyncio.Future[None] | None:
        execution = self.execution
        if is_final(error) and (not execution.lacks_context or INSIDE_EFFECT.get()):
            return None
        in_progress = execution.effects_in_progress
        stays = execution.suspended and not execution.lacks_context
        return execution.suspend() if in_progress and not stays else None

    def record_cancel(
        self, scopes: Sequence[DurableScope], reason: str, *, failed: DurableScope | None
    ) -> None:
        execution = self.execution
        if execution.suspending:
            execution.suspended = True  # a second cancel: do not wait for effects in progress
        # A node with a recorded outcome ended before this cancel, whatever it does now.
        ended = [each for each in scopes if isinstance(each, NodeScope) and not each.is_recorded]
        if execution.last_recorded and not execution.suspended:
            for scope in ended:
                execution.conversations.catch_up(scope)
        idents = [scope.ident for scope in ended if scope.cancel_reason is None]
        if not idents or execution.suspended:
            return
        by = failed or scope_here()
        path = (by if isinstance(by, NodeScope) else self).path()
        after = execution.loop.time() - execution.started_at
        with suppress(LeaseLost, JournalError):  # `append` has stopped the run
            execution.roots.record_new()  # before the row that ends the bodies that put them
            execution.record_cancel(
                idents, reason, of=self.ident, by=path, failed=bool(failed), after=after
            )
            execution.withdraw_questions(set(idents))

    def effect(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        harmless: bool = False,
        early: bool = False,
        key: str | None = None,
    ) -> DurableEffect:
        require_no_transaction()
        self.require_own_loop(name)
        growing = [] if early else self.execution.growing_replies
        above = list(self.up()) if growing else []  # the nodes that may have requested them
        awaited = [reply for scope in above for reply in growing if reply.requester is scope]
        return DurableEffect(self, name, inputs, harmless, awaited, key)

    def unique_name(self, what: str) -> str:
        return digest(self.execution.run_id, self.attempt_ident, what, self.number(what)).hex()

    def reply(self, request: str, redact: Callable[[str], str]) -> ReplyRow:
        description = self._describe_request(request, redact)
        number = self.number(description, aside=is_in_side_task(), label="requests to a model")
        return ReplyRow(self, digest(self.attempt_ident, description, number))

    def has_reply(self, request: str, redact: Callable[[str], str]) -> bool:
        description = self._describe_request(request, redact)
        number, _ = (self._counts or {}).get(description, (0, None))
        ident = digest(self.attempt_ident, description, number)
        return any(row.kind in ("reply", "broken") for row in self.execution.rows(ident))

    def _describe_request(self, request: str, redact: Callable[[str], str]) -> str:
        self.execution.keys.add(redact)
        return f"reply {digest(self.execution.keys.cut_text(request)).hex()}"

    def note(self, name: str, value: Any) -> None:
        if not self.execution.suspended:  # else the next execution repeats this
            data = json.dumps(value).encode()
            self.execution.append(digest(self.ident, "note", name), "note", data, find=True)

    def notes(self, name: str) -> list[Any]:
        rows = self.execution.find_all(digest(self.ident, "note", name), "note")
        return [json.loads(row.value) for row in rows]

    def _record_before_leaving(self) -> None:
        """Record rounds and replay messages of the body, before a row that ends its attempt."""
        self.execution.roots.record_new()
        if self.execution.last_recorded:
            self.execution.conversations.catch_up(self)

    def _record_end(self, node: Node[Any], kind: str, encode: Callable[[], bytes]) -> bytes:
        """Record the outcome; a result that cannot be stored makes a recorded failure."""
        refused = None
        try:
            value = encode()
        except NotStorable as error:
            kind, value, refused = "failure", encode_failure(error), error
        self._record_before_leaving()
        self._record_usage(node)  # a replay reads the usage that precedes the outcome
        value = self.execution.append(self.ident, kind, value, find=self.is_root)
        self.has_recorded_end = True
        self.own_outcome = (self.execution.last_number, kind)
        if refused is not None:  # the failure is recorded, so it is raised only now
            attach_idents(refused, self.ident)
            raise refused
        return value

    def record_root_outcome(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
    ) -> Any:
        execution, before = self.execution, self.execution.find_outcome(self.ident)
        del execution.roots.running[self.ident]
        # Final callbacks can turn a failure into a result, and the other way round.
        changed = before is not None and (before.kind == "failure") != (ending == "failed")
        # An error of the journal has stopped the run already.
        with suppress(JournalError, LeaseLost):
            if (
                execution.last_recorded
                and not execution.suspended
                and (ending == "completed" or self.is_recorded)
            ):
                execution.unreplayed.report_rounds(self.ident, self.attempt_ident, node.path)
            try:
                if changed and node._node_is_durable and not execution.suspended:
                    if ending == "completed":
                        return self._record_result(node, result)
                    if isinstance(error, Exception):
                        execution.record_causes(self.ident, error)
                        self._record_end(node, "failure", lambda: encode_failure(error))
            finally:
                execution.roots.end(self)
        return result

    def _end_attempt(self, over: Literal["", "cut", "kept"]) -> None:
        if self._attempt is not None:
            self._attempt.end, self._attempt = over, None

    def _append(self, kind: str, value: Any) -> None:
        self.execution.append(self.ident, kind, json.dumps(value).encode())

    def _record_usage(self, node: Node[Any]) -> None:
        if usage := usage_below(node):
            self._append("usage", usage)
            if put_options_of(node).on is not None:  # the remote process has its replies
                self._append("spent", {"taken": [*usage.items()]})


@lru_cache
def _kind(cls: type[Node[Any]], name: str) -> tuple[str, bytes]:
    """Return the text for the identity of nodes of this class and name, and the name's bytes."""
    return f"{stored_name(cls).replace(':', '.', 1)} {name}", name_bytes(name)
