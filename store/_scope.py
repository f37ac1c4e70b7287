"""What becomes of a node of a run: what its journal gives it, and what is added as it goes on.

What holds:

- What is plain runs again in each life, also where it has failed: others may have seen what it did.
  So each thing in it that may go otherwise is a row: replies, effects, steps, timeouts, cancels.
- A durable node that has an outcome does not run again. It is not cancelled either: it had ended
  before any cancel that comes now.
- A node whose cancel is a row does not run again, and ends when it is cancelled again (`_match`).
- Before a row by which a body does not run again (its end, its next attempt, a timeout, a cancel),
  the rounds are rows that it has put, and conversations have what it added in earlier executions:
  it may have been cut before it came to that again.
- An error bears the identities under which it is kept, on its way up (`mark`). So a node that fails
  knows of what, and what has been caught is in no such list: a resume leaves it.
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
from ..commander.stored_names import stored_name
from ..commander.waiting import lend_slot
from ._codec import Codec
from ._effect import DurableEffect, Limited
from ._endings import PAUSE, Endings, until_awaited
from ._failure import encode_failure, mark, marks, was_awaited
from ._identity import NodeIdentity
from ._json import canonical_inputs, digest, digest_put
from ._match import end_again
from ._reply import ReplyRow
from ._roots import PutBy
from ._state import JournalState
from ._transaction import IN_TRANSACTION, require_no_transaction
from ._unreplayed import child_ident, name_bytes
from ._usage import charge, usage_of
from .errors import JournalError, JournalMismatch, LeaseLost, NotStorable

__all__ = ["NodeScope"]

ONCE = (1, None)
ON_COURSE_WITHIN = 30.0  # seconds in which other tasks of a body come to what the journal has


class Kept(Protocol):
    """A node whose outcome the journal keeps."""

    _node_is_durable: ClassVar[bool]

    def _node_prepare(self, ledger: JournalState) -> tuple[str, bool]:
        """Take what the run brings, before the node is put; raise if something is missing.

        Returns the text of its inputs, and whether it says everything.
        """
        ...

    def _node_codec(self) -> Codec:
        """Return how its result is written."""
        ...


class NodeScope(NodeIdentity):
    """A node of a run, as the engine tells what becomes of it."""

    __slots__ = ()

    # Which attempt has a timeout that counts on in a later life.
    timed: bytes | None = None
    # Under which identities failures are kept that no code has received (`lose`).
    lost: frozenset[bytes] = frozenset()
    # Why it could not be put again as it was put.
    refused: ConfigurationError | None = None
    # The order in which those end that it has put, where others can tell one end from the next.
    _endings: Endings | None = None
    # Whether it may go another way now than in the journal, as a timer had another outcome.
    strayed = False
    # The number and the kind of the row with its outcome, if this execution has added that.
    kept_as: tuple[int, str] | None = None

    @property
    def identity(self) -> tuple[str, str]:
        return self.ledger.run_id, self.ident.hex()

    @property
    def limits(self) -> NodeLimits | None:
        return self.ledger.limits

    @property
    def is_suspended(self) -> bool:
        return self.ledger.suspended and not self.kept

    # --- what it puts

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
        ledger = self.ledger
        kept: Any = node if node._node_is_durable else None
        if kept is not None:
            inputs, whole = kept._node_prepare(ledger)
        else:
            inputs, whole = canonical_inputs(node)
        name = node._node_name
        kind, called = _kind(type(node), name)
        if key is None:
            what = f"{kind} {inputs}"
        else:
            what, called = f"{kind} [{key}]", name_bytes(f"{name}[{key}]")
        if ledger.keys:  # in another life they may have been cut out
            what = ledger.keys.cut_text(what)
            called = name_bytes(ledger.keys.cut_text(name if key is None else f"{name}[{key}]"))
        counts = self._counts
        if counts is None:
            counts = self._counts = {}
        now, free, number = self._now or self.now, self.free, 0
        ident = digest_put(now, what, 0)
        if ident not in counts and (whole or not in_side_task):
            counts[ident] = ONCE
        elif number := self.number(ident, key, aside=in_side_task and not whole, what=what):
            ident = digest_put(now, what, number)
        if kept is not None:
            if loop is not ledger.loop:
                self.require_own_loop(node)
            ident = child_ident(now, ident, called)
            if ledger.before:
                ledger.claimed.add(ident)
        before = None
        if free == now:  # there are only first attempts above
            free = ident
        else:
            before = digest_put(self.free_before or free, what, number)
            putter = self.free_now
            free = digest_put(putter, what, number)
            if kept is not None:
                free = child_ident(putter, free, called)
            if is_root and (row := ledger.find(ident, "root")) is not None:
                free = before = bytes.fromhex(json.loads(row.value)["free"])
        if ident in ledger.intents.nodes:
            ledger.intents.put[ident] = node
        scope = NodeScope(ledger, ident, free, self, ident if is_root else self.root)
        if before is not None and before != free:
            scope.free_before = before
        if may_retry or self.retried:
            scope.retried, scope.holds = True, may_retry
        if kept is not None:
            scope.holds = scope.durable = True
        elif is_root:
            raise ConfigurationError(
                f"{node!r} is put outside the tree of its run, as a next round is, and would be"
                " lost with the process: make it a Durable job"
            )
        if is_root:
            ledger.roots.add_round(scope, node, key, PutBy(self.path(), not in_callback))
        if in_side_task:
            scope.aside = True
        if in_side_task and kept is not None:
            endings = self._completion_order()
            if scope.is_recorded:
                endings.hold()
        return scope

    # --- what becomes of it

    def recorded_attempts(self, node: Node[Any], now: float) -> tuple[list[float], float]:
        if self.kept and self._spent is not None:
            charge(json.loads(self._spent.value), node)
        attempts = [] if self.kept else self.ledger.every(self.ident, "attempt")
        if not attempts:
            return [], 0.0
        rows = [json.loads(row.value) for row in attempts]
        self.attempt, self._now = self.ledger.attempt(self.ident)
        self.ledger.talks.catch_up(self, until=attempts[-1].seq)
        charge(rows[-1]["usage"], node)
        clock = self.ledger.clock()
        pause = rows[-1]["due"] - max(time.time(), attempts[-1].time)  # the wall's may be set back
        return [now - max(0.0, clock - row["clock"]) for row in rows], pause

    def begin_attempt(self, node: Node[Any], timeout: float | None) -> float | None:
        self.ledger.roots.keep(self.ident)
        if self.refused is not None:
            raise self.refused
        self.began = self.ledger.clock()
        self._counts = None
        if (row := self.ledger.find(self.now, "aborted")) is not None:
            self.ledger.talks.catch_up(self)
            raise self.ledger.read_failure(row.value, self.now)
        # What an effect does is begun anew: what an earlier life has sent is gone with it.
        if timeout is None or isinstance(node, Limited):
            return timeout
        if self.ledger.find(self.now, "ended") is not None:
            return timeout
        self.timed = self.now
        if (row := self.ledger.find(self.now, "began")) is None:
            self.ledger.append(self.now, "began", json.dumps({"clock": self.began}).encode())
            return timeout
        return timeout - max(0.0, self.ledger.clock_before - json.loads(row.value)["clock"])

    async def wait_for_recorded_cancel(self, node: Node[Any]) -> None:
        await end_again(self, node)

    def schedule_replay(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> None:
        if self._spent is not None:
            charge(json.loads(self._spent.value), node)
        parent, outcome = self.parent, self.outcome
        if parent is None or outcome is None:
            self.ledger.loop.call_soon(end, node)
            return
        endings = parent._completion_order()
        endings.add(outcome.seq, node, outcome.kind == "failure", end)

    async def wait_for_turn(self, node: Node[Any]) -> None:
        parent = self.parent
        aborted = self.ledger.find(self.now, "aborted")
        if aborted is not None and was_awaited(aborted.value):
            await until_awaited(node)
        if parent is not None and (self.durable or aborted is not None):
            endings = parent._endings
            if endings is not None and endings.replays:
                await endings.over()

    def record_abandoned_wait(self, waiter: DurableScope | None) -> None:
        ledger = self.ledger
        if not isinstance(waiter, NodeScope) or ledger.suspending or ledger.suspended:
            return
        if ledger.find(self.ident, "given up") is not None:
            self.given_up = None
        elif ledger.before and ledger.gone.unreplayed(waiter.now):
            waiter.strayed = True  # it may not have given up before it did that
        else:
            after = ledger.loop.time() - ledger.start
            with suppress(LeaseLost, JournalError):
                value = json.dumps({"by": waiter.now.hex(), "after": after}).encode()
                ledger.append(self.ident, "given up", value, find=True)

    def stray(self) -> None:
        """Take note if the node ends before a wait for it is given up, as it was before."""
        if (wait := self.given_up) is not None and self.parent is not None:
            for scope in self.parent.up():
                if scope.now.hex() == wait["by"]:
                    scope.strayed = True

    async def until_on_course(self) -> None:
        """Wait, before a new effect, until this execution has come to what the journal has.

        Asked only where it goes another way, as a timer of the program's own had another outcome.
        Raises `JournalMismatch` if it does not come to it in time.
        """
        ledger = self.ledger
        for scope in self.up():
            late = ledger.loop.time() + ON_COURSE_WITHIN
            while scope.strayed and (left := ledger.gone.unreplayed(scope.now)):
                if ledger.loop.time() >= late:
                    raise ledger.mismatch(
                        "a wait that a timer of the program has ended in an earlier execution went"
                        f" another way now, and {', '.join(left)} was not called again"
                    )
                async with lend_slot():
                    await asyncio.sleep(PAUSE)

    def may_end(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> bool:
        parent, kept = self.parent, self.kept_as
        if parent is None or (kept is None and self.given_up is None):
            return True
        number, kind = kept or (self.ledger.last + 1, "")
        try:
            early = self.given_up is not None or parent.leads_on(number) is not None
            apart = parent._endings is not None or early or has_siblings(node)
            if not apart and (is_awaited_alone(node) or not is_putter_running(node)):
                return True
            return parent._completion_order().may_end(number, node, kind == "failure", end)
        except Exception as error:  # noqa: BLE001 - the node would be left pending
            self.ledger.fail(error)
            return True

    def leads_on(self, number: int) -> float | None:
        """Return how long its own task took, at most, to an effect that it comes to again.

        That is the next one, in seconds since the one before. None if it was not begun before the
        row of this number, or if there is none.
        """
        ledger = self.ledger
        if not ledger.before:
            return None
        first, took = ledger.intents.first_left(self.now, ledger.claimed)
        return took if first <= number else None

    def set_putter(self, putter: Node[Any]) -> None:
        super().set_putter(putter)
        if self.durable and self.parent is not None:
            self.parent._completion_order()  # those that end it cannot see, by their parent

    async def until_seen(self, number: int) -> None:
        """Wait until nodes that ended before a row are seen to have ended: by this one's body.

        And by those of the plain nodes above it and the durable one. So code that polls whether a
        node is done sees the same after it comes from the journal what the code waited for.
        """
        for scope in self.up():
            if scope._endings is not None:
                await scope._endings.until_seen(number)
            if scope.durable:
                break

    def first_unseen(self) -> int:
        """Return the number of the first row of an end that its body has not seen; 0 if none."""
        return 0 if self._endings is None else self._endings.first_unseen()

    def _completion_order(self) -> Endings:
        if self._endings is None:
            self._endings = Endings(self)
        return self._endings

    def load_outcome(self, node: Any) -> Any:
        outcome = self.outcome
        assert outcome is not None
        self._now = self._counts = None
        self.ledger.talks.catch_up(self)
        if outcome.kind == "failure":
            raise self.ledger.read_failure(outcome.value, self.ident)
        try:
            return node._node_codec().decode(outcome.value)
        except JournalMismatch as mismatch:
            self.ledger.fail(mismatch)
            raise

    def record_retry(self, node: Node[Any], delay: float) -> None:
        due = time.time() + delay
        with suppress(JournalError, LeaseLost):  # which stops the run, and this node with it
            self._leave_body()
            self._append("attempt", {"clock": self.began, "due": due, "usage": usage_of(node)})
        self.lost = frozenset()
        self.attempt += 1
        self._now = digest(self.ident, self.attempt)
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
        ledger = self.ledger
        if self.cancel_reason is not None:
            ledger.doomed.pop(node, None)
            ledger.talks.catch_up(self)
        kept = cast("Kept", node) if node._node_is_durable else None
        if not ledger.suspended:
            if ledger.before and ending == "completed" and not (self.is_recorded or self.skips):
                ledger.gone.report(self.now, node.path)
            if self.timed is not None and kept is None and not leaving:
                # It runs again in a later life, whose timeout then is not cut short by this one.
                ledger.append(self.timed, "ended")
        now = self._now
        if self._attempt is not None:
            ended = kept is not None and ending != "cancelled"
            cut = self.ident in ledger.cancelled or ledger.find(self.now, "aborted") is not None
            self._end_attempt("cut" if cut else "kept" if ended else "")
        # Final callbacks run also where no attempt is made: what they put has no attempt's number.
        self._now = self._counts = None
        if ending == "completed" and kept is not None and not self.is_recorded:
            return self._keep_result(node, result)
        if self.kept or ledger.suspended:
            return result
        aborted = () if now is None or ledger.find(now, "aborted") is None else (now,)
        if ending == "cancelled":
            if self.lost and self.parent is not None:
                # If that fails, both run again when it is resumed.
                self.parent.lost |= {*self.lost, self.ident, *aborted}
            self.kept = not leaving and kept is not None
            if self.kept or (not leaving and self.ident in ledger.cancelled):
                self._keep_usage(node)
        elif error is not None:
            mark(error, *marks(error), *self.lost, *aborted)
            if kept is not None or aborted:
                ledger.keep_causes(self.ident, error)
                with nullcontext() if kept is not None else suppress(NotStorable):
                    awaited = immediate_receiver(node) is not None
                    encode = partial(encode_failure, error, awaited=awaited)
                    data = self._keep_end(node, "failure", encode)
                    if ledger.keys and data != encode():
                        again = ledger.read_failure(data, self.ident)
                        raise again.with_traceback(error.__traceback__) from None
            mark(error, self.ident)
        return result

    def record_lost_failure(self, error: BaseException) -> None:
        self.lost |= marks(error)

    def _keep_result(self, node: Node[Any], result: Any) -> Any:
        codec, keys = cast("Kept", node)._node_codec(), self.ledger.keys
        return codec.decode(self._keep_end(node, "result", lambda: keys.write(codec, result)))

    def record_abort(
        self, error: BaseException, *, timed_out: bool = False, awaited: bool = False
    ) -> None:
        ledger = self.ledger
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            ledger.suspend()  # it ends the process, and says nothing of the run
            return
        # A plain body runs again, and so fails again by its child.
        decided = timed_out or self.durable
        if decided and not ledger.suspended and ledger.find(self.now, "aborted") is None:
            with suppress(NotStorable, LeaseLost, JournalError):
                self._leave_body()
                # Others may have failed in the same moment: a resume lets them run again as well.
                others = [] if self._endings is None else self._endings.failures()
                ledger.keep_causes(self.now, error, *others)
                data = encode_failure(error, awaited=awaited)
                ledger.append(self.now, "aborted", data, find=True)

    def suspend(self) -> asyncio.Future[None] | None:
        ledger = self.ledger
        return ledger.suspend() if ledger.under_way and not ledger.suspended else None

    def record_cancel(
        self, scopes: Sequence[DurableScope], reason: str, *, failed: DurableScope | None
    ) -> None:
        ledger = self.ledger
        if ledger.suspending:
            ledger.suspended = True  # somebody does not wait for the end of effects
        ended = [each for each in scopes if isinstance(each, NodeScope) and not each.is_recorded]
        if ledger.before and not ledger.suspended:
            for scope in ended:
                ledger.talks.catch_up(scope)
        whom = [scope.ident for scope in ended if scope.cancel_reason is None]
        if not whom or ledger.suspended:
            return
        by = failed or scope_here()
        path = (by if isinstance(by, NodeScope) else self).path()
        after = ledger.loop.time() - ledger.start
        with suppress(LeaseLost, JournalError):
            ledger.roots.keep()
            ledger.keep_cancel(
                whom, reason, of=self.ident, by=path, failed=bool(failed), after=after
            )
            ledger.withdraw(set(whom))

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
        coming = [] if early else self.ledger.coming
        above = list(self.up()) if coming else []  # those who may have asked for them
        awaited = [reply for scope in above for reply in coming if reply.asker is scope]
        return DurableEffect(self, name, inputs, harmless, awaited, key)

    def unique_name(self, what: str) -> str:
        return digest(self.ledger.run_id, self.now, what, self.number(what)).hex()

    def reply(self, request: str, redact: Callable[[str], str]) -> ReplyRow:
        asked = self._asked(request, redact)
        number = self.number(asked, aside=is_in_side_task())
        return ReplyRow(self, digest(self.now, asked, number))

    def has_reply(self, request: str, redact: Callable[[str], str]) -> bool:
        asked = self._asked(request, redact)
        number, _ = (self._counts or {}).get(asked, (0, None))
        ident = digest(self.now, asked, number)
        return any(row.kind in ("reply", "broken") for row in self.ledger.rows(ident))

    def _asked(self, request: str, redact: Callable[[str], str]) -> str:
        self.ledger.keys.add(redact)
        return f"reply {digest(self.ledger.keys.cut_text(request)).hex()}"

    def note(self, name: str, value: Any) -> None:
        if not self.ledger.suspended:
            data = json.dumps(value).encode()
            self.ledger.append(digest(self.ident, "note", name), "note", data, find=True)

    def notes(self, name: str) -> list[Any]:
        rows = self.ledger.every(digest(self.ident, "note", name), "note")
        return [json.loads(row.value) for row in rows]

    def _leave_body(self) -> None:
        """Keep what the body has put and added, before a row by which it does not run again."""
        self.ledger.roots.keep()
        if self.ledger.before:
            self.ledger.talks.catch_up(self)

    def _keep_end(self, node: Node[Any], kind: str, encode: Callable[[], bytes]) -> bytes:
        """Keep how the node ends; what cannot be written is a failure, which is kept too."""
        refused = None
        try:
            value = encode()
        except NotStorable as error:
            kind, value, refused = "failure", encode_failure(error), error
        self._leave_body()
        self._keep_usage(node)
        value = self.ledger.append(self.ident, kind, value, find=self.is_root)
        self.kept, self.kept_as = True, (self.ledger.last, kind)
        if refused is not None:
            mark(refused, self.ident)
            raise refused
        return value

    def record_root_outcome(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
    ) -> Any:
        ledger, before = self.ledger, self.ledger.outcome(self.ident)
        del ledger.roots.running[self.ident]
        changed = before is not None and (before.kind == "failure") != (ending == "failed")
        # A journal that fails stops the run.
        with suppress(JournalError, LeaseLost):
            if (
                ledger.before
                and not ledger.suspended
                and (ending == "completed" or self.is_recorded)
            ):
                ledger.gone.report_rounds(self.ident, self.now, node.path)
            try:
                if changed and node._node_is_durable and not ledger.suspended:
                    if ending == "completed":
                        return self._keep_result(node, result)
                    if isinstance(error, Exception):
                        ledger.keep_causes(self.ident, error)
                        self._keep_end(node, "failure", lambda: encode_failure(error))
            finally:
                ledger.roots.end(self)
        return result

    def _end_attempt(self, over: Literal["", "cut", "kept"]) -> None:
        if self._attempt is not None:
            self._attempt.end, self._attempt = over, None

    def _append(self, kind: str, value: Any) -> None:
        self.ledger.append(self.ident, kind, json.dumps(value).encode())

    def _keep_usage(self, node: Node[Any]) -> None:
        if usage := usage_of(node):
            self._append("usage", usage)
            if put_options_of(node).on is not None:  # no reply in the journal says so
                self._append("spent", {"taken": [*usage.items()]})


@lru_cache
def _kind(cls: type[Node[Any]], name: str) -> tuple[str, bytes]:
    """Return what tells nodes of this class and name from others, and what the name is there."""
    return f"{stored_name(cls).replace(':', '.', 1)} {name}", name_bytes(name)
