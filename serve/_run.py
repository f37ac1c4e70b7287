"""`Run`: the node that answers one request, and the log of its entries."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, cast

from ..agents import AgentMessage
from ..agents.errors import InputRefused
from ..agents.integration import APPROVE, MESSAGE_FEED, Feed, StreamedReply
from ..commander import Commander, Event, EventKind, Node, NodeCancelled
from ..commander.context import set_context
from ..commander.tap import Tap, speaker_of
from ..messages import ToolCall, Usage
from ..messages.text import RefusalText
from ..store import JournalError, NotPending, PendingDoubt, RunBusy, RunNotFound
from ..tools import Approval, Approvals, Decision, ToolQuestion, ToolResult
from ..tools.origins import definition_of
from ..tracing.records import RECORDED_KINDS, Record, Records, to_line
from ._durable_run import RUN_ID_PREFIX, Outcome, run_in_journal
from ._failure import Failure, failure_of, log_failure
from ._run_log import Entry, EntryKind, RunLog
from ._served_model import InvalidInput, RunInput, ServedModel

logger = logging.getLogger("anabranch.serve")

__all__ = ["ContextOf", "OnLeave", "Run", "RunState"]

OnLeave: TypeAlias = Literal["cancel", "detach"]

ContextOf: TypeAlias = Callable[[str], object]
"""Returns the context for the runs of a user, or an awaitable of it."""
RunState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]

LOGGED_EVENTS: tuple[EventKind, ...] = ("text", "reasoning", "called", "answered")
# The most events that a tap stores. These taps are emptied at each event.
TAP_CAPACITY = 1000
# A person must answer within this time; else it counts as a denial.
ANSWER_SECONDS = 3600.0
# Fields of records about the machine and the code; clients get these values instead.
HIDDEN_FIELDS: Mapping[str, Any] = {
    "pid": 0,
    "host": "",
    "error": {"type": "error"},
    "at": "",
    "text": "",
}
CANCELLATION = Failure("cancelled", "The run was cancelled.")
# The reason that the model gets if a call is denied because no person is there.
CANNOT_ASK = "no person can be asked"
# The result that the model gets for a call in doubt that is not repeated.
UNKNOWN_OUTCOME = "this call was interrupted; its outcome is unknown, and it is not repeated"


class Run(Node[None], internal=True):
    """Answers one input in a separate tree below this node, and adds entries to `log`.

    If the log has a journal, the run is durable; `resumed` means that the journal has the input
    already. `id` cannot be guessed. `owner` is the client's user. `echo` has fields of the request
    that the response repeats. `approvals` has the calls that wait for a person; without `can_ask`
    they are denied. With `traced`, `trace` has the records of the tree, without content. The node
    never fails: the last entry has the run's end, without the cause of a failure.
    """

    def __init__(
        self,
        served: ServedModel,
        run_input: RunInput,
        owner: str,
        on_leave: OnLeave,
        *,
        traced: bool = False,
        can_ask: bool = False,
        log: RunLog | None = None,
        resumed: bool = False,
        created: float | None = None,
        echo: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__(f"run:{served.name}")
        self.log: RunLog = RunLog() if log is None else log
        persisted = self.log.journal is not None
        stored_id = self.log.run_id.removeprefix(RUN_ID_PREFIX)
        self.id: str = stored_id if persisted else secrets.token_hex(16)
        self.served = served
        self.owner = owner
        self.on_leave = on_leave
        self.created: float = created or time.time()
        self.trace: RunLog | None = RunLog() if traced else None
        self.echo = echo
        # Whether the journal has the input. No client learns the run's id before.
        self.is_accepted: bool = not persisted or resumed
        self._acceptance_known = asyncio.Event()
        self._input: RunInput | None = run_input
        # The id of the first call that the client must run, if the reply has provider items.
        self.first_call: str | None = None
        # Makes the context of the owner's runs, also when a restart resumes this one.
        self.context_of: ContextOf | None = None
        self._is_final_cancel = False  # it was cancelled, and not by the end of the server
        self.approvals: Approvals = Approvals(timeout=ANSWER_SECONDS, on_ask=self._ask)
        self._can_ask = can_ask
        self.usage: Mapping[str, Usage] = {}
        self.tree: Commander | None = None
        # The node that answers. `release` drops it and the input: they have the request's texts.
        self.work: Node[Any] | None = None
        # The error of an input that an earlier execution accepted, but this one does not.
        self.refusal: InvalidInput | None = None
        try:
            self.work = served.make_node(run_input)
        except InvalidInput as error:
            if not resumed:
                raise
            self.refusal = error
        self.at_done(lambda _: self.release())
        self._readers = 0
        self._tap: Tap | None = None
        # The last node with text, and the fields of its entries.
        self._text_node = 0
        self._is_aside = False  # whether the text of that node is no part of the answer
        self._text_fields: dict[str, Any] = {"agent": None}
        # The node of the answer's last reply, and its texts.
        self._reply_node = 0
        self._reply: list[str] = []
        # Open questions to a person, by the number in their entries.
        self._questions: dict[int, Approval | PendingDoubt] = {}
        self._last_question = 0
        self._call_nodes = set[int]()  # nodes of open calls
        self._doubts = set[int]()  # numbers of the calls in doubt that have an entry
        if self.is_accepted:
            self._acceptance_known.set()

    @property
    def is_persisted(self) -> bool:
        """Whether a journal stores it."""
        return self.log.journal is not None

    def input_and_facts(self) -> tuple[RunInput, dict[str, Any]]:
        """Return the input, and the other facts that a restart needs, as JSON."""
        assert self._input is not None
        about = {"owner": self.owner, "created": self.created}
        return self._input, {**about, "traced": self.trace is not None, "asks": self._can_ask}

    def cancel(self, reason: str = "") -> None:
        """Cancel it permanently. If the server's end cancels it instead, a restart resumes it."""
        self._is_final_cancel = True
        super().cancel(reason)

    def accept(self) -> None:
        """Note that the journal has the input."""
        self.is_accepted = True
        self._acceptance_known.set()

    async def until_accepted(self) -> bool:
        """Wait until it is accepted; return False if the journal could not store the input."""
        await self._acceptance_known.wait()
        return self.is_accepted

    def abandon(self) -> None:
        """Log that it was cancelled, although it still runs."""
        self._end("cancelled", CANCELLATION)

    def set_text(self, text: str) -> None:
        """Set the text of the last reply, which an earlier execution has logged."""
        self._reply[:] = [text]

    async def task(self) -> None:
        """Let the served model answer, and log the end."""
        # Without a person the call must not wait: a journal would store it for ever.
        APPROVE.set(self.approvals if self._can_ask else _deny)
        MESSAGE_FEED.set(_BrokenReplies(self._break_off))
        try:
            if self.context_of is not None:
                value = self.context_of(self.owner)
                set_context(self, await value if isawaitable(value) else value)
            # The server's commander reports code that blocks the loop, once and not for each run.
            async with Commander(policy="fail_fast", slow_after=None) as tree:
                self.tree = tree
                self._tap = Tap(
                    tree, TAP_CAPACITY, self._log_events, LOGGED_EVENTS, self._log_events
                )
                if self.trace is not None:
                    record_into(self.trace, tree)
                outcome = await self._answer(tree)
            # A job's result was not streamed; a reply of an agent was.
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
            self._end("cancelled", CANCELLATION)
            raise
        except NodeCancelled:  # the served model cancelled itself: this is not the server's end
            self._is_final_cancel = True
            self._end("cancelled", CANCELLATION)
        except BaseException as error:
            # Another process uses the same journal and has the run's lease.
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
            return await tree.run(run_in_journal(self, journal))
        assert self.work is not None
        result = await tree.run(self.work)
        return Outcome.of(self.served, result, self.total_usage.to_wire())

    def _fail(self, error: BaseException) -> None:
        """Write a failure to the server's log; clients do not see the cause."""
        if isinstance(error, JournalError):  # its message is enough, without a traceback
            logger.error("run %s of %s failed: %s", self.id, self.served.name, error)
        elif isinstance(error, InputRefused):  # neither the server nor the model is at fault
            logger.info("run %s of %s was refused: %s", self.id, self.served.name, error)
        else:
            log_failure("run %s of %s failed", self.id, self.served.name, error=error)

    def release(self) -> None:
        """Drop everything but the log; log the end of a run that was cancelled before its start."""
        self._end("cancelled", CANCELLATION)
        self._acceptance_known.set()
        self.tree = self._tap = self.work = self._input = None
        for each in (self._reply, self._questions, self._call_nodes, self._doubts):
            each.clear()

    def _end(self, kind: Literal["failed", "cancelled"], why: Failure) -> None:
        """Add the last entry, unless the log has one or a restart resumes the run."""
        if self.trace is not None and not self.trace.has_ended:
            self.trace.append("completed")
        if self.log.is_ending:
            return
        if self.is_persisted and kind == "cancelled" and not self._is_final_cancel:
            self.log.suspend()
            return
        if self.log.ends_in_text:
            self._add("broken", agent=self._text_fields["agent"])
        wait = {} if why.retry_after is None else {"retry_after": why.retry_after}
        failure = {"code": why.code, "message": why.message, **wait}
        self._add(kind, **failure, usage=self.total_usage.to_wire())

    @property
    def total_usage(self) -> Usage:
        """The usage of all its models so far."""
        if self.tree is not None:
            self.usage = self.tree.usage()
        return sum(self.usage.values(), Usage())

    # --- entries

    def _add(self, kind: EntryKind, **data: Any) -> None:
        if not self.log.is_ending:  # a node that ignores its cancel may still emit events
            self.log.append(kind, **data)

    def _log_events(self) -> None:
        """Add entries for new events; the tree calls it as it emits them, so without delay."""
        assert self._tap is not None
        for event in self._tap.take():
            match event.kind:
                case "text":
                    self._add_text(event)
                case "reasoning":
                    if self.served.speaker in (None, speaker_of(event)):
                        speech = f"{event.node_id}"
                        self._add("reasoning", text=event.data, speech=speech, agent=event.agent)
                case "called":
                    call: ToolCall = event.data
                    at = {"call": str(event.node_id), "id": call.id, "agent": event.agent}
                    self._call_nodes.add(event.node_id)
                    self._add("called", name=call.name, arguments=call.text, **at)
                case "answered":
                    answer: ToolResult = event.data
                    found = {"text": answer.content or "", "status": answer.status}
                    self._call_nodes.discard(event.node_id)
                    self._add("answered", call=str(event.node_id), **found)
                case _:
                    pass

    def _add_text(self, event: Event) -> None:
        # `event.agent` searches the tree, so read it once for each reply and not for each delta.
        node, text = event.node_id, event.data
        if node != self._text_node:
            self._text_node = node
            self._text_fields = {"speech": str(node), "agent": event.agent}
            self._is_aside = self.served.speaker not in (None, speaker_of(event))
        if self._is_aside:
            self._add_inner_text(event)
            return
        if node != self._reply_node:
            self._reply_node = node
            self._reply.clear()
        self._reply.append(text)
        if type(text) is RefusalText:
            speech = f"{self._text_fields['speech']}:refusal"  # separate from the reply's text
            fields = {**self._text_fields, "speech": speech, "refusal": True}
            self._add("text", text=str(text), **fields)
        else:
            self._add("text", text=text, **self._text_fields)

    def _add_inner_text(self, event: Event) -> None:
        """Ignore text of an agent other than `served.speaker`; it is no part of the answer."""

    def _break_off(self, agent: str) -> None:
        """Log that an agent's last text broke off; a new attempt may follow."""
        is_last = agent == self._text_fields["agent"] and not self._is_aside
        if self._reply_node and (is_last or self.served.speaker in (None, agent)):
            self._reply_node = 0
            self._reply.clear()
            self._add("broken", agent=agent)

    # --- questions to a person

    def _ask(self, question: Approval) -> None:
        call = question.call
        about = {"name": call.name, "arguments": call.text, "id": call.id}
        # A person may approve a tool "always": the client compares the definition.
        self._put_question(question, {**about, "definition": definition_of(question.tool)})

    def _put_question(self, question: Approval | PendingDoubt, about: dict[str, Any]) -> None:
        """Add the entry of a question, unless an earlier execution has."""
        replay = self.log.replay
        number = replay.find_question(about)
        if number is None:
            number = self._last_question = max(self._last_question, replay.last_question) + 1
            self._add("asked", question=number, **about)
        self._questions[number] = question

    async def ask_about_doubts(self) -> None:
        """Ask whether to repeat calls in doubt, whose outcome is unknown after a crash.

        A call is not repeated if no person can be asked, or after `ANSWER_SECONDS` without answer.
        """
        journal = self.log.journal
        if journal is None or not self._call_nodes:
            return
        with suppress(NotPending, RunNotFound):
            for doubt in await journal.doubts(self.log.run_id):
                if not self._can_ask or time.time() - doubt.asked.timestamp() > ANSWER_SECONDS:
                    await doubt.done(UNKNOWN_OUTCOME)
                elif doubt.number not in self._doubts:
                    self._doubts.add(doubt.number)
                    about = {"name": doubt.tool, "arguments": json.dumps(dict(doubt.arguments))}
                    self._put_question(doubt, {**about, "id": f"doubt {doubt.number}"})

    async def answer(self, number: int, approved: object) -> bool:
        """Answer a question; anything but True denies. Return False if it has an answer.

        For a call in doubt, True means to repeat it.
        """
        yes = approved is True
        match self._questions.pop(number, None):
            case None:
                return False
            case PendingDoubt() as doubt:
                try:
                    await (doubt.not_done() if yes else doubt.done(UNKNOWN_OUTCOME))
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
        """The number of characters that it stores."""
        echoed = len(json.dumps({**self.echo}))
        return self.log.size + echoed + (0 if self.trace is None else self.trace.size)

    @property
    def status(self) -> RunState:
        """Its state, for readers: it is running until they can get the last entry."""
        end = self.log.end
        return "running" if end is None else cast("RunState", end.kind)

    @contextmanager
    def count_reader(self) -> Generator[None]:
        """Count one more reader; with `on_leave` "cancel", the last to leave cancels the run."""
        self._readers += 1
        try:
            yield
        finally:
            self._readers -= 1
            if not self._readers and self.on_leave == "cancel" and not self.log.has_ended:
                self.cancel("its last reader left")

    @asynccontextmanager
    async def reading(self, after: int = 0) -> AsyncGenerator[AsyncGenerator[Entry, None]]:
        """Read the log as one of the readers; see `RunLog.read`."""
        with self.count_reader():
            async with aclosing(self.log.read(after)) as entries:
                yield entries


