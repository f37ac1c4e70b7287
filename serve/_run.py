"""`Run`: a question that is being answered, and the entries of its answer so far."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from ..agents import AgentMessage
from ..agents.integration import APPROVE, MESSAGE_FEED, Feed, StreamedReply
from ..commander import Commander, Event, EventKind, Node, NodeCancelled
from ..commander.tap import Tap
from ..messages import ToolCall, Usage
from ..messages.text import RefusalText
from ..store import JournalError, NotPending, PendingDoubt, RunBusy, RunNotFound
from ..tools import Approval, Approvals, Decision, ToolQuestion, ToolResult
from ..tools.origins import definition_of
from ..tracing.records import KINDS as TREE_KINDS
from ..tracing.records import Record, Records, to_line
from ._durable_run import PREFIX, Outcome, go_on
from ._failure import Failure, failure_of, log_failure
from ._log import Entry, EntryKind, Log
from ._served import BadQuestion, Question, Served

logger = logging.getLogger("anabranch.serve")

__all__ = ["OnLeave", "Run", "RunState"]

OnLeave: TypeAlias = Literal["cancel", "detach"]
RunState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]

KINDS: tuple[EventKind, ...] = ("text", "reasoning", "called", "answered")
CAPACITY = 1000
# A person has so long to answer; no answer denies (S16).
ANSWER_SECONDS = 3600.0
# Fields of records about the machine and the code, and what clients get instead.
INSIDE: Mapping[str, Any] = {
    "pid": 0,
    "host": "",
    "error": {"type": "error"},
    "at": "",
    "text": "",
}
CANCELLED = Failure("cancelled", "the run was cancelled")
NOBODY = "nobody is there to ask"
# The result of a call in doubt that is not repeated, for the model.
UNKNOWN = "nobody knows whether this was done, as it was cut off; it is not repeated"


class Run(Node[None], internal=True):
    """Answers a question in a tree of its own, below this node, and adds entries to `log`.

    The log stores them in a journal if it has one; then the run was `resumed` if the journal has
    the question already. `id` cannot be guessed. `owner` is the client's user. `approvals` has the
    calls that wait for a person; without `asks` there is none, and they are denied. With `traced`
    the records of its tree, without content, are in `trace`. A run never fails: its end is the last
    entry, which tells a client nothing about the inside.
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
        log: Log | None = None,
        resumed: bool = False,
        created: float | None = None,
        echo: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"run:{served.name}")
        self.log = Log() if log is None else log
        persisted = self.log.journal is not None
        self.id = self.log.run_id.removeprefix(PREFIX) if persisted else secrets.token_hex(16)
        self.served = served
        self.owner = owner
        self.on_leave = on_leave
        self.created = created or time.time()
        self.trace = Log() if traced else None
        # Fields of the request that its wire repeats.
        self.echo = echo
        # Whether the journal has the question; nobody learns the run's id before.
        self.is_accepted = not persisted or resumed
        self._settled = asyncio.Event()  # it is known whether the run is accepted
        self._question: Question | None = question
        # The id of the first call that the client is to make, if the reply has provider items.
        self.first_call: str | None = None
        self._stopped = False  # it was cancelled, and not by the end of the server
        self.approvals = Approvals(timeout=ANSWER_SECONDS, on_ask=self._ask)
        self._asks = asks
        self.usage: Mapping[str, Usage] = {}
        self.tree: Commander | None = None
        # None at the end, as is the question: both hold all texts of the request.
        self.work: Node[Any] | None = None
        # The refusal of a question that an earlier execution accepted.
        self.refused: BadQuestion | None = None
        try:
            self.work = served.node(question)
        except BadQuestion as error:
            if not resumed:
                raise
            self.refused = error
        self.at_done(lambda _: self.settle())
        self._readers = 0
        self._tap: Tap | None = None
        self._speaking = 0  # the last node with text, and the fields of its entries
        self._speaker: dict[str, Any] = {"agent": None}
        self._replying = 0  # the node of the answer's last reply, and its texts
        self._reply: list[str] = []
        # Open questions to a person, by the number in their entries.
        self._questions: dict[int, Approval | PendingDoubt] = {}
        self._last_question = 0
        self._calling = set[int]()  # nodes of open calls
        self._doubts = set[int]()  # numbers of the calls in doubt that have an entry
        if self.is_accepted:
            self._settled.set()

    @property
    def is_persisted(self) -> bool:
        """Whether a journal stores it."""
        return self.log.journal is not None

    def asked(self) -> tuple[Question, dict[str, Any]]:
        """Return the question, and its circumstances as JSON."""
        assert self._question is not None
        about = {"owner": self.owner, "created": self.created}
        return self._question, {**about, "traced": self.trace is not None, "asks": self._asks}

    def cancel(self, reason: str = "") -> None:
        """Cancel it finally; after the end of the server only, a run continues later."""
        self._stopped = True
        super().cancel(reason)

    def accept(self) -> None:
        """Note that the journal has the question."""
        self.is_accepted = True
        self._settled.set()

    async def until_accepted(self) -> bool:
        """Return whether it was accepted; not if the journal could not store the question."""
        await self._settled.wait()
        return self.is_accepted

    def abandon(self) -> None:
        """Tell readers that it was cancelled, though it still runs."""
        self._end("cancelled", CANCELLED)

    def set_text(self, text: str) -> None:
        """Set the last reply, which an earlier execution has logged."""
        self._reply[:] = [text]

    async def task(self) -> None:
        """Let the served thing answer."""
        # Without a person a journal would store a call that waits for ever.
        APPROVE.set(self.approvals if self._asks else _deny)
        MESSAGE_FEED.set(_Broken(self._break_off))
        try:
            # The server's commander reports what blocks the loop, once and not for each run.
            async with Commander(policy="fail_fast", slow_after=None) as tree:
                self.tree = tree
                self._tap = Tap(tree, CAPACITY, self._on_news, KINDS, self._on_news)
                if self.trace is not None:
                    record_into(self.trace, tree)
                outcome = await self._answer(tree)
            if outcome.text and outcome.text != "".join(self._reply):
                refused = {"refusal": True} if outcome.refused else {}
                about = {"speech": "result", "agent": self.served.name, **refused}
                self._add("text", text=outcome.text, **about)
            if outcome.items:
                self._add("items", items=outcome.items)
                if outcome.calls and self.echo.get("store", True):
                    self.first_call = outcome.calls[0]["id"]
            for call in outcome.calls:
                self._add("requested", **call)
            if self.trace is not None:
                self.trace.append("completed")
            self._add("completed", usage=outcome.usage, status=outcome.status)
        except asyncio.CancelledError:
            self._end("cancelled", CANCELLED)
            raise
        except NodeCancelled:  # by the served thing itself, and not by the end of the server
            self._stopped = True
            self._end("cancelled", CANCELLED)
        except BaseException as error:
            # Another server has this file too, and this run.
            if isinstance(error, RunBusy) and self.is_persisted:
                logger.warning("the run %s continues in another process: %s", self.id, error)
                self.log.suspend()
                return
            self._fail(error)
            self._end("failed", failure_of(error, self.id))
            if not isinstance(error, Exception):
                raise

    async def _answer(self, tree: Commander) -> Outcome:
        if (journal := self.log.journal) is not None:
            return await tree.run(go_on(self, journal))
        assert self.work is not None
        result = await tree.run(self.work)
        return Outcome.of(self.served, result, self.spent.to_wire())

    def _fail(self, error: BaseException) -> None:
        """Log a failure; its client does not see the cause."""
        if isinstance(error, JournalError):  # its message explains the problem with the file
            logger.error("the run %s of %s failed: %s", self.id, self.served.name, error)
        else:
            log_failure("the run %s of %s failed", self.id, self.served.name, error=error)

    def settle(self) -> None:
        """Keep only the log; add the end of a run that was cancelled before it began."""
        self._end("cancelled", CANCELLED)
        self._settled.set()
        self.tree = self._tap = self.work = self._question = None
        for each in (self._reply, self._questions, self._calling, self._doubts):
            each.clear()

    def _end(self, kind: Literal["failed", "cancelled"], why: Failure) -> None:
        """Add the last entry, if there is none."""
        if self.trace is not None and not self.trace.ended:
            self.trace.append("completed")
        if self.log.is_ending:
            return
        if self.is_persisted and kind == "cancelled" and not self._stopped:
            self.log.suspend()
            return
        if self.log.ends_in_text:
            self._add("broken", agent=self._speaker["agent"])
        wait = {} if why.retry_after is None else {"retry_after": why.retry_after}
        failure = {"code": why.code, "message": why.message, **wait}
        self._add(kind, **failure, usage=self.spent.to_wire())

    @property
    def spent(self) -> Usage:
        """The usage of its models so far."""
        if self.tree is not None:
            self.usage = self.tree.usage()
        return sum(self.usage.values(), Usage())

    # --- entries

    def _add(self, kind: EntryKind, **data: Any) -> None:
        if not self.log.is_ending:  # a node that ignores its cancel may still emit events
            self.log.append(kind, **data)

    def _on_news(self) -> None:
        # The tree calls it while it emits an event, so readers get it without delay.
        assert self._tap is not None
        for event in self._tap.take():
            match event.kind:
                case "text":
                    self._add_text(event)
                case "reasoning":
                    if self.served.speaker in (None, event.agent):
                        speech = f"{event.node_id}"
                        self._add("reasoning", text=event.data, speech=speech, agent=event.agent)
                case "called":
                    call: ToolCall = event.data
                    at = {"call": str(event.node_id), "id": call.id, "agent": event.agent}
                    self._calling.add(event.node_id)
                    self._add("called", name=call.name, arguments=call.text, **at)
                case "answered":
                    answer: ToolResult = event.data
                    found = {"text": answer.content or "", "status": answer.status}
                    self._calling.discard(event.node_id)
                    self._add("answered", call=str(event.node_id), **found)
                case _:
                    pass

    def _add_text(self, event: Event) -> None:
        # Find the agent once for each reply: an event has to search for it.
        node, text = event.node_id, event.data
        if node != self._speaking:
            self._speaking = node
            self._speaker = {"speech": str(node), "agent": event.agent}
        if self.served.speaker not in (None, self._speaker["agent"]):
            self._add_inner_text(event)
            return
        if node != self._replying:
            self._replying = node
            self._reply.clear()
        self._reply.append(text)
        if type(text) is RefusalText:
            speech = f"{self._speaker['speech']}:refusal"  # no part of the other text
            self._add(
                "text", text=str(text), **{**self._speaker, "speech": speech, "refusal": True}
            )
        else:
            self._add("text", text=text, **self._speaker)

    def _add_inner_text(self, event: Event) -> None:
        """Drop the text of an agent below: it is no part of the answer."""

    def _break_off(self, agent: str) -> None:
        """Note that an agent's last text is no answer: another one follows, or none."""
        if self.served.speaker in (None, agent) and self._replying:
            self._replying = 0
            self._reply.clear()
            self._add("broken", agent=agent)

    # --- questions to a person

    def _ask(self, question: Approval) -> None:
        call = question.call
        about = {"name": call.name, "arguments": call.text, "id": call.id}
        # By its definition a client recognizes the tool for which a person has said "always".
        self._put_question(question, {**about, "definition": definition_of(question.tool)})

    def _put_question(self, question: Approval | PendingDoubt, about: dict[str, Any]) -> None:
        """Add the entry of a question, unless an earlier execution has."""
        replay = self.log.replay
        number = replay.question(about)
        if number is None:
            number = self._last_question = max(self._last_question, replay.last_question) + 1
            self._add("asked", question=number, **about)
        self._questions[number] = question

    async def look_for_doubts(self) -> None:
        """Ask whether to repeat calls in doubt, whose outcome is unknown after a crash.

        A call is not repeated if nobody can be asked, or nobody has answered for too long.
        """
        journal = self.log.journal
        if journal is None or not self._calling:
            return
        with suppress(NotPending, RunNotFound):
            for doubt in await journal.doubts(self.log.run_id):
                if not self._asks or time.time() - doubt.asked.timestamp() > ANSWER_SECONDS:
                    await doubt.done(UNKNOWN)
                elif doubt.number not in self._doubts:
                    self._doubts.add(doubt.number)
                    about = {"name": doubt.tool, "arguments": json.dumps(dict(doubt.arguments))}
                    self._put_question(doubt, {**about, "id": f"doubt {doubt.number}"})

    async def answer(self, number: int, approved: object) -> bool:
        """Answer a question; anything but True denies (S16). Return False if it has an answer.

        For a call in doubt, True means to repeat it.
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
        self._add("decided", question=number, approved=yes)
        return True

    # --- readers

    @property
    def size(self) -> int:
        """The number of characters that it holds."""
        echoed = len(json.dumps({**self.echo}))
        return self.log.size + echoed + (0 if self.trace is None else self.trace.size)

    @property
    def status(self) -> RunState:
        """Its state, as readers know it."""
        end = self.log.end
        return "running" if end is None else cast("RunState", end.kind)

    @contextmanager
    def attended(self) -> Generator[None]:
        """Count as a reader: with `on_leave` "cancel", the last one that leaves cancels the run."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and self.on_leave == "cancel" and not self.log.ended:
                self.cancel("its reader left")

    @asynccontextmanager
    async def reading(self, after: int = 0) -> AsyncGenerator[AsyncGenerator[Entry, None]]:
        """Read the log as one of the readers."""
        with self.attended():
            async with aclosing(self.log.read(after)) as entries:
                yield entries


