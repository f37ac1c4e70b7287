"""Effects: calls outside of the run, which are not repeated after a restart."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from ..commander import (
    ConfigurationError,
    Node,
    NodeCancelled,
    NodeClosed,
    ToolError,
    actor_of,
    current_node,
)
from ..commander.durable import Effect, scope_of
from ..commander.waiting import lend_slot
from ..tools.results import describe_error
from ._failure import encode_failure, mark
from ._json import canonical, digest
from ._match import EffectMatch
from ._view import APPROVAL, DOUBT
from .errors import NotStorable

if TYPE_CHECKING:
    from ._file import Row
    from ._reply import ReplyRow
    from ._scope import NodeScope
    from ._state import JournalState

__all__ = ["DurableEffect", "Limited", "storable"]

MIN_RECONCILE_SECONDS = 60.0  # before a person is asked instead

Work: TypeAlias = Callable[[], Awaitable[Any]]
Reconcile: TypeAlias = Callable[[str], Awaitable[Any]]
Check: TypeAlias = Callable[[Mapping[str, Any]], Any] | None
AskHere: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]]

# Whether this code runs inside an effect, for whose end a suspension waits.
_INSIDE: ContextVar[bool] = ContextVar("anabranch_inside_effect", default=False)


class DurableEffect(Effect):
    """An effect of a node: its intent is recorded before the call, and its result after it.

    Its `EffectMatch` says which one it is. Questions about it belong to it, and so do the inputs
    that an answer changes.

    An effect with `changed` inputs may replace it: another effect of the same call.

    It waits for the replies that are `coming` to its caller and to the nodes above it, which may be
    its cause: only a complete reply is recorded, and another execution may get another one.
    """

    def __init__(
        self,
        caller: NodeScope,
        name: str,
        inputs: Mapping[str, Any],
        harmless: bool,
        coming: Iterable[ReplyRow],
        key: str | None = None,
    ) -> None:
        coming = [*coming]
        if any(reply.reader is asyncio.current_task() for reply in coming):
            raise ConfigurationError(
                f"{name} is called in the middle of a reply that the same code reads: after a"
                " restart the reply may be another one, so read it to its end or close it first, or"
                " use fork()"
            )
        # A reply that the caller reads itself would wait for this effect.
        self._because = [reply for reply in coming if reply.is_forked]
        self._caller = caller
        self._ledger = caller.ledger
        self._name = name
        self._inputs = inputs
        self._harmless = harmless
        self._text = self._ledger.keys.cut_text(canonical(inputs)[0])
        # By changed inputs: the effects that replace it.
        self._others: dict[str, DurableEffect] = {}
        self._gave: Any = None
        # The number of the row with its result or failure.
        self._ended = 0
        self._match = EffectMatch(caller, name, self._text, harmless=harmless, key=key)
        # For the next attempt (see `EffectMatch`), and the effect that this one replaces.
        self._shared = self._match.shared
        self._original: DurableEffect | None = None

    @property
    def ident(self) -> bytes:
        if self._original is None:
            return self._match.ident
        return digest(self._original.ident, "changed", self._text)

    @property
    def key(self) -> str:
        return digest(self._ledger.run_id, self.ident).hex()

    @property
    def forgotten(self) -> bool:
        return self._name in self._ledger.intents.names

    def given(self, ident: bytes) -> Any:
        """Return the result of the effect of this identity: this one, or one that replaces it."""
        if self._gave is None or ident != self.ident:
            row = self._ledger.find(ident, "gave")
            assert row is not None, "its row comes before that of the call"
            return json.loads(row.value)
        return self._gave

    def with_inputs(self, inputs: Mapping[str, Any]) -> DurableEffect:
        text = self._ledger.keys.cut_text(canonical(inputs)[0])
        if text == self._text:
            return self
        if (other := self._others.get(text)) is None:
            other = self._others[text] = copy(self)
            other._inputs, other._text, other._others, other._shared = inputs, text, {}, {}
            other._original = self
        return other

    async def ask(
        self, inputs: Mapping[str, Any], here: AskHere, check: Check = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        try:
            json.dumps(inputs)
        except (TypeError, ValueError) as error:
            raise NotStorable(
                f"the arguments of {self._name} about which a person is to be asked: {error}"
            ) from error
        await self._until_replies_are_complete()
        await self._match.settle()
        ident = digest(self.ident, APPROVAL)
        while ident in self._ledger.unanswered:
            ident = digest(ident, "again")
        question = {"kind": APPROVAL, "tool": self._name, "arguments": inputs}
        question, answer = await self._wait_for_answer(ident, question, here)
        if "failure" in answer:
            raise self._ledger.read_failure(answer["failure"], ident)
        if check is not None and answer["arguments"] is not None:
            try:
                check(answer["arguments"])
            except Exception as error:
                mark(error, ident)
                raise
        return question["arguments"], answer

    async def do(
        self,
        work: Work,
        *,
        again: bool = False,
        reconcile: Reconcile | None = None,
        horizon: float = 0.0,
        timeout: float | None = None,
        check: Check = None,
    ) -> Any:
        try:
            gave = await self._do(work, again, reconcile, horizon, timeout, check)
        except Exception:  # raised again when the caller has seen earlier ends
            await self._caller.until_seen(self._ended)
            raise
        await self._caller.until_seen(self._ended)
        return gave

    async def _do(
        self,
        work: Work,
        again: bool,
        reconcile: Reconcile | None,
        horizon: float,
        timeout: float | None,
        check: Check,
    ) -> Any:
        ledger = self._ledger
        await self._match.settle()
        while (doing := ledger.doing.get(self.ident)) is not None:
            await asyncio.wait([doing])  # a round of an earlier attempt is doing it
        if (row := ledger.find(self.ident, "gave")) is not None:
            self._gave, self._ended = json.loads(row.value), row.seq
        if self._gave is not None:
            if (scope := cast("NodeScope", scope_of(current_node()))) is not self._caller:
                scope.skips = True
            return self._gave
        rows = ledger.every(self.ident, "failed")
        failures = [json.loads(row.value) for row in rows]
        for row, failed in zip(rows, failures, strict=True):
            if failed["by"] == self._attempt():
                self._ended = row.seq
                raise ledger.read_failure(failed["failure"], self.ident)
        await self._until_replies_are_complete()
        if self._harmless:
            return await self._work(work, timeout)
        doubt = self._in_doubt()
        if doubt is not None and not again:
            limit = max(MIN_RECONCILE_SECONDS, timeout or 0.0)
            known = await self._resolve(doubt, reconcile, horizon, limit, check)
            if known is not False:
                return self._keep(known)
        elif doubt is None and not failures:
            await self._caller.until_on_course()
            await self._match.wait_for_unreplayed()
        if ledger.suspending and not _INSIDE.get():
            async with lend_slot():
                await asyncio.get_running_loop().create_future()  # until the tree is cancelled
        ended = ledger.loop.create_future()
        ledger.under_way.add(ended)
        ledger.doing[self.ident] = ended
        inside = _INSIDE.set(True)
        try:
            if doubt is None or not again:
                intent = {**self._match.intent(), **self._shared}
                if self._original is not None:
                    intent["call"] = self._match.ident.hex()
                self._append("intent", intent)
                if self._shared:
                    ledger.intents.begun[self._shared["of"]][self.ident] = self._shared["in"]
            await ledger.barrier()
            return await self._work(work, timeout)
        finally:
            _INSIDE.reset(inside)
            ledger.under_way.discard(ended)
            del ledger.doing[self.ident]
            ended.set_result(None)

    async def _work(self, work: Work, timeout: float | None) -> Any:
        """Call `work` and record the result or the failure; a cancel leaves the effect in doubt."""
        limited = None
        try:
            if timeout is None:
                gave = await work()
            else:
                limited = Limited(work)
                gave = await current_node().call_handler(limited, timeout=timeout, claim=True)
            return self._keep(gave)
        except Exception as error:  # also for a result that cannot be stored
            cut_off = limited is not None and not limited.over
            failed = {"by": self._attempt(), "failure": _failure(error), "cut_off": cut_off}
            kept = json.loads(self._append("failed", failed))["failure"]
            self._ended = self._ledger.last
            if kept != failed["failure"]:
                raise self._ledger.read_failure(kept, self.ident) from None
            mark(error, self.ident)
            raise

    def _keep(self, gave: Any) -> Any:
        """Record the result, and return it as it will be read."""
        data = self._append("gave", gave)
        self._gave, self._ended = json.loads(data), self._ledger.last
        self._ledger.talks.note_result(self._ledger.last, self._gave)
        return self._gave

    def _attempt(self) -> str:
        """Return what tells this attempt from others: of the caller and of the running node."""
        scope: Any = scope_of(current_node())
        return f"{self._match.attempt()} {scope.attempt}"

    def _append(self, kind: str, value: Any) -> bytes:
        # This object has its own result; a new attempt of the caller makes another object.
        find = kind != "gave" or self._caller.retried
        return self._ledger.record(self.ident, kind, value, find=find)

    # --- in doubt

    def _in_doubt(self) -> Row | None:
        """Return the row of its last intent if the outcome of that call is unknown."""
        intent = self._ledger.find(self.ident, "intent")
        for row in self._ledger.every(self.ident, "failed"):
            if intent is not None and row.seq > intent.seq and not json.loads(row.value)["cut_off"]:
                return None
        return intent

    async def _resolve(
        self, intent: Row, reconcile: Reconcile | None, horizon: float, limit: float, check: Check
    ) -> Any:
        """Find out the result; False if it was not done.

        If an earlier execution has asked a person, `reconcile` is called once more, and the first
        answer counts.
        """
        note = "nobody else can say"

        async def try_reconcile(reconcile: Reconcile) -> Any:
            nonlocal note
            clock, due = self._ledger.loop.time, intent.time + horizon
            latest = clock() + horizon  # the wall's clock may be set back
            while (left := min(due - time.time(), latest - clock())) > 0:  # noqa: ASYNC110 - the wall clock has no event
                await asyncio.sleep(min(left, 60.0))
            late = asyncio.timeout(limit)  # not a child node: this may be a final callback
            try:
                async with late:
                    known = await reconcile(self.key)
            except Exception as error:  # noqa: BLE001 - a person is asked instead, with this note
                note = f"reconcile raised {describe_error(error)}"
                if late.expired():
                    note = f"reconcile did not answer within {limit:g} seconds"
                return None
            if known is None:
                note = "reconcile does not know"
            return known

        async def here(_: object) -> dict[str, Any] | None:
            known = None if reconcile is None else await try_reconcile(reconcile)
            return (
                None if known is None else {"not_done": True} if known is False else {"is": known}
            )

        # Each intent is a question of its own, as an answer holds for one call only. So is each
        # question that follows an invalid answer.
        ident = digest(self.ident, DOUBT, intent.seq)
        asked = self._ledger.find(ident, "question") is not None
        if (
            reconcile is not None
            and not asked
            and (known := await try_reconcile(reconcile)) is not None
        ):
            return known
        arguments = json.loads(json.dumps(self._inputs, default=str))
        while True:
            question = {"kind": DOUBT, "tool": self._name, "arguments": arguments, "note": note}
            _, answer = await self._wait_for_answer(ident, question, here if asked else None)
            if "done" not in answer:
                return answer.get("is", False)
            try:
                return answer["done"] if check is None else check(answer)
            except ValueError as error:
                note = f"what was said that it gave cannot be: {error}"
                ident = digest(ident, "again")

    @lend_slot()
    async def _wait_for_answer(
        self, ident: bytes, question: dict[str, Any], here: AskHere | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask a person, and in this process too if `here` is given: the first answer counts.

        Each answer is sent to the run as a letter, so the letters decide which was first.
        """
        ledger, node = self._ledger, current_node()
        scope: Any = scope_of(node)
        question = _write_question(ledger, ident, question, node)
        ledger.asks[scope.ident] = ident, scope
        answered = ledger.find(ident, "letter") is not None
        if not answered:
            await ledger.barrier()
            posted = await ledger.file.letters(ledger.run_id)
            answered = any((each.kind, each.name) == ("answer", ident.hex()) for each in posted)
        letter = asyncio.ensure_future(ledger.take_letter(ident, "answer", ident.hex()))
        try:
            asking = None
            if here is not None and not answered:
                with suppress(NodeClosed):  # in a final callback only other processes answer
                    asking = node.call_handler(_AskHere(self, ident, here, question), claim=True)
            if asking is not None:
                letter.add_done_callback(lambda _: asking.cancel("it was answered elsewhere"))
                try:
                    await asking
                except NodeCancelled:
                    if not letter.done():
                        raise
            answer = json.loads(await letter)
            del ledger.asks[scope.ident]
            return question, answer
        finally:
            letter.cancel()

    async def post(self, ident: bytes, answer: dict[str, Any]) -> None:
        """Send an answer to the run as other processes do."""
        ledger = self._ledger
        await ledger.file.post(ledger.run_id, "answer", ident.hex(), json.dumps(answer).encode())

    @lend_slot()
    async def _until_replies_are_complete(self) -> None:
        for reply in self._because:
            await reply.until_complete()


