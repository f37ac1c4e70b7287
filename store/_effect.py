"""Effects: calls outside the process, which a restart does not repeat."""

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
from ..commander.durable import IS_ASIDE, Effect, scope_of
from ..commander.errors import is_final
from ..commander.waiting import lend_slot
from ..tools.results import describe_error
from ._failure import attach_idents, encode_failure
from ._json import canonical, digest
from ._match import EffectMatch
from ._view import APPROVAL, DOUBT
from .errors import JournalError, LeaseLost, NotStorable

if TYPE_CHECKING:
    from ._execution import Execution
    from ._journal_file import Row
    from ._reply import ReplyRow
    from ._scope import NodeScope

__all__ = ["INSIDE_EFFECT", "DurableEffect", "Limited", "storable"]

MIN_RECONCILE_SECONDS = 60.0  # for `reconcile` to answer, before a person is asked

Work: TypeAlias = Callable[[], Awaitable[Any]]
Reconcile: TypeAlias = Callable[[str], Awaitable[Any]]
Check: TypeAlias = Callable[[Mapping[str, Any]], Any] | None
AskHere: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]]

# Whether this code runs inside an effect: a suspension waits for its end, and so for inner effects.
INSIDE_EFFECT: ContextVar[bool] = ContextVar("anabranch_inside_effect", default=False)


