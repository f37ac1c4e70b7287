"""`otel`: a tree's nodes as spans of OpenTelemetry, made from its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..commander import Commander
from ..commander.errors import MissingExtra
from ..commander.tap import require_open
from ._event_thread import FLUSH_SECONDS, EventThread, Gap, TreeFollower

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

__all__ = ["Spans", "otel"]


def otel(
    commander: Commander,
    *,
    tracer_provider: TracerProvider | None = None,
    meter_provider: MeterProvider | None = None,
    content: bool = False,
) -> Spans:
    """Make a span for each node of `commander`'s tree that has not ended, from now on.

        async with Commander() as c, otel(c): ...

    The spans go to `tracer_provider`, or to the global one (`trace.set_tracer_provider`). Their
    parents are those of the nodes; top-level nodes are children of the current span, or roots. No
    span becomes current. A thread makes them, so no exporter delays a node. The end of the block
    lets it continue until no node runs in the tree.

    Without `content` the spans contain no prompt, reply, argument, result, error message or cancel
    reason. With `content` everything that looks like a key is masked. With a `meter_provider` it
    also measures durations and tokens of requests. Raises `MissingExtra` without the extra `otel`,
    and `RuntimeError` outside the commander's block, its loop or its thread.
    """
    return Spans(
        commander, tracer_provider=tracer_provider, meter_provider=meter_provider, content=content
    )


class Spans(TreeFollower):
    """Spans that follow a tree; `otel` makes it.

    The end of the tree, or `close`, ends the open spans.
    """

    def __init__(
        self,
        commander: Commander,
        *,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
        content: bool,
    ) -> None:
        try:
            from ._spans import SPAN_KINDS, SpanSink
        except ImportError as error:
            raise MissingExtra("otel(commander)", "otel") from error
        require_open(commander, "otel(commander, ...)")
        self._sink = SpanSink(tracer_provider, meter_provider, content=content)
        self._thread = EventThread(commander, self._sink, SPAN_KINDS, name="making spans")
        # For the parents of nodes that are put below existing ones.
        before = Gap(0, commander.tree(), {}, self._thread.start)
        self._sink.begin(self._thread.epoch, before)

    @property
    def error(self) -> BaseException | None:
        """The first exception of a span processor or an exporter, or None."""
        return self._sink.error or self._thread.error

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until all earlier events are in spans; return False after `timeout` seconds.

        Then call the tracer provider's `force_flush`, which exports the ended spans.
        """
        return self._thread.flush(timeout)