class _BrokenReplies(Feed):
    """Reports replies that broke off. Events of the tree report everything else."""

    def __init__(self, on_broken: Callable[[str], None]) -> None:
        super().__init__()
        self._on_broken = on_broken

    def put(self, message: AgentMessage) -> None:
        """Ignore a complete message."""

    def grow(self, reply: StreamedReply, text: str) -> None:
        """Note that a text has started."""
        reply.text_before = reply.text_before or text

    def fail(self, reply: StreamedReply) -> None:
        """Report the agent whose text broke off."""
        self._on_broken(reply.sender)


def _deny(_: ToolQuestion) -> Decision:
    return Decision(False, reason=CANNOT_ASK)


def record_into(log: RunLog, tree: Commander) -> None:
    """Append the records of a tree to `log` as lines. The tree's commander must be entered."""

    def put(records: Iterable[Record]) -> None:
        for each in records:
            shown = {name: HIDDEN_FIELDS.get(name, value) for name, value in each.items()}
            log.append("line", text=to_line(shown))

    def on_close() -> None:
        put(records.of(tap.take()))
        put(records.end(tap.now(), tree.usage()))

    tap = Tap(tree, TAP_CAPACITY, lambda: put(records.of(tap.take())), RECORDED_KINDS, on_close)
    records = Records(tap.now(), tap.epoch)
    put([records.first()])
