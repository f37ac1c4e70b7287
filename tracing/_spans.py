"""`SpanSink`: OpenTelemetry spans of a tree's events, in the event thread.

A node's span begins with `put` and ends with the node; its requests are children of it. Each span
gets its start, its end and its parent explicitly, so no context is attached or detached.

A durable run is one trace, even if several processes execute it: the trace's id is derived from the
run's id, and each span's id from the identity of its node. A node with a recorded outcome has a
span from an earlier execution, and gets no second one. If a run is suspended, its open spans do not
end, because a later execution makes them again.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from threading import Lock, local
from typing import Any, NamedTuple

from opentelemetry import context as contexts
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NonRecordingSpan,
    ProxyTracerProvider,
    Span,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TracerProvider,
    set_span_in_context,
)

from ..commander import Actor, Event, EventKind
from ..commander.tap import RunIdentity, is_suspended, own_actor, run_identity_of, where_raised
from ..messages import ReplyEvent, RequestEvent, ToolCall
from ..tools import ToolResult
from . import _genai as names
from ._event_thread import Gap
from ._genai import Meter, masked
from .records import error_message, masked_text, type_in_repr

__all__ = ["SPAN_KINDS", "SpanSink"]

logger = logging.getLogger("anabranch.tracing")

SPAN_KINDS: tuple[EventKind, ...] = (
    "put", "started", "completed", "failed", "cancelled", "retried", "placed", "called",
    "answered", "request", "first_chunk", "reply", "slow",
)  # fmt: skip

# Shorter waits between `put` and `started` are not written: a reader of a trace cannot see them.
MIN_PENDING_NANOSECONDS = 1_000_000


class SpanSink:
    """Makes the spans of one tree. A span processor that raises affects its own span only."""

    def __init__(
        self,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        *,
        content: bool,
    ) -> None:
        if tracer_provider is None:
            tracer_provider = trace.get_tracer_provider()
            if isinstance(tracer_provider, ProxyTracerProvider):
                logger.warning(
                    "otel(commander): the spans are lost, because no tracer provider is set. Call"
                    " opentelemetry.trace.set_tracer_provider(...) before, or give tracer_provider="
                )
        self._tracer = trace.get_tracer("anabranch", tracer_provider=tracer_provider)
        self._ids = RunIds.of(self._tracer)
        self._meter = None if meter_provider is None else Meter(meter_provider)
        self._content = content
        # The context in which the user called `otel`, with its current span and baggage. Top-level
        # nodes are children of that span.
        self._outer_context = contexts.get_current()
        self._open: dict[int, _Node] = {}
        self._last = 0  # the time of the last event, in nanoseconds
        self._epoch = 0.0
        # The tree when `otel` was called. `take` begins its spans before those of the first events.
        self._first_tree: Gap | None = None
        self.error: BaseException | None = None
        # By kind of event: methods that update the span of an open node, and methods that end it.
        self._handlers: dict[str, Callable[[_Node, Event, int], None]] = {
            "started": self._started,
            "retried": self._retried,
            "placed": self._placed,
            "called": self._called,
            "answered": self._answered,
            "request": self._request,
            "first_chunk": self._first_chunk,
            "reply": self._reply,
            "slow": self._slow,
        }
        self._endings: dict[str, Callable[[_Node, Event, int], None]] = {
            "completed": lambda node, _, at: self._end(node, at),
            "failed": self._failed,
            "cancelled": self._cancelled,
        }

    def begin(self, epoch: float, tree: Gap) -> None:
        """Set the tree at the call of `otel`. `epoch` is the time at which its clock was zero."""
        self._epoch, self._first_tree = epoch, tree

    # --- called by the event thread

    def take(self, events: list[Event]) -> None:
        if self._first_tree is not None:
            self.take_gap(self._first_tree)
        for event in events:
            source = event.source
            self._last = at = int((source.origin.epoch + event.clock) * 1e9)
            try:
                if event.kind == "put":
                    self._put(event, at)
                elif (ending := self._endings.get(event.kind)) is not None:
                    if (node := self._open.pop(source.id, None)) is not None:
                        ending(node, event, at)
                elif (handle := self._handlers.get(event.kind)) is not None and (
                    node := self._open.get(source.id)
                ) is not None:
                    handle(node, event, at)
            except BaseException as error:  # noqa: BLE001 - a user's span processor may raise
                self._note(error)

    def take_gap(self, gap: Gap) -> None:
        """Compare the open spans with the tree after lost events, then end and begin spans.

        Marks these spans as incomplete, because their times are not known.
        """
        self._first_tree = None
        self._last = max(self._last, int((self._epoch + gap.clock) * 1e9))
        living = {each.node_id: each for each in gap.tree}
        for number in reversed([*self._open]):
            if number not in living:
                self._end_unseen(number, self._last)
        for number, each in living.items():
            if number and number not in self._open:
                with self._guard():
                    self._begin_unseen(number, each.parent_id, each.name, each.host)

    def end(self, usage: dict[str, Any] | None) -> None:
        """End the open nodes, children first."""
        at = max(self._last, time.time_ns())
        for number in reversed([*self._open]):
            self._end_unseen(number, at)

    # --- the beginning and the end of a node

    def _put(self, event: Event, at: int) -> None:
        source = event.source
        number, parent_id = source.id, source.parent_id
        if number in self._open:  # `take_gap` has begun its span
            return
        parent = None if parent_id is None else self._open.get(parent_id)
        place = run_identity_of(event)
        actor = own_actor(event)
        if event.host is not None and parent is not None and actor == parent.actor:
            # Every event of another machine names its actor. Only the agent's own node gets it.
            actor = None
        name, attributes = names.node_attributes(number, parent_id, masked(source.name), actor)
        if event.host is not None:
            attributes[names.HOST_NAME] = event.host
        node = _Node(actor or (parent and parent.actor), at)
        self._open[number] = node
        node.context = self._outer_context if parent is None else self._inside(parent)
        if place is None or self._ids is None:
            if place is None or not place.recorded:
                node.span = self._start(name, node.context, attributes, at)
        else:
            self._put_in_run(node, parent, place, name, attributes, at)

    def _put_in_run(
        self,
        node: _Node,
        parent: _Node | None,
        place: RunIdentity,
        name: str,
        attributes: dict[str, Any],
        at: int,
    ) -> None:
        assert self._ids is not None
        node.run_id = place.run_id
        trace_id, span_id = trace_id_of(place.run_id), span_id_of(place.run_id, place.identity)
        links: list[Link] = []
        around = trace.get_current_span(node.context).get_span_context()
        flags = around.trace_flags
        if parent is None or parent.run_id != place.run_id:
            # The run is a separate trace, because its next execution may have another outer span.
            links = [Link(around)] if around.is_valid else []
            node.context = set_span_in_context(INVALID_SPAN, node.context)
            flags = TraceFlags(TraceFlags.SAMPLED)
        if place.recorded:
            node.span = NonRecordingSpan(SpanContext(trace_id, span_id, True, flags))
            return
        attributes[names.RUN_ID] = masked(place.run_id)
        node.derived = True
        with self._ids.use_ids(trace_id, span_id):
            node.span = self._start(name, node.context, attributes, at, links)

    def _start(
        self,
        name: str,
        context: Context,
        attributes: dict[str, Any],
        at: int,
        links: list[Link] | None = None,
    ) -> Span:
        return self._tracer.start_span(
            name, context=context, attributes=attributes, start_time=at, links=links
        )

    def _inside(self, node: _Node) -> Context:
        """Return the context of the children of a node's span."""
        if node.inside is None:
            has_span = node.span is not INVALID_SPAN
            node.inside = set_span_in_context(node.span, node.context) if has_span else node.context
        return node.inside

    def _failed(self, node: _Node, event: Event, at: int) -> None:
        try:
            if node.span.is_recording():
                self._fail(node.span, event.data, at)
        finally:
            self._end(node, at, suspended=is_suspended(event))

    def _cancelled(self, node: _Node, event: Event, at: int) -> None:
        try:
            node.span.set_attribute(names.NODE_CANCELLED, True)
            if self._content and event.data:
                node.span.set_attribute(names.CANCEL_REASON, masked_text(event.data))
        finally:
            self._end(node, at, suspended=is_suspended(event))

    def _end(self, node: _Node, at: int, *, suspended: bool = False) -> None:
        for chat in reversed((node.chats or {}).values()):  # replies that were never read or closed
            with self._guard():
                try:
                    chat.span.set_attribute(names.REPLY_LEFT, True)
                finally:
                    chat.span.end(max(at, chat.start))
        if not (suspended and node.derived):
            node.span.end(at)

    def _end_unseen(self, number: int, at: int) -> None:
        node = self._open.pop(number)
        with self._guard():
            try:
                node.span.set_attribute(names.INCOMPLETE_SPAN, True)
            finally:
                self._end(node, max(at, node.put))

    def _begin_unseen(
        self, number: int, parent_id: int | None, name: str, host: str | None
    ) -> None:
        parent = None if parent_id is None else self._open.get(parent_id)
        name, attributes = names.node_attributes(number, parent_id, masked(name), None)
        attributes[names.INCOMPLETE_SPAN] = True
        if host is not None:
            attributes[names.HOST_NAME] = host
        node = _Node(parent and parent.actor, self._last)
        self._open[number] = node
        node.context = self._outer_context if parent is None else self._inside(parent)
        node.run_id = parent and parent.run_id
        node.span = self._start(name, node.context, attributes, self._last)

    # --- between the start and the end

    def _started(self, node: _Node, event: Event, at: int) -> None:
        if at - node.put > MIN_PENDING_NANOSECONDS and not node.started:
            node.span.set_attribute(names.PENDING_SECONDS, round((at - node.put) / 1e9, 6))
        node.started = True

    def _retried(self, node: _Node, event: Event, at: int) -> None:
        if node.span.is_recording():
            node.span.add_event("anabranch.retried", self._error(event.data), at)

    def _placed(self, node: _Node, event: Event, at: int) -> None:
        node.span.set_attribute(names.HOST_NAME, str(event.data))

    def _slow(self, node: _Node, event: Event, at: int) -> None:
        about = {
            names.BLOCKED_SECONDS: round(event.data.seconds, 3),
            names.CODE_LINE: event.data.at,
        }
        node.span.add_event("anabranch.slow", about, at)

    def _called(self, node: _Node, event: Event, at: int) -> None:
        if not node.span.is_recording():
            return
        call: ToolCall = event.data
        attributes = {names.TOOL_CALL_ID: masked(call.id)}
        tool = masked(call.name)
        if event.source.name == call.name:  # else the node asks a person to approve the call
            node.span.update_name(f"{names.EXECUTE_TOOL} {tool}")
            attributes |= {
                names.OPERATION_NAME: names.EXECUTE_TOOL,
                names.TOOL_NAME: tool,
                names.TOOL_TYPE: "function",
                **names.actor_attributes(node.actor),
            }
        if self._content:
            attributes[names.TOOL_CALL_ARGUMENTS] = names.call_arguments(call)
        node.span.set_attributes(attributes)

    def _answered(self, node: _Node, event: Event, at: int) -> None:
        if not node.span.is_recording():
            return
        answer: ToolResult = event.data
        if answer.status != "ok":
            node.span.set_attribute(names.ERROR_TYPE, answer.status)
            node.span.set_status(StatusCode.ERROR)
        if self._content:
            node.span.set_attribute(names.TOOL_CALL_RESULT, masked_text(answer.content or ""))

    # --- requests

    def _request(self, node: _Node, event: Event, at: int) -> None:
        asked: RequestEvent = event.data
        if asked.replayed:  # an earlier execution sent it and made its span
            return
        attributes = names.request_attributes(
            asked, content=self._content
        ) | names.actor_attributes(node.actor)
        span = self._tracer.start_span(
            f"{names.CHAT_OPERATION} {attributes[names.REQUEST_MODEL]}",
            context=self._inside(node),
            kind=SpanKind.CLIENT,
            attributes=attributes,
            start_time=at,
        )
        if node.chats is None:
            node.chats = {}
        node.chats[asked.number] = _Chat(attributes, at, span)

    def _first_chunk(self, node: _Node, event: Event, at: int) -> None:
        if chat := (node.chats or {}).get(event.data):
            seconds = (at - chat.start) / 1e9
            chat.span.set_attribute(names.RESPONSE_TIME_TO_FIRST_CHUNK, seconds)

    def _reply(self, node: _Node, event: Event, at: int) -> None:
        replied: ReplyEvent = event.data
        chat = (node.chats or {}).pop(replied.number, None)
        if chat is None:
            return
        try:
            model = chat.attributes[names.REQUEST_MODEL]
            attributes = names.reply_attributes(replied, model, content=self._content)
            if chat.span.is_recording():
                chat.span.set_attributes(attributes)
                if replied.left:
                    chat.span.set_attribute(names.REPLY_LEFT, True)
                if self._content and replied.deltas:
                    output = names.output_messages(replied)
                    if output is not None:
                        chat.span.set_attribute(names.OUTPUT_MESSAGES, output)
                if replied.error is not None:
                    self._fail(chat.span, replied.error, at)
            if self._meter is not None:
                self._meter.count(
                    chat.attributes, attributes, replied.error, (at - chat.start) / 1e9
                )
        finally:
            chat.span.end(at)

    # --- errors

    def _fail(self, span: Span, error: BaseException | str, at: int) -> None:
        attributes = self._error(error)
        span.set_attribute(names.ERROR_TYPE, attributes[names.EXCEPTION_TYPE])
        span.set_status(StatusCode.ERROR, attributes.get(names.EXCEPTION_MESSAGE))
        span.add_event("exception", attributes, at)

    def _error(self, error: BaseException | str) -> dict[str, str]:
        if isinstance(error, str):
            return {names.EXCEPTION_TYPE: type_in_repr(error) or names.UNKNOWN_TYPE}
        attributes = {names.EXCEPTION_TYPE: names.error_type(error)}
        if at := where_raised(error):
            attributes[names.CODE_LINE] = at
        if self._content:
            attributes[names.EXCEPTION_MESSAGE] = masked_text(error_message(error))
            lines = traceback.format_exception(error)
            attributes[names.EXCEPTION_STACKTRACE] = masked_text("".join(lines))
        return attributes

    @contextmanager
    def _guard(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - a user's span processor may raise
            self._note(error)

    def _note(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            text = "cannot make or export a span: %s"
            logger.warning(text, error_message(error), exc_info=error)


class _Node:
    """A node that has not ended, with its span."""

    __slots__ = (
        "actor", "chats", "context", "derived", "inside", "put", "run_id", "span", "started",
    )  # fmt: skip

    def __init__(self, actor: Actor | None, put: int) -> None:
        self.actor = actor
        self.put = put
        # Stays invalid if the tracer raised. Also for a node with a recorded outcome if the tracer
        # is not the SDK's own, because its ids cannot be derived then.
        self.span: Span = INVALID_SPAN
        self.context: Context
        self.inside: Context | None = None  # the context of its children, made when it is needed
        self.started = False
        self.chats: dict[int, _Chat] | None = None  # open requests, by number
        self.run_id: str | None = None
        self.derived = False  # its span has the same id in each execution


class _Chat(NamedTuple):
    """A request to a model whose reply has not ended."""

    attributes: dict[str, Any]
    start: int
    span: Span


# --- ids

# Prevents two threads from replacing the id generator of the same tracer.
_id_generator_lock = Lock()


@lru_cache(256)
def trace_id_of(run_id: str) -> int:
    """Return the id of a run's trace."""
    return _id(run_id, 16)


def span_id_of(run_id: str, identity: str) -> int:
    """Return the id of a node's span."""
    return _id(f"{run_id}\0{identity}", 8)


def _id(text: str, size: int) -> int:
    """Return an id of `size` bytes for a text; it is never 0, which would be invalid."""
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1


class RunIds(local):
    """An id generator that can give the next span of this thread the ids of its run."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self._trace_id: int | None = None
        self._span_id: int | None = None

    @classmethod
    def of(cls, tracer: Any) -> RunIds | None:
        """Install an instance as the tracer's id generator, once, and return it.

        Returns None if the tracer is not the SDK's own.
        """
        with _id_generator_lock:
            usual = getattr(tracer, "id_generator", None)
            if usual is None or isinstance(usual, cls):
                return usual
            tracer.id_generator = cls(usual)
            return tracer.id_generator

    @contextmanager
    def use_ids(self, trace_id: int, span_id: int) -> Generator[None]:
        """Give these ids to the span that starts inside this block."""
        self._trace_id, self._span_id = trace_id, span_id
        try:
            yield
        finally:
            self._trace_id = self._span_id = None

    # --- called by the tracer

    def generate_trace_id(self) -> int:
        """Return the id of a new trace."""
        return self._usual.generate_trace_id() if self._trace_id is None else self._trace_id

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return self._usual.generate_span_id() if self._span_id is None else self._span_id

    def is_trace_id_random(self) -> bool:
        """Return whether trace ids are random, or distributed like random ones."""
        return self._trace_id is not None or self._usual.is_trace_id_random()