def _write_question(
    ledger: JournalState, ident: bytes, question: dict[str, Any], node: Node[Any]
) -> dict[str, Any]:
    """Record a question of `node`, and return it as an earlier execution has recorded it."""
    row, withdrawn = ledger.find(ident, "question"), ledger.find(ident, "withdrawn")
    if row is not None and (withdrawn is None or withdrawn.seq < row.seq):
        return json.loads(row.value)
    actor = actor_of(node)
    by = (None, None) if actor is None else (actor.agent, actor.session_id)
    written = {**question, "path": node.path, "agent": by[0], "session_id": by[1]}
    return json.loads(ledger.record(ident, "question", written, find=True))


class Limited(Node[Any], internal=True, name="work"):
    """The work of an effect with a timeout."""

    _node_is_work = True

    def __init__(self, work: Work) -> None:
        self._work = work
        self.over = False

    async def task(self) -> Any:
        try:
            given = await self._work()
        except Exception:  # it has ended by itself, and was not cut off
            self.over = True
            raise
        self.over = True
        return given


class _AskHere(Node[None], internal=True, name="ask"):
    """A question to a person at this process."""

    def __init__(
        self, effect: DurableEffect, ident: bytes, here: AskHere, question: dict[str, Any]
    ) -> None:
        self._effect = effect
        self.ident = ident
        self._here = here
        self._question = question

    async def task(self) -> None:
        try:
            answer = await self._here(self._question["arguments"])
        except Exception as error:  # noqa: BLE001 - it is the answer in each execution
            answer = {"failure": _failure(error)}
        if answer is not None:
            await self._effect.post(self.ident, answer)


def storable(error: Exception) -> Exception:
    """Return `error`, or a `ToolError` in its place if it could not be stored."""
    try:
        encode_failure(error)
    except NotStorable:
        return ToolError(describe_error(error))
    return error


def _failure(error: Exception) -> Any:
    return json.loads(encode_failure(storable(error)))
