"""Effects: what is done outside a run, and is not done twice."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from copy import copy
from typing import TYPE_CHECKING, Any, cast

from ..commander import (
    ConfigurationError,
    Node,
    NodeCancelled,
    NodeClosed,
    ToolError,
    actor_of,
    current_node,
)
from ..commander.kept import Effect
from ..commander.scope import scope_of
from ..commander.waiting import lending_slot
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

__all__ = ["KeptEffect", "Limited", "storable"]

PATIENCE = 60.0  # seconds that reconcile gets at least, before a person is asked

# Whether this code is the work of an effect, which the run's suspension waits for.
_INSIDE: ContextVar[bool] = ContextVar("anabranch_inside_effect", default=False)


class KeptEffect(Effect):
    """An effect of a node: first its intent is written, then what it gave.

    Its `EffectMatch` says which one it is. Questions about it belong to it, and so do the inputs
    that an answer changes.

    In its place may come those with `changed` inputs, each another effect of the same call.

    It waits for the replies that are `coming` to its caller and to those above it, as it may have
    been made because of one: only a whole reply is kept, and another life may get another one.
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
                f"{name} is called in the middle of a reply that the same code reads: a later life"
                " may get another reply, so read it to its end or close it first, or use fork()"
            )
        # What reads a reply by itself may wait for this.
        self._because = [reply for reply in coming if reply.is_forked]
        self._caller = caller
        self._ledger = caller.ledger
        self._name = name
        self._inputs = inputs
        self._harmless = harmless
        self._text = self._ledger.keys.cut_text(canonical(inputs)[0])
        # By their inputs: those in its place.
        self._others: dict[str, KeptEffect] = {}
        self._gave: Any = None
        # The number of the row with its end.
        self._ended = 0
        self._match = EffectMatch(caller, name, self._text, harmless=harmless, key=key)
        # Where the next attempt looks for it; and in whose place it is, if its inputs are changed.
        self._shared = self._match.shared
        self._original: KeptEffect | None = None

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
        """Return what the effect of this identity gave: itself, or one in its place."""
        if self._gave is None or ident != self.ident:
            row = self._ledger.find(ident, "gave")
            assert row is not None, "the row of its result came after it"
            return json.loads(row.value)
        return self._gave

    def changed(self, inputs: Mapping[str, Any]) -> KeptEffect:
        text = self._ledger.keys.cut_text(canonical(inputs)[0])
        if text == self._text:
            return self
        if (other := self._others.get(text)) is None:
            other = self._others[text] = copy(self)
            other._inputs, other._text, other._others, other._shared = inputs, text, {}, {}
            other._original = self
        return other

    async def ask(
        self,
        inputs: Mapping[str, Any],
        here: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
        check: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> tuple[Mapping[str, Any], dict[str, Any]]:
        try:
            json.dumps(inputs)
        except (TypeError, ValueError) as error:
            raise NotStorable(
                f"the arguments of {self._name} about which a person is to be asked: {error}"
            ) from error
        await self._until_replies_are_whole()
        await self._match.settle()
        ident = digest(self.ident, APPROVAL)
        while ident in self._ledger.unanswered:
            ident = digest(ident, "again")
        question = {"kind": APPROVAL, "tool": self._name, "arguments": inputs}
        question, answer = await self._wait_for_answer(ident, question, here)
        if "failure" in answer:
            raise self._ledger.read_failure(json.dumps(answer["failure"]).encode(), ident)
        if check is not None and answer["arguments"] is not None:
            try:
                check(answer["arguments"])
            except Exception as error:
                mark(error, ident)
                raise
        return question["arguments"], answer

    async def do(
        self,
        work: Callable[[], Awaitable[Any]],
        *,
        again: bool = False,
        reconcile: Callable[[str], Awaitable[Any]] | None = None,
        horizon: float = 0.0,
        timeout: float | None = None,
        check: Callable[[Mapping[str, Any]], Any] | None = None,
    ) -> Any:
        try:
            gave = await self._do(work, again, reconcile, horizon, timeout, check)
        except Exception:  # raised again, once the caller has seen earlier ends
            await self._caller.until_seen(self._ended)
            raise
        await self._caller.until_seen(self._ended)
        return gave

    async def _do(
        self,
        work: Callable[[], Awaitable[Any]],
        again: bool,
        reconcile: Callable[[str], Awaitable[Any]] | None,
        horizon: float,
        timeout: float | None,
        check: Callable[[Mapping[str, Any]], Any] | None,
    ) -> Any:
        ledger = self._ledger
        await self._match.settle()
        while (doing := ledger.doing.get(self.ident)) is not None:
            await asyncio.wait([doing])  # a round that an earlier attempt has put does it now
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
                raise ledger.read_failure(json.dumps(failed["failure"]).encode(), self.ident)
        await self._until_replies_are_whole()
        if self._harmless:
            return await self._work(work, timeout)
        doubt = self._in_doubt()
        if doubt is not None and not again:
            limit = max(PATIENCE, timeout or 0.0)
            known = await self._resolve(doubt, reconcile, horizon, limit, check)
            if known is not False:
                return self._keep(known)
        elif doubt is None and not failures:
            await self._caller.until_on_course()
            await self._match.wait_for_unreplayed()
        if ledger.suspending and not _INSIDE.get():
            async with lending_slot():
                await asyncio.get_running_loop().create_future()  # until the tree is cancelled
        ended = asyncio.get_running_loop().create_future()
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

    async def _work(self, work: Callable[[], Awaitable[Any]], timeout: float | None) -> Any:
        """Do it, and keep its end whatever that is: but for a cancel, which leaves it in doubt."""
        limited = None
        try:
            if timeout is None:
                gave = await work()
            else:
                limited = Limited(work)
                gave = await current_node().call_handler(limited, timeout=timeout, claim=True)
            return self._keep(gave)
        except Exception as error:  # also what it gave may be more than a journal takes
            cut_off = limited is not None and not limited.over
            failed = {"by": self._attempt(), "failure": _failure(error), "cut_off": cut_off}
            kept = json.loads(self._append("failed", failed))["failure"]
            self._ended = self._ledger.last
            if kept != failed["failure"]:
                raise self._ledger.read_failure(json.dumps(kept).encode(), self.ident) from None
            mark(error, self.ident)
            raise

    def _keep(self, gave: Any) -> Any:
        """Write what it gave, and return that as it will be read."""
        data = self._append("gave", gave)
        self._gave, self._ended = json.loads(data), self._ledger.last
        self._ledger.talks.note_result(self._ledger.last, self._gave)
        return self._gave

    def _attempt(self) -> str:
        """Say which attempt this is: of its caller, and of the node in which it is done."""
        scope: Any = scope_of(current_node())
        return f"{self._match.attempt()} {scope.attempt}"

    def _append(self, kind: str, value: Any) -> bytes:
        data = json.dumps(value).encode()
        # What it gave this object has itself: another attempt of a caller makes another one.
        find = kind != "gave" or self._caller.retried
        return self._ledger.append(self.ident, kind, data, find=find)

    # --- in doubt

    def _in_doubt(self) -> Row | None:
        """Return its last intent, if nothing is known of what became of it."""
        intent = self._ledger.find(self.ident, "intent")
        for row in self._ledger.every(self.ident, "failed"):
            if intent is not None and row.seq > intent.seq and not json.loads(row.value)["cut_off"]:
                return None
        return intent

    async def _resolve(
        self,
        intent: Row,
        reconcile: Callable[[str], Awaitable[Any]] | None,
        horizon: float,
        limit: float,
        check: Callable[[Mapping[str, Any]], Any] | None,
    ) -> Any:
        """Return what it gave; False if it was not done.

        A person may be asked since an earlier life: then `reconcile` is asked once more beside the
        person, and whoever answers first counts.
        """
        note = "nobody else can say"

        async def look(reconcile: Callable[[str], Awaitable[Any]]) -> Any:
            nonlocal note
            clock, due = self._ledger.loop.time, intent.time + horizon
            latest = clock() + horizon  # the wall's clock may be set back
            while (left := min(due - time.time(), latest - clock())) > 0:  # noqa: ASYNC110 - the wall clock tells nobody
                await asyncio.sleep(min(left, 60.0))
            late = asyncio.timeout(limit)  # no child: it may be asked in a final callback
            try:
                async with late:
                    known = await reconcile(self.key)
            except Exception as error:  # noqa: BLE001 - a person is asked instead, and sees it
                note = f"reconcile raised {describe_error(error)}"
                if late.expired():
                    note = f"reconcile did not answer within {limit:g} seconds"
                return None
            if known is None:
                note = "reconcile does not know"
            return known

        async def here(_: object) -> dict[str, Any] | None:
            known = None if reconcile is None else await look(reconcile)
            return (
                None if known is None else {"not_done": True} if known is False else {"is": known}
            )

        # Each intent is a question of its own: what was said of one says nothing of the next. So is
        # each that follows on an answer that cannot be.
        ident = digest(self.ident, DOUBT, intent.seq)
        asked = self._ledger.find(ident, "question") is not None
        if reconcile is not None and not asked and (known := await look(reconcile)) is not None:
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

    @lending_slot()
    async def _wait_for_answer(
        self,
        ident: bytes,
        question: dict[str, Any],
        here: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]] | None,
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Ask a person, in this process too if `here` is given: the first answer counts.

        Each answer goes by letters to the run, whose order decides which was first.
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
                with suppress(NodeClosed):  # in a final callback those who are elsewhere answer
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
        """Send an answer to the run, as those do who are not here."""
        ledger = self._ledger
        await ledger.file.post(ledger.run_id, "answer", ident.hex(), json.dumps(answer).encode())

    @lending_slot()
    async def _until_replies_are_whole(self) -> None:
        for reply in self._because:
            await reply.whole()


