"""Events as spans: what runs in the feed's thread for `otel`.

A node's span begins with `put` and ends with the node; its requests are children of it. No context
is attached or detached: each span is given its start, its end and its parent.

A run that is kept in a journal is one trace, whichever processes it lives in: the trace's id comes
of the run's, and each span's of who its node is in the run. A node whose outcome is recorded has
had its span, so it gets none; one whose run is suspended goes on in a later life, and so does its
span.
"""

from __future__ import annotations

import logging
import time
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

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
from ..commander.tap import RunPlace, goes_on, own_actor, place_of, where_raised
from ..messages import Asked, Replied, ToolCall
from ..tools import ToolResult
from . import _genai as names
from ._feed import Gap
from ._genai import masked
from ._line import _str, _text, type_shown
from ._meter import Meter
from ._run_ids import RunIds, span_id_of, trace_id_of

__all__ = ["KINDS", "SpanSink"]

logger = logging.getLogger("anabranch.tracing")

KINDS: tuple[EventKind, ...] = (
    "put", "started", "completed", "failed", "cancelled", "retried", "placed", "called",
    "answered", "request", "first_chunk", "reply", "slow",
)  # fmt: skip

# A shorter wait for the start of a body is not told: it costs, and no picture shows it.
SHORTEST_WAIT = 1_000_000  # nanoseconds


