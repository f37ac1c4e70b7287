"""`Run`: a question that is being answered, and what has been said of it so far."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from ..agents import AgentMessage
from ..agents.hearing import APPROVE, LISTENER, Feed, Speech
from ..commander import Commander, Event, EventKind, Node, NodeCancelled
from ..commander.tap import Tap
from ..messages import ToolCall, Usage
from ..store import Journal, JournalError, NotPending, PendingDoubt, RunBusy, RunNotFound
from ..tools import Approval, Approvals, Decision, ToolQuestion, ToolResult
from ..tools.origins import definition_of
from ..tracing.records import KINDS as TREE_KINDS
from ..tracing.records import Record, Records, to_line
from ._failure import Failure, failure_of, log_failure
from ._kept import PREFIX, Told, go_on
from ._kept_log import KeptLog
from ._log import Entry, EntryKind, Log
from ._served import BadQuestion, Question, Served

logger = logging.getLogger("anabranch.serve")

__all__ = ["Kept", "OnLeave", "Run", "RunState"]

OnLeave: TypeAlias = Literal["cancel", "detach"]
RunState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]

KINDS: tuple[EventKind, ...] = ("text", "reasoning", "called", "answered")
CAPACITY = 1000
# Seconds that a person has to answer; no answer denies (S16).
PATIENCE = 3600.0
# What lines of a recording say of the machine and of the code, and what stands there instead.
INSIDE: Mapping[str, Any] = {
    "pid": 0,
    "host": "",
    "error": {"type": "error"},
    "at": "",
    "text": "",
}
CANCELLED = Failure("cancelled", "the run was cancelled")
NOBODY = "nobody is there to ask"
# What a model is told of a call that is not done again.
UNKNOWN = "nobody knows whether this was done, as it was cut off; it is not repeated"


class Run(Node[None], internal=True):
    """Answers a question in a tree of its own, below this node, and keeps what is said in `log`.

    `id` is nobody's to guess. `owner` is who asked. `approvals` has the calls that wait for a
    person's yes; without `asks` nobody is there to give one, and they are denied. `traced` says
    that its tree is recorded, without content, in `trace`. It never fails: how it ends is the log's
    last entry, which tells a client nothing of the inside.
    """

    def __init__(
        self,
        served: Served,
        question: Question,
        owner: str,
        on_leave: OnLeave,
        *,
        traced: bool = False,
        asks: bool = False,
        kept: Kept | None = None,
        created: float | None = None,
        echo: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"run:{served.name}")
        self.id = secrets.token_hex(16) if kept is None else kept.id
        self.served = served
        self.owner = owner
        self.on_leave = on_leave
        self.created = created or time.time()
        # The tree as lines of a recording, where somebody may look at it.
        self.trace = Log() if traced else None
        # What a wire says of the request again.
        self.echo = echo
        self.log = Log() if kept is None else kept.log
        # Whether the journal has it, where one keeps it; its id is told to nobody before.
        self.is_accepted = kept is None or kept.again
        self._settled = asyncio.Event()  # that it is known whether it is accepted
        self._kept = kept
        self._question: Question | None = question
        # The id of the first call that the client is to run, where the reply has provider items.
        self.first_call: str | None = None
        self._stopped = False  # somebody has cancelled it, and not the end of the server
        self.approvals = Approvals(timeout=PATIENCE, on_ask=self._asked)
        self._asks = asks
        self.usage: Mapping[str, Usage] = {}
        self.tree: Commander | None = None
        # None when it has ended, as is the question: they hold all that was asked.
        self.work: Node[Any] | None = None
        # Why what is served now would not take this question any more.
        self.refused: BadQuestion | None = None
        try:
            self.work = served.node(question)
        except BadQuestion as error:
            if kept is None or not kept.again:
                raise
            self.refused = error
        self.at_done(lambda _: self.settle())
        self._readers = 0
        self._tap: Tap | None = None
        self._speaking = 0  # the node that spoke last, and what an entry says of it
        self._speaker: dict[str, Any] = {"agent": None}
        self._speech = 0  # the node of the answer's last reply, and what it has said
        self._said: list[str] = []
        # The questions by the numbers under which they are told.
        self._questions: dict[int, Approval | PendingDoubt] = {}
        self._last_question = 0
        self._calling = set[int]()  # the nodes of calls that have not ended
        self._doubts = set[int]()  # that were told
        if self.is_accepted:
            self._settled.set()

    @property
    def is_kept(self) -> bool:
        """Whether a journal keeps it."""
        return self._kept is not None

    def asked(self) -> tuple[Question, dict[str, Any]]:
        """Return the question, and as JSON who asked it and how."""
        assert self._question is not None
        about = {"owner": self.owner, "created": self.created}
        return self._question, {**about, "traced": self.trace is not None, "asks": self._asks}

    def cancel(self, reason: str = "") -> None:
        """Cancel it for good; one that only the end of the server cancels goes on later."""
        self._stopped = True
        super().cancel(reason)

    def accept(self) -> None:
        """Take note that its journal has it."""
        self.is_accepted = True
        self._settled.set()

    async def until_accepted(self) -> bool:
        """Return whether it goes on: not if its journal could not take it."""
        await self._settled.wait()
        return self.is_accepted

    def abandon(self) -> None:
        """Tell readers that it was cancelled, though it goes on."""
        self._end("cancelled", CANCELLED)

    def said_before(self, text: str) -> None:
        """Take note of what an earlier life has said last."""
        self._said[:] = [text]

    async def task(self) -> None:
        """Let the thing that is served answer."""
        # A journal would keep a call waiting that nobody is asked about.
        APPROVE.set(self.approvals if self._asks else _deny)
        LISTENER.set(_BrokenOff(self._break_off))
        try:
            # Who blocks the loop is named by the server's commander, once and not for each run.
            async with Commander(policy="fail_fast", slow_after=None) as tree:
                self.tree = tree
                self._tap = Tap(tree, CAPACITY, self._on_news, KINDS, self._on_news)
                if self.trace is not None:
                    record_into(self.trace, tree)
                told = await self._answer(tree)
            if told.text and told.text != "".join(self._said):
                self._say("text", text=told.text, speech="result", agent=self.served.name)
            if told.items:
                self._say("items", items=told.items)
                if told.calls and self.echo.get("store", True):
                    self.first_call = told.calls[0]["id"]
            for call in told.calls:
                self._say("requested", **call)
            if self.trace is not None:
                self.trace.append("completed")
            self._say("completed", usage=told.usage, status=told.status)
        except asyncio.CancelledError:
            self._end("cancelled", CANCELLED)
            raise
        except NodeCancelled:  # by what is served itself, and not by the end of the server
            self._stopped = True
            self._end("cancelled", CANCELLED)
        except BaseException as error:
            # Another server has this file too, and this run.
            if isinstance(error, RunBusy) and self.is_kept:
                logger.warning("the run %s goes on elsewhere: %s", self.id, error)
                self.log.leave()
                return
            self._fail(error)
            self._end("failed", failure_of(error, self.id))
            if not isinstance(error, Exception):
                raise

    async def _answer(self, tree: Commander) -> Told:
        kept = self._kept
        if kept is None:
            assert self.work is not None
            result = await tree.run(self.work)
            return Told.of(self.served, result, self.spent.to_wire())
        return await tree.run(go_on(self, kept.journal))

    def _fail(self, error: BaseException) -> None:
        """Take note of why it failed, which its client is not told."""
        if isinstance(error, JournalError):  # which says itself what is wrong with the file
            logger.error("the run %s of %s failed: %s", self.id, self.served.name, error)
        else:
            log_failure("the run %s of %s failed", self.id, self.served.name, error=error)

    def settle(self) -> None:
        """Keep only what was said; one that was cancelled before it began gets an end here."""
        self._end("cancelled", CANCELLED)
        self._settled.set()
        self.tree = self._tap = self.work = self._question = None
        for each in (self._said, self._questions, self._calling, self._doubts):
            each.clear()

    def _end(self, kind: Literal["failed", "cancelled"], why: Failure) -> None:
        """Say how it ends, if that has not been said."""
        if self.trace is not None and not self.trace.ended:
            self.trace.append("completed")
        if self.log.is_ending:
            return
        if self._kept is not None and kind == "cancelled" and not self._stopped:
            self.log.leave()
            return
        if self.log.talks:
            self._say("broken", agent=self._speaker["agent"])
        wait = {} if why.retry_after is None else {"retry_after": why.retry_after}
        said = {"code": why.code, "message": why.message, **wait}
        self._say(kind, **said, usage=self.spent.to_wire())

    @property
    def spent(self) -> Usage:
        """What its models have used so far."""
        if self.tree is not None:
            self.usage = self.tree.usage()
        return sum(self.usage.values(), Usage())

    # --- what is said

    def _say(self, kind: EntryKind, **data: Any) -> None:
        if not self.log.is_ending:  # what ignores its cancel may still speak
            self.log.append(kind, **data)

    def _on_news(self) -> None:
        # Called while an event is told, so a reader has it with no delay.
        assert self._tap is not None
        for event in self._tap.take():
            match event.kind:
                case "text":
                    self._hear(event)
                case "reasoning":
                    if self.served.speaker in (None, event.agent):
                        speech = f"{event.node_id}"
                        self._say("reasoning", text=event.data, speech=speech, agent=event.agent)
                case "called":
                    call: ToolCall = event.data
                    at = {"call": str(event.node_id), "id": call.id, "agent": event.agent}
                    self._calling.add(event.node_id)
                    self._say("called", name=call.name, arguments=call.text, **at)
                case "answered":
                    answer: ToolResult = event.data
                    said = {"text": answer.content or "", "status": answer.status}
                    self._calling.discard(event.node_id)
                    self._say("answered", call=str(event.node_id), **said)
                case _:
                    pass

    def _hear(self, event: Event) -> None:
        # Who speaks is found once for a reply: an event has to look for it.
        node, text = event.node_id, event.data
        if node != self._speaking:
            self._speaking = node
            self._speaker = {"speech": str(node), "agent": event.agent}
        if self.served.speaker not in (None, self._speaker["agent"]):
            self._overhear(event)
            return
        if node != self._speech:
            self._speech = node
            self._said.clear()
        self._said.append(text)
        self._say("text", text=text, **self._speaker)

    def _overhear(self, event: Event) -> None:
        """Pass over what an agent below has said: it is no part of the answer."""

    def _break_off(self, agent: str) -> None:
        """Take note that what an agent has said last is no answer: another one comes, or none."""
        if self.served.speaker in (None, agent) and self._speech:
            self._speech = 0
            self._said.clear()
            self._say("broken", agent=agent)

    # --- questions to a person

    def _asked(self, question: Approval) -> None:
        call = question.call
        said = {"name": call.name, "arguments": call.text, "id": call.id}
        # By it a client knows the tool again for which a person has said "always".
        self._put(question, {**said, "definition": definition_of(question.tool)})

    def _put(self, question: Approval | PendingDoubt, said: dict[str, Any]) -> None:
        """Tell of a question, unless that was told in an earlier life."""
        number = None if self._kept is None else self._kept.log.asked_before(said)
        if number is None:
            before = 0 if self._kept is None else self._kept.log.asked
            number = self._last_question = max(self._last_question, before) + 1
            self._say("asked", question=number, **said)
        self._questions[number] = question

    async def look_for_doubts(self) -> None:
        """Ask whether calls are done again of which nobody knows whether they were done.

        One about which nobody is asked, or was for too long, is not.
        """
        if self._kept is None or not self._calling:
            return
        with suppress(NotPending, RunNotFound):
            for doubt in await self._kept.journal.doubts(PREFIX + self.id):
                if not self._asks or time.time() - doubt.asked.timestamp() > PATIENCE:
                    await doubt.done(UNKNOWN)
                elif doubt.number not in self._doubts:
                    self._doubts.add(doubt.number)
                    said = {"name": doubt.tool, "arguments": json.dumps(dict(doubt.arguments))}
                    self._put(doubt, {**said, "id": f"doubt {doubt.number}"})

    async def answer(self, number: int, approved: object) -> bool:
        """Answer a question; anything but True denies (S16). False if it is settled already.

        To one about a call in doubt, True says that it is done again.
        """
        yes = approved is True
        match self._questions.pop(number, None):
            case None:
                return False
            case PendingDoubt() as doubt:
                try:
                    await (doubt.not_done() if yes else doubt.done(UNKNOWN))
                except NotPending:
                    return False
            case question:
                if not (question.approve() if yes else question.deny("the user said no")):
                    return False
        self._say("decided", question=number, approved=yes)
        return True

    # --- readers

    @property
    def size(self) -> int:
        """How many characters it keeps."""
        echoed = len(json.dumps({**self.echo}))
        return self.log.size + echoed + (0 if self.trace is None else self.trace.size)

    @property
    def status(self) -> RunState:
        """How it stands."""
        end = self.log.end
        return "running" if end is None else cast("RunState", end.kind)

    @contextmanager
    def attended(self) -> Generator[None]:
        """Count as a reader: a run that is not to go on alone is cancelled when the last leaves."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and self.on_leave == "cancel" and not self.log.ended:
                self.cancel("its reader left")

    @asynccontextmanager
    async def reading(self, after: int = 0) -> AsyncGenerator[AsyncGenerator[Entry, None]]:
        """Read the log, as one of those who attend."""
        with self.attended():
            async with aclosing(self.log.read(after)) as entries:
                yield entries