class _Broken(Feed):
    """Listens for texts that are no answers; events of the tree have everything else."""

    def __init__(self, on_broken: Callable[[str], None]) -> None:
        super().__init__()
        self._on_broken = on_broken

    def put(self, message: AgentMessage) -> None:
        """Ignore a complete message."""

    def grow(self, reply: StreamedReply, text: str) -> None:
        """Note that a text has begun."""
        reply.text_before = reply.text_before or text

    def fail(self, reply: StreamedReply) -> None:
        """Report the agent whose text broke off."""
        self._on_broken(reply.sender)


def _deny(_: ToolQuestion) -> Decision:
    return Decision(False, reason=NOBODY)


def record_into(log: Log, tree: Commander) -> None:
    """Append what happens in a tree, which has been entered, to `log` as records."""

    def put(records: Iterable[Record]) -> None:
        for each in records:
            # Clients read it, so without the machine and the code.
            shown = {name: INSIDE.get(name, value) for name, value in each.items()}
            log.append("line", text=to_line(shown))

    def on_close() -> None:
        put(records.of(tap.take()))
        put(records.end(tap.now(), tree.usage()))

    tap = Tap(tree, CAPACITY, lambda: put(records.of(tap.take())), TREE_KINDS, on_close)
    records = Records(tap.now(), tap.epoch)
    put([records.head()])