class SpanSink:
    """Makes the spans of one tree. A processor that raises costs its own span alone."""

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
                    "otel(commander): there is no tracer provider, so the spans go nowhere;"
                    " call opentelemetry.trace.set_tracer_provider(...) before, or give"
                    " tracer_provider="
                )
        self._tracer = trace.get_tracer("anabranch", tracer_provider=tracer_provider)
        self._ids = RunIds.of(self._tracer)
        self._meter = None if meter_provider is None else Meter(meter_provider)
        self._content = content
        # What is around the tree: the span that is current where `otel` is called, baggage.
        self._around = contexts.get_current()
        self._open: dict[int, _Node] = {}
        # When the last event was, in nanoseconds.
        self._last = 0
        self._epoch = 0.0
        # The tree as it was at the beginning, until the first events come.
        self._before: Gap | None = None
        self.error: BaseException | None = None
        self._kinds: dict[str, Callable[[Event, int], None]] = {
            "put": self._put,
            "started": self._started,
            "completed": self._completed,
            "failed": self._failed,
            "cancelled": self._cancelled,
            "retried": self._retried,
            "placed": self._placed,
            "called": self._called,
            "answered": self._answered,
            "request": self._request,
            "first_chunk": self._first_chunk,
            "reply": self._reply,
            "slow": self._slow,
        }

    def begin(self, epoch: float, tree: Gap) -> None:
        """Say what there is before anything is taken; `epoch` is the zero of the tree's clock."""
        self._epoch, self._before = epoch, tree

    # --- what the feed calls

    def take(self, events: list[Event]) -> None:
        if self._before is not None:
            self.take_gap(self._before)
        kinds = self._kinds
        for event in events:
            handle = kinds.get(event.kind)
            if handle is not None:
                origin = event.source.origin
                self._last = at = int((origin.epoch + event.clock) * 1e9)
                try:
                    handle(event, at)
                except BaseException as error:  # noqa: BLE001 - a processor's or an exporter's
                    self._note(error)

    def take_gap(self, gap: Gap) -> None:
        """End what has ended unseen, and begin what has begun unseen."""
        self._before = None
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
        """End what is open still: children first."""
        at = max(self._last, time.time_ns())
        for number in reversed([*self._open]):
            self._end_unseen(number, at)

    # --- the life of a node

    def _put(self, event: Event, at: int) -> None:
        source = event.source
        number, parent_id = source.id, source.parent_id
        if number in self._open:  # a gap's snapshot has had it
            return
        parent = None if parent_id is None else self._open.get(parent_id)
        place = place_of(event)
        actor = own_actor(event)
        if event.host is not None and parent is not None and actor == parent.actor:
            actor = None  # events of another machine say it of all below
        name, said = names.node_attributes(number, parent_id, masked(source.name), actor)
        if event.host is not None:
            said[names.HOST_NAME] = event.host
        node = _Node(actor or (parent and parent.actor), at)
        self._open[number] = node
        node.context = self._around if parent is None else self._inside(parent)
        if place is None or self._ids is None:
            if place is None or not place.recorded:
                node.span = self._start(name, node.context, said, at)
        else:
            self._put_in_run(node, parent, place, name, said, at)

    def _put_in_run(
        self,
        node: _Node,
        parent: _Node | None,
        place: RunPlace,
        name: str,
        said: dict[str, Any],
        at: int,
    ) -> None:
        assert self._ids is not None
        node.run_id = place.run_id
        trace_id, span_id = trace_id_of(place.run_id), span_id_of(place.run_id, place.identity)
        links: list[Link] = []
        around = trace.get_current_span(node.context).get_span_context()
        flags = around.trace_flags
        if parent is None or parent.run_id != place.run_id:
            # The run is a trace of its own: its next life stands in other surroundings.
            links = [Link(around)] if around.is_valid else []
            node.context = set_span_in_context(INVALID_SPAN, node.context)
            flags = TraceFlags(TraceFlags.SAMPLED)
        if place.recorded:
            node.span = NonRecordingSpan(SpanContext(trace_id, span_id, True, flags))
            node.kept = True
            return
        said[names.RUN_ID] = masked(place.run_id)
        node.derived = True
        with self._ids.given(trace_id, span_id):
            node.span = self._start(name, node.context, said, at, links)

    def _start(
        self,
        name: str,
        context: Context,
        said: dict[str, Any],
        at: int,
        links: list[Link] | None = None,
    ) -> Span:
        return self._tracer.start_span(
            name, context=context, attributes=said, start_time=at, links=links
        )

    def _inside(self, node: _Node) -> Context:
        """Return the context in which the children of a node's span are."""
        if node.inside is None:
            node.inside = (
                set_span_in_context(node.span, node.context) if node.span else node.context
            )
        return node.inside

    def _started(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is not None and node.span and at - node.put > SHORTEST_WAIT and not node.started:
            node.span.set_attribute(names.PENDING, round((at - node.put) / 1e9, 6))
        if node is not None:
            node.started = True

    def _completed(self, event: Event, at: int) -> None:
        node = self._open.pop(event.source.id, None)
        if node is not None:
            self._end(node, at)

    def _failed(self, event: Event, at: int) -> None:
        node = self._open.pop(event.source.id, None)
        if node is None:
            return
        try:
            if node.span and node.span.is_recording():
                self._fail(node.span, event.data, at)
        finally:
            self._end(node, at, suspended=goes_on(event))

    def _cancelled(self, event: Event, at: int) -> None:
        node = self._open.pop(event.source.id, None)
        if node is None:
            return
        try:
            if node.span and not node.kept:
                node.span.set_attribute(names.CANCELLED, True)
                if self._content and event.data:
                    node.span.set_attribute(names.REASON, _text(event.data))
        finally:
            self._end(node, at, suspended=goes_on(event))

    def _end(self, node: _Node, at: int, *, suspended: bool = False) -> None:
        if node.chats:
            for chat in reversed(node.chats.values()):
                with self._guard():
                    self._leave(chat, at)
        if node.span and not (suspended and node.derived):
            node.span.end(at)

    def _end_unseen(self, number: int, at: int) -> None:
        node = self._open.pop(number)
        with self._guard():
            try:
                if node.span:
                    node.span.set_attribute(names.INCOMPLETE, True)
            finally:
                self._end(node, max(at, node.put))

    def _begin_unseen(
        self, number: int, parent_id: int | None, name: str, host: str | None
    ) -> None:
        parent = None if parent_id is None else self._open.get(parent_id)
        name, said = names.node_attributes(number, parent_id, masked(name), None)
        said[names.INCOMPLETE] = True
        if host is not None:
            said[names.HOST_NAME] = host
        node = _Node(parent and parent.actor, self._last)
        self._open[number] = node
        node.context = self._around if parent is None else self._inside(parent)
        node.run_id = parent and parent.run_id
        node.span = self._start(name, node.context, said, self._last)

    # --- what else happens to it

    def _retried(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is not None and node.span and node.span.is_recording():
            node.span.add_event("anabranch.retried", self._error(event.data), at)

    def _placed(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is not None and node.span:
            node.span.set_attribute(names.HOST_NAME, str(event.data))

    def _slow(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is not None and node.span:
            about = {names.SECONDS: round(event.data.seconds, 3), names.AT: event.data.at}
            node.span.add_event("anabranch.slow", about, at)

    def _called(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is None or not node.span or not node.span.is_recording():
            return
        call: ToolCall = event.data
        said = {names.TOOL_CALL_ID: masked(call.id)}
        tool = masked(call.name)
        if event.source.name == call.name:  # else it asks somebody whether the call may run
            node.span.update_name(f"{names.EXECUTE_TOOL} {tool}")
            said |= {
                names.OPERATION: names.EXECUTE_TOOL,
                names.TOOL_NAME: tool,
                names.TOOL_TYPE: "function",
                **names.actor_attributes(node.actor),
            }
        if self._content:
            said[names.TOOL_CALL_ARGUMENTS] = names.call_arguments(call)
        node.span.set_attributes(said)

    def _answered(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        if node is None or not node.span or not node.span.is_recording():
            return
        answer: ToolResult = event.data
        if answer.status != "ok":
            node.span.set_attribute(names.ERROR_TYPE, answer.status)
            node.span.set_status(StatusCode.ERROR)
        if self._content:
            node.span.set_attribute(names.TOOL_CALL_RESULT, _text(answer.content or ""))

    # --- its requests

    def _request(self, event: Event, at: int) -> None:
        node = self._open.get(event.source.id)
        asked: Asked = event.data
        if node is None or asked.replayed:  # the life that has asked has told of it
            return
        said = names.request_attributes(asked, content=self._content) | names.actor_attributes(
            node.actor
        )
        chat = _Chat(asked.number, said, at)
        chat.span = self._tracer.start_span(
            f"{names.CHAT} {said[names.REQUEST_MODEL]}",
            context=self._inside(node),
            kind=SpanKind.CLIENT,
            attributes=said,
            start_time=at,
        )
        if node.chats is None:
            node.chats = {}
        node.chats[asked.number] = chat

    def _chat(self, event: Event, number: int) -> _Chat | None:
        node = self._open.get(event.source.id)
        return None if node is None or node.chats is None else node.chats.get(number)

    def _first_chunk(self, event: Event, at: int) -> None:
        chat = self._chat(event, event.data)
        if chat is not None:
            seconds = (at - chat.began) / 1e9
            chat.span.set_attribute(names.RESPONSE_TIME_TO_FIRST_CHUNK, seconds)

    def _reply(self, event: Event, at: int) -> None:
        replied: Replied = event.data
        chat = self._chat(event, replied.number)
        if chat is None:
            return
        del self._open[event.source.id].chats[replied.number]  # type: ignore[index]
        try:
            model = chat.said[names.REQUEST_MODEL]
            said = names.reply_attributes(replied, model, content=self._content)
            if chat.span.is_recording():
                chat.span.set_attributes(said)
                if replied.left:
                    chat.span.set_attribute(names.LEFT, True)
                if self._content and replied.deltas:
                    output = names.output_messages(replied)
                    if output is not None:
                        chat.span.set_attribute(names.OUTPUT_MESSAGES, output)
                if replied.error is not None:
                    self._fail(chat.span, replied.error, at)
            if self._meter is not None:
                self._meter.count(chat.said, said, replied.error, (at - chat.began) / 1e9)
        finally:
            chat.span.end(at)

    def _leave(self, chat: _Chat, at: int) -> None:
        """End the span of a reply that nobody has read to its end, nor closed."""
        try:
            chat.span.set_attribute(names.LEFT, True)
        finally:
            chat.span.end(max(at, chat.began))

    # --- errors

    def _fail(self, span: Span, error: BaseException | str, at: int) -> None:
        said = self._error(error)
        span.set_attribute(names.ERROR_TYPE, said[names.EXCEPTION_TYPE])
        span.set_status(StatusCode.ERROR, said.get(names.EXCEPTION_MESSAGE))
        span.add_event("exception", said, at)

    def _error(self, error: BaseException | str) -> dict[str, str]:
        if isinstance(error, str):
            return {names.EXCEPTION_TYPE: type_shown(error) or names.OTHER}
        said = {names.EXCEPTION_TYPE: names.error_type(error)}
        if at := where_raised(error):
            said[names.AT] = at
        if self._content:
            said[names.EXCEPTION_MESSAGE] = _text(_str(error))
            lines = traceback.format_exception(error)
            said[names.EXCEPTION_STACKTRACE] = _text("".join(lines))
        return said

    @contextmanager
    def _guard(self) -> Generator[None]:
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - a processor's or an exporter's
            self._note(error)

    def _note(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
            logger.warning("a span was not made or not taken: %s", _str(error), exc_info=error)


class _Node:
    """A node whose end has not been seen."""

    __slots__ = (
        "actor", "chats", "context", "derived", "inside", "kept", "put", "run_id", "span", "started"
    )  # fmt: skip

    def __init__(self, actor: Actor | None, put: int) -> None:
        self.actor = actor
        self.put = put
        # None if it could not be made, and of a recorded node without a place in a trace.
        self.span: Span | None = None
        # That of its parent, and that of its children, made when it is needed.
        self.context: Context
        self.inside: Context | None = None
        self.started = False
        # The questions that are under way, by number.
        self.chats: dict[int, _Chat] | None = None
        # The durable run that it belongs to.
        self.run_id: str | None = None
        # Whether its span has the id that it has in each life, and whether it got it in another.
        self.derived = False
        self.kept = False


class _Chat:
    """A question to a model whose reply has not ended."""

    __slots__ = ("began", "number", "said", "span")

    def __init__(self, number: int, said: dict[str, Any], began: int) -> None:
        self.number = number
        self.said = said
        self.began = began
        self.span: Span = INVALID_SPAN