def _write_question(
    ledger: JournalState, ident: bytes, question: dict[str, Any], node: Node[Any]
) -> dict[str, Any]:
    """Record a question of `node`, and return it as an earlier execution has recorded it."""
    row, withdrawn = ledger.find(ident, "question"), ledger.find(ident, "withdrawn")
    if row is not None and (withdrawn is None or withdrawn.seq < row.seq):
        return json.loads(row.value)
    actor = actor_of(node)
    by = (None, None) if actor is None else (actor.agent, actor.session_id)
    data = json.dumps({**question, "path": node.path, "agent": by[0], "session_id": by[1]})
    return json.loads(ledger.append(ident, "question", data.encode(), find=True))


class Limited(Node[Any], internal=True, name="work"):
    """What an effect does, where that is limited in time."""

    _node_work = True

    def __init__(self, work: Callable[[], Awaitable[Any]]) -> None:
        self._work = work
        self.over = False

    async def task(self) -> Any:
        try:
            given = await self._work()
        except Exception:  # whatever it is, it has ended by itself: it was not cut off
            self.over = True
            raise
        self.over = True
        return given


class _AskHere(Node[None], internal=True, name="ask"):
    """A question to whoever is in this process."""

    def __init__(
        self,
        effect: KeptEffect,
        ident: bytes,
        here: Callable[[Mapping[str, Any]], Awaitable[dict[str, Any] | None]],
        question: dict[str, Any],
    ) -> None:
        self._effect = effect
        self.ident = ident
        self._here = here
        self._question = question

    async def task(self) -> None:
        try:
            answer = await self._here(self._question["arguments"])
        except Exception as error:  # noqa: BLE001 - it is the answer, in each life
            answer = {"failure": _failure(error)}
        if answer is not None:
            await self._effect.post(self.ident, answer)


def storable(error: Exception) -> Exception:
    """Return a failure, or what stands for it in each life if it could not be made again."""
    try:
        encode_failure(error)
    except NotStorable:
        return ToolError(describe_error(error))
    return error


def _failure(error: Exception) -> Any:
    return json.loads(encode_failure(storable(error)))