class _BrokenOff(Feed):
    """Hears alone which texts were no answers; all else is told by the tree's events."""

    def __init__(self, on_broken: Callable[[str], None]) -> None:
        super().__init__()
        self._on_broken = on_broken

    def put(self, message: AgentMessage) -> None:
        """Pass over what is whole."""

    def grow(self, speech: Speech, text: str) -> None:
        """Take note that a text has begun."""
        speech.said = speech.said or text

    def fail(self, speech: Speech) -> None:
        """Tell whose text it was."""
        self._on_broken(speech.sender)


@dataclass(frozen=True)
class Kept:
    """That a journal keeps a run; `again`: an earlier life has begun it."""

    id: str
    log: KeptLog
    journal: Journal
    again: bool


def _deny(_: ToolQuestion) -> Decision:
    return Decision(False, reason=NOBODY)


def record_into(log: Log, tree: Commander) -> None:
    """Append what happens in a tree, which has been entered, to `log` as records."""

    def put(records: Iterable[Record]) -> None:
        for each in records:
            log.append("line", text=to_line(_without_inside(each)).decode())

    def on_close() -> None:
        put(records.of(tap.take()))
        put(records.end(tap.now(), tree.usage()))

    tap = Tap(tree, CAPACITY, lambda: put(records.of(tap.take())), TREE_KINDS, on_close)
    records = Records(tap.now(), tap.epoch)
    put([records.head()])


def _without_inside(record: Record) -> Record:
    """Return a record without the machine and the code: clients read it."""
    return {name: INSIDE.get(name, value) for name, value in record.items()}
