"""`otel`: a tree's nodes as spans of OpenTelemetry, made from its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..commander import Commander
from ..commander.errors import MissingExtra
from ..commander.tap import require_open
from ._feed import FLUSH_SECONDS, Feed, Gap, Handle

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
    """Make a span of each node of `commander`'s tree that has not ended.

        async with Commander() as c, otel(c): ...

    The spans go to `tracer_provider`, else to the global one (`trace.set_tracer_provider`). They
    have the parents of their nodes; top-level nodes are children of the current span, or roots. No
    span becomes current. A thread makes them, so no exporter delays a node. The end of the block
    lets it continue until nothing runs in the tree.

    Without `content` the spans have no prompt, reply, argument, result, error message or cancel
    reason. With `content` everything that looks like a key is masked. With a `meter_provider` it
    also measures durations and tokens of requests. Raises `MissingExtra` without the extra `otel`.
    """
    return Spans(
        commander, tracer_provider=tracer_provider, meter_provider=meter_provider, content=content
    )


class Spans(Handle):
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
            from ._spans import KINDS, SpanSink
        except ImportError as error:
            raise MissingExtra("otel(commander)", "otel") from error
        require_open(commander, "otel(commander, ...)")
        self._sink = SpanSink(tracer_provider, meter_provider, content=content)
        self._feed = Feed(commander, self._sink, KINDS, name="making spans")
        # For the parents of nodes that are put below existing ones.
        before = Gap(0, commander.tree(), {}, self._feed.start)
        self._sink.begin(self._feed.epoch, before)

    @property
    def error(self) -> BaseException | None:
        """The first exception of a span processor or an exporter; None if there is none."""
        return self._sink.error or self._feed.error

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until all earlier events are in spans; return whether they are.

        Call the tracer provider's own `force_flush` after it, which exports the ended spans.
        """
        return self._feed.flush(timeout)