class DurableEffect(Effect):
    """An effect of a node: its intent is recorded before the call, and its result after it.

    Its `EffectMatch` finds its identity. If a person changes the inputs, another effect of the same
    call replaces it (`with_inputs`).

    It first waits for the incomplete replies of its caller and of the nodes above. One of these may
    be its cause, and only a complete reply is recorded: the next execution may get another one.
    """

    def __init__(
        self,
        caller: NodeScope,
        name: str,
        inputs: Mapping[str, Any],
        harmless: bool,
        growing: Iterable[ReplyRow],
        key: str | None = None,
    ) -> None:
        growing = [*growing]
        if any(reply.reader is asyncio.current_task() for reply in growing):
            raise ConfigurationError(
                f"{name} was called before the reply that the same code reads was complete, and a"
                " restart may get another reply: read it to its end, close it, or use fork()"
            )
        # Only forked replies: one that the caller reads itself would wait for this effect.
        self._awaited_replies = [reply for reply in growing if reply.is_forked]
        self._caller = caller
        self._execution = caller.execution
        self._name = name
        self._inputs = inputs
        self._harmless = harmless
        self._text = self._execution.keys.cut_text(canonical(inputs)[0])
        # By text of the changed inputs: the effects that replace it.
        self._replacements: dict[str, DurableEffect] = {}
        self._result: Any = None
        # The number of the row with its result or failure.
        self._end_number = 0
        self._match = EffectMatch(caller, name, self._text, harmless=harmless, key=key)
        # Fields of its intent for later attempts (see `EffectMatch`).
        self._shared = self._match.shared
        # The effect that this one replaces.
        self._original: DurableEffect | None = None

    @property
    def ident(self) -> bytes:
        if self._original is None:
            return self._match.ident
        return digest(self._original.ident, "changed", self._text)

    @property
    def key(self) -> str:
        return digest(self._execution.run_id, self.ident).hex()

    @property
    def forgotten(self) -> bool:
        return self._name in self._execution.intents.names

    def result_of(self, ident: bytes) -> Any:
        """Return the result of the effect of this identity: this one, or one that replaces it."""
        if self._result is None or ident != self.ident:
            row = self._execution.find(ident, "gave")
            assert row is not None, "its row comes before that of the call"
            return json.loads(row.value)
        return self._result

    def with_inputs(self, inputs: Mapping[str, Any]) -> DurableEffect:
        text = self._execution.keys.cut_text(canonical(inputs)[0])
        if text == self._text:
            return self
        if (other := self._replacements.get(text)) is None:
            other = self._replacements[text] = copy(self)
            other._inputs, other._text, other._replacements, other._shared = inputs, text, {}, {}
            other._original = self
        return other

    async def ask(
        self, inputs: Mapping[str, Any], here: AskHere, check: Check = None
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        try:
            json.dumps(inputs)
        except (TypeError, ValueError) as error:
            raise NotStorable(
                f"a person cannot be asked about the arguments of {self._name}, which are not JSON:"
                f" {error}"
            ) from error
        # In this order: a reply may fail, and `settle` may choose another identity.
        await self._until_replies_are_complete()
        await self._match.settle()
        ident = digest(self.ident, APPROVAL)
        while ident in self._execution.removed_answers:
            ident = digest(ident, "again")
        question = {"kind": APPROVAL, "tool": self._name, "arguments": inputs}
        question, answer = await self._wait_for_answer(ident, question, here)
        if "failure" in answer:
            raise self._execution.read_failure(answer["failure"], ident)
        if check is not None and answer["arguments"] is not None:
            try:
                check(answer["arguments"])
            except Exception as error:
                attach_idents(error, ident)
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
        prepare: Callable[[], object] | None = None,
    ) -> Any:
        try:
            result = await self._do(work, again, reconcile, horizon, timeout, check, prepare)
        except Exception:  # it too is raised only after the caller has seen earlier ends
            await self._caller.until_seen(self._end_number)
            raise
        await self._caller.until_seen(self._end_number)
        return result

    async def _do(
        self,
        work: Work,
        again: bool,
        reconcile: Reconcile | None,
        horizon: float,
        timeout: float | None,
        check: Check,
        prepare: Callable[[], object] | None,
    ) -> Any:
        execution = self._execution
        await self._match.settle()
        while (other := execution.effects_in_progress.get(self.ident)) is not None:
            await asyncio.wait([other])  # a round that an earlier attempt put makes this call
        if (row := execution.find(self.ident, "gave")) is not None:
            self._result, self._end_number = json.loads(row.value), row.seq
        if self._result is not None:
            if (scope := cast("NodeScope", scope_of(current_node()))) is not self._caller:
                scope.returns_recorded = True  # its node puts no children this time
            return self._result
        rows = execution.find_all(self.ident, "failed")
        failures = [json.loads(row.value) for row in rows]
        for row, failed in zip(rows, failures, strict=True):
            if failed["by"] == self._attempt():
                self._end_number = row.seq
                raise execution.read_failure(failed["failure"], self.ident)
        await self._until_replies_are_complete()
        if self._harmless:
            return await self._work(work, timeout)
        doubt = self._in_doubt()
        if doubt is not None and not again:
            limit = max(MIN_RECONCILE_SECONDS, timeout or 0.0)
            known = await self._resolve(doubt, reconcile, horizon, limit, check)
            if known is not False:
                return self._record_result(known)
        elif doubt is None and not failures:  # no row yet: it may be a recorded one that moved
            await self._caller.until_on_course()
            await self._match.wait_for_unreplayed()
        if execution.suspending and not INSIDE_EFFECT.get():
            async with lend_slot():
                await asyncio.get_running_loop().create_future()  # until the tree is cancelled
        if prepare is not None:
            try:
                prepare()
            except Exception as error:
                if is_final(error):
                    execution.stop_for_context(error)  # before the intent: the effect has not begun
                raise
        has_begun = False
        ended = execution.loop.create_future()
        execution.effects_in_progress[self.ident] = ended
        inside = INSIDE_EFFECT.set(True)
        try:
            # A repeated call keeps its intent: the first one still says since when it is in doubt.
            if doubt is None or not again:
                intent = {**self._match.intent(), **self._shared}
                if IS_ASIDE.get():
                    intent["aside"] = True
                if self._original is not None:
                    intent["call"] = self._match.ident.hex()
                self._append("intent", intent)
                if self._shared:
                    execution.intents.attempts_by_call[self._shared["of"]][self.ident] = (
                        self._shared["in"]
                    )
            # The intent must be on disk before the call: else a crash would hide that it was made.
            await execution.barrier()
            has_begun = True
            return await self._work(work, timeout)
        except asyncio.CancelledError:
            if execution.lacks_context and not has_begun:
                with suppress(JournalError, LeaseLost):
                    self._fail_unattempted(cast("Exception", execution.stop_error))
            raise
        finally:
            INSIDE_EFFECT.reset(inside)
            del execution.effects_in_progress[self.ident]
            ended.set_result(None)

    async def _work(self, work: Work, timeout: float | None) -> Any:
        """Call `work` and record its result or failure; a cancel leaves the effect in doubt."""
        limited = None
        try:
            if timeout is None:
                result = await work()
            else:
                limited = Limited(work)
                result = await current_node().call_handler(limited, timeout=timeout, claim=True)
            return self._record_result(result)
        except Exception as error:  # also for a result that cannot be stored
            if is_final(error):
                self._execution.stop_for_context(error)
                self._fail_unattempted(error)
                raise
            cut_off = limited is not None and not limited.over
            failed = {"by": self._attempt(), "failure": _failure(error), "cut_off": cut_off}
            recorded = json.loads(self._append("failed", failed))["failure"]
            self._end_number = self._execution.last_number
            if recorded != failed["failure"]:
                raise self._execution.read_failure(recorded, self.ident) from None
            attach_idents(error, self.ident)
            raise

    def _fail_unattempted(self, error: Exception) -> None:
        """Record a failure of no attempt: it is not in doubt, and a resume makes it again."""
        self._append("failed", {"by": "", "failure": _failure(error), "cut_off": False})

    def _record_result(self, result: Any) -> Any:
        """Record the result, and return it as a later execution reads it."""
        data = self._append("gave", result)
        self._result, self._end_number = json.loads(data), self._execution.last_number
        self._execution.conversations.note_result(self._execution.last_number, self._result)
        return self._result

    def _attempt(self) -> str:
        """Return a text that differs between attempts of the caller and of the running node."""
        scope: Any = scope_of(current_node())
        return f"{self._match.attempt()} {scope.attempt}"

    def _append(self, kind: str, value: Any) -> bytes:
        # This object holds its result. Only a new attempt of the caller, with a new object, finds
        # the row.
        find = kind != "gave" or self._caller.is_retried
        ends = kind != "intent" and self.ident in self._execution.effects_in_progress
        return self._execution.record(self.ident, kind, value, find=find, ends_effect=ends)

    # --- in doubt

    def _in_doubt(self) -> Row | None:
        """Return the row of its last intent if the outcome of that call is unknown, else None."""
        intent = self._execution.find(self.ident, "intent")
        for row in self._execution.find_all(self.ident, "failed"):
            if intent is not None and row.seq > intent.seq and not json.loads(row.value)["cut_off"]:
                return None
        return intent

    async def _resolve(
        self, intent: Row, reconcile: Reconcile | None, horizon: float, limit: float, check: Check
    ) -> Any:
        """Return the result of a call in doubt, or False if it was not done.

        `reconcile` is asked first, then a person. If an earlier execution has asked a person, both
        are asked at once, and the first answer counts.
        """
        note = "the tool has no reconcile function"

        async def try_reconcile(reconcile: Reconcile) -> Any:
            nonlocal note
            clock, due = self._execution.loop.time, intent.time + horizon
            latest = clock() + horizon  # the wall clock may be set back
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
                note = "reconcile returned None: it does not know"
            return known

        async def here(_: object) -> dict[str, Any] | None:
            known = None if reconcile is None else await try_reconcile(reconcile)
            return (
                None if known is None else {"not_done": True} if known is False else {"is": known}
            )

        # Each intent asks a new question, as an answer holds for one call only. An invalid answer
        # is followed by a new question too.
        ident = digest(self.ident, DOUBT, intent.seq)
        is_asked = self._execution.find(ident, "question") is not None
        if (
            reconcile is not None
            and not is_asked
            and (known := await try_reconcile(reconcile)) is not None
        ):
            return known
        arguments = json.loads(json.dumps(self._inputs, default=str))
        while True:
            question = {"kind": DOUBT, "tool": self._name, "arguments": arguments, "note": note}
            _, answer = await self._wait_for_answer(ident, question, here if is_asked else None)
            if "done" not in answer:
                return answer.get("is", False)
            try:
                return answer["done"] if check is None else check(answer)
            except ValueError as error:
                note = f"the answer is not a result of the tool: {error}"
                ident = digest(ident, "again")

    @lend_slot()
    async def _wait_for_answer(
        self, ident: bytes, question: dict[str, Any], here: AskHere | None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask a person, and in this process too if `here` is given; return question and answer.

        Each answer is sent to the run as a letter. The first letter counts.
        """
        execution, node = self._execution, current_node()
        scope: Any = scope_of(node)
        question = _write_question(execution, ident, question, node)
        execution.open_questions[scope.ident] = ident, scope
        answered = execution.find(ident, "letter") is not None
        if not answered:
            # The question must be on disk before it is shown: others answer it by its row.
            await execution.barrier()
            letters = await execution.file.letters(execution.run_id)
            answered = any((each.kind, each.name) == ("answer", ident.hex()) for each in letters)
        letter = asyncio.ensure_future(execution.take_letter(ident, "answer", ident.hex()))
        try:
            asking = None
            if here is not None and not answered:
                with suppress(NodeClosed):  # in a final callback only other processes answer
                    asking = node.call_handler(_AskHere(self, ident, here, question), claim=True)
            if asking is not None:
                letter.add_done_callback(lambda _: asking.cancel("another process answered"))
                try:
                    await asking
                except NodeCancelled:
                    if not letter.done():
                        raise
            answer = json.loads(await letter)
            del execution.open_questions[scope.ident]
            return question, answer
        finally:
            letter.cancel()

    async def post(self, ident: bytes, answer: dict[str, Any]) -> None:
        """Send an answer to the run as other processes do."""
        execution = self._execution
        await execution.file.post(
            execution.run_id, "answer", ident.hex(), json.dumps(answer).encode()
        )

    @lend_slot()
    async def _until_replies_are_complete(self) -> None:
        for reply in self._awaited_replies:
            await reply.until_complete()


def _write_question(
    execution: Execution, ident: bytes, question: dict[str, Any], node: Node[Any]
) -> dict[str, Any]:
    """Record a question of `node`, unless an earlier execution has, and return it."""
    row, withdrawn = execution.find(ident, "question"), execution.find(ident, "withdrawn")
    if row is not None and (withdrawn is None or withdrawn.seq < row.seq):
        return json.loads(row.value)
    actor = actor_of(node)
    by = (None, None) if actor is None else (actor.agent, actor.session_id)
    value = {**question, "path": node.path, "agent": by[0], "session_id": by[1]}
    return json.loads(execution.record(ident, "question", value, find=True))


class Limited(Node[Any], internal=True, name="work"):
    """The work of an effect with a timeout."""

    _node_is_work = True

    def __init__(self, work: Work) -> None:
        self._work = work
        self.over = False

    async def task(self) -> Any:
        try:
            result = await self._work()
        except Exception:  # it failed, and was not cut off by the timeout
            self.over = True
            raise
        self.over = True
        return result


class _AskHere(Node[None], internal=True, name="ask"):
    """Asks a person at this process."""

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
        except Exception as error:
            if is_final(error):
                # No answer: a resume asks again. The node of the run that fails stops it. A stop
                # here would leave an effect around this in doubt.
                raise
            answer = {"failure": _failure(error)}
        if answer is not None:
            await self._effect.post(self.ident, answer)


def storable(error: Exception) -> Exception:
    """Return `error`, or a `ToolError` with its description if it cannot be stored."""
    try:
        encode_failure(error)
    except NotStorable:
        return ToolError(describe_error(error))
    return error


def _failure(error: Exception) -> Any:
    return json.loads(encode_failure(storable(error)))
