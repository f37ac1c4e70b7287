"""`Run`: a question that is being answered, and what has been said of it so far."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from ..agents import AgentMessage
from ..agents.hearing import APPROVE, LISTENER, Feed, Speech
from ..commander import Commander, Event, EventKind, Node, NodeCancelled
from ..commander.tap import Tap
from ..handlers import handler
from ..messages import ToolCall, Usage
from ..store import Journal, NotPending, PendingDoubt, RunBusy
from ..tools import Approval, Approvals, ToolResult
from ..tracing.lines import KINDS as TREE_KINDS
from ..tracing.lines import Lines
from ._failure import Failure, failure_of
from ._kept import PREFIX, Told, go_on, write_question
from ._kept_log import KeptLog
from ._log import Entry, Log
from ._served import Question, Served

logger = logging.getLogger("anabranch.serve")

__all__ = ["Kept", "OnLeave", "Run", "RunState"]

OnLeave: TypeAlias = Literal["cancel", "detach"]
RunState: TypeAlias = Literal["running", "completed", "failed", "cancelled"]

KINDS: tuple[EventKind, ...] = ("text", "called", "answered")
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
# Seconds between two looks for calls in doubt.
LOOK = 0.5
# What a model is told of a call that is not done again.
UNKNOWN = (
    "nobody knows whether this was done, as the server was ended meanwhile; it is not repeated"
)


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
        asked: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(f"run:{served.name}")
        self.id = secrets.token_hex(16) if kept is None else kept.id
        self.served = served
        self.owner = owner
        self.on_leave = on_leave
        self.created: float = time.time() if asked is None else asked["created"]
        # The tree as lines of a recording, where somebody may look at it.
        self.trace = Log() if traced else None
        # What a wire says of the request again.
        self.echo: dict[str, Any] = {} if asked is None else asked["echo"]
        self.log = Log() if kept is None else kept.log
        # Set once the journal has it, where one keeps it; its id is told to nobody before.
        self.accepted = asyncio.Event()
        self._kept = kept
        self._question: Question | None = question
        self._stopped = False  # somebody has cancelled it, and not the end of the server
        self.approvals = Approvals(timeout=PATIENCE, on_ask=self._asked)
        self._asks = asks
        self.usage: Mapping[str, Usage] = {}
        self.tree: Commander | None = None
        # Refused here and now; None when it has ended, as is the question: they hold all that was
        # asked.
        self.work: Node[Any] | None = served.node(question)
        self.at_done(lambda _: self.settle())
        self._readers = 0
        self._tap: Tap | None = None
        self._speaking = 0  # the node that spoke last, and whose it is
        self._agent: str | None = None
        self._speech = 0  # the node of the answer's last reply, and what it has said
        self._said: list[str] = []
        # The questions by the numbers under which they are told.
        self._questions: dict[int, Approval | PendingDoubt] = {}
        self._last_question = 0 if kept is None else kept.log.asked
        if kept is None:
            self.accepted.set()
        else:
            self._said.append(kept.log.spoken)

    @property
    def is_kept(self) -> bool:
        """Whether a journal keeps it."""
        return self._kept is not None

    def asked(self) -> dict[str, Any]:
        """Return what a later life needs to know, as JSON."""
        assert self._question is not None
        known = {"owner": self.owner, "created": self.created, "echo": self.echo}
        return {
            **write_question(self._question),
            **known,
            "traced": self.trace is not None,
            "asks": self._asks,
        }

    def cancel(self, reason: str = "") -> None:
        """Cancel it for good; one that only the end of the server cancels goes on later."""
        self._stopped = True
        super().cancel(reason)

    async def task(self) -> None:
        """Let the thing that is served answer."""
        APPROVE.set(self.approvals if self._asks else None)
        LISTENER.set(_BrokenOff(self._break_off))
        try:
            async with Commander(policy="fail_fast") as tree:
                self.tree = tree
                self._tap = Tap(tree, CAPACITY, self._on_news, KINDS, self._on_news)
                if self.trace is not None:
                    record_into(self.trace, tree)
                told = await self._answer(tree)
            if told.text and told.text != "".join(self._said):
                self.log.append("text", text=told.text, speech="result", agent=self.served.name)
            for call in told.calls:
                self.log.append("requested", **call)
            if self.trace is not None:
                self.trace.append("completed")
            self.log.append("completed", usage=told.usage, status=told.status)
        except asyncio.CancelledError:
            self._end("cancelled", CANCELLED)
            raise
        except RunBusy as busy:  # another server has this file too, and this run
            logger.warning("the run %s goes on elsewhere: %s", self.id, busy)
            self.log.leave()
        except NodeCancelled:
            self._end("cancelled", CANCELLED)
        except BaseException as error:
            self._fail(error)
            self._end("failed", failure_of(error))
            if not isinstance(error, Exception):
                raise

    async def _answer(self, tree: Commander) -> Told:
        kept = self._kept
        if kept is None:
            assert self.work is not None
            result = await tree.run(self.work)
            return Told.of(self.served, result, self.spent.to_wire())
        looking = tree.call_handler(look_for_doubts(self, kept.journal)) if kept.again else None
        try:
            return await tree.run(go_on(self, kept.journal, kept.keep))
        finally:
            if looking is not None:
                looking.cancel("the run is over")

    def _fail(self, error: BaseException) -> None:
        """Take note of why it failed, which its client is not told."""
        logger.error("the run %s of %s failed", self.id, self.served.name, exc_info=error)

    def settle(self) -> None:
        """Keep only what was said; one that was cancelled before it began gets an end here."""
        self._end("cancelled", CANCELLED)
        self.accepted.set()
        self.tree = self._tap = self.work = self._question = None
        self._said.clear()
        self._questions.clear()

    def _end(self, kind: Literal["failed", "cancelled"], why: Failure) -> None:
        """Say how it ends, if that has not been said."""
        if self.trace is not None and not self.trace.ended:
            self.trace.append("completed")
        if self.log.is_ending:
            return
        if self._kept is not None and kind == "cancelled" and not self._stopped:
            self.log.leave()
            return
        wait = {} if why.retry_after is None else {"retry_after": why.retry_after}
        said = {"code": why.code, "message": why.message, **wait}
        self.log.append(kind, **said, usage=self.spent.to_wire())

    @property
    def spent(self) -> Usage:
        """What its models have used so far."""
        if self.tree is not None:
            self.usage = self.tree.usage()
        return sum(self.usage.values(), Usage())

    # --- what is said

    def _on_news(self) -> None:
        # Called while an event is told, so a reader has it with no delay.
        assert self._tap is not None
        for event in self._tap.take():
            match event.kind:
                case "text":
                    self._hear(event)
                case "called":
                    call: ToolCall = event.data
                    at = {"call": str(event.node_id), "id": call.id, "agent": event.agent}
                    self.log.append("called", name=call.name, arguments=call.text, **at)
                case "answered":
                    answer: ToolResult = event.data
                    said = {"text": answer.content or "", "status": answer.status}
                    self.log.append("answered", call=str(event.node_id), **said)
                case _:
                    pass

    def _hear(self, event: Event) -> None:
        # Who speaks is found once for a reply: an event has to look for it.
        if event.node_id != self._speaking:
            self._speaking, self._agent = event.node_id, event.agent
        if self.served.speaker not in (None, self._agent):
            self._overhear(event)
            return
        if event.node_id != self._speech:
            self._speech = event.node_id
            self._said.clear()
        self._said.append(event.data)
        said = {"speech": str(event.node_id), "agent": self._agent}
        self.log.append("text", text=event.data, **said)

    def _overhear(self, event: Event) -> None:
        """Pass over what an agent below has said: it is no part of the answer."""

    def _break_off(self, agent: str) -> None:
        """Take note that what an agent has said last is no answer: another one comes, or none."""
        if self.served.speaker in (None, agent) and self._speech:
            self._speech = 0
            self._said.clear()
            self.log.append("broken", agent=agent)

    # --- questions to a person

    def _asked(self, question: Approval) -> None:
        call = question.call
        self._put(question, {"name": call.name, "arguments": call.text, "id": call.id})

    def _put(self, question: Approval | PendingDoubt, said: dict[str, Any]) -> None:
        """Tell of a question, unless that was told in an earlier life."""
        number = None if self._kept is None else self._kept.log.asked_before(said)
        if number is None:
            self._last_question += 1
            number = self._last_question
            self.log.append("asked", question=number, **said)
        self._questions[number] = question

    async def doubt(self, question: PendingDoubt) -> None:
        """Ask whether a call is done again of which nobody knows; deny where nobody is asked."""
        if not self._asks:
            await question.done(UNKNOWN)
            return
        said = {"name": question.tool, "arguments": json.dumps(dict(question.arguments))}
        self._put(question, {**said, "id": f"doubt {question.number}"})

    def answer(self, number: int, approved: object) -> bool:
        """Answer a question; anything but True denies (S16). False if it is settled already.

        To one about a call in doubt, True says that it is done again.
        """
        yes = approved is True
        match self._questions.pop(number, None):
            case None:
                return False
            case PendingDoubt() as doubt:
                assert self.tree is not None
                self.tree.call_handler(settle_doubt(doubt, again=yes))
                done = True
            case question:
                done = question.approve() if yes else question.deny("the user said no")
        if done:
            self.log.append("decided", question=number, approved=yes)
        return done

    # --- readers

    @property
    def size(self) -> int:
        """How many characters it keeps."""
        echoed = len(json.dumps(self.echo))
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
    keep: float
    again: bool


@handler
async def look_for_doubts(node: Node[Any], run: Run, journal: Journal) -> None:
    """Tell of the calls of which nobody knows whether they were done."""
    told: set[int] = set()
    while True:
        for question in await journal.doubts(PREFIX + run.id):
            if question.number not in told:
                told.add(question.number)
                with suppress(NotPending):
                    await run.doubt(question)
        await asyncio.sleep(LOOK)


@handler
async def settle_doubt(node: Node[Any], doubt: PendingDoubt, *, again: bool) -> None:
    """Answer what nobody but a person knows."""
    with suppress(NotPending):
        await (doubt.not_done() if again else doubt.done(UNKNOWN))


def record_into(log: Log, tree: Commander) -> None:
    """Write what happens in a tree, which has been entered, into `log` as lines of a recording."""
    tap: Tap | None = None

    def on_news() -> None:
        assert tap is not None
        for line in lines.of(tap.take()):
            log.append("line", text=without_inside(line))

    def on_close() -> None:
        on_news()
        for line in lines.end(last(), tree.usage()):
            log.append("line", text=line)

    tap = Tap(tree, CAPACITY, on_news, TREE_KINDS, on_close)
    last = tap.now
    lines = Lines(tap.now(), tap.epoch)
    log.append("line", text=without_inside(lines.head()))


def without_inside(line: str) -> str:
    """Return a line of a recording without the machine and the code: clients read it."""
    if not any(f'"{name}":' in line for name in INSIDE):
        return line
    said: dict[str, Any] = json.loads(line)
    shown = {name: INSIDE.get(name, value) for name, value in said.items()}
    return json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
