"""`otel`: a tree's nodes as spans of OpenTelemetry, made from its events."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..commander import Commander
from ..commander.errors import MissingExtra
from ..commander.tap import require_here
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

    The spans go to `tracer_provider`, else to the one that `trace.set_tracer_provider` was given.
    Their parents are the tree's; the top-level nodes are children of the span that is current
    here, or roots. No span is made current. They are made in a thread, so no exporter holds up a
    node; leaving the block lets that go on until nothing runs in the tree any more.

    Without `content` no prompt, reply, argument, result, message of an error or reason of a cancel
    is told, and with it none that looks like a key. With a `meter_provider` there are also how long
    requests took and the tokens that they used. Raises `MissingExtra` without the extra `otel`.
    """
    return Spans(
        commander, tracer_provider=tracer_provider, meter_provider=meter_provider, content=content
    )


class Spans(Handle):
    """The spans that are being made of a tree; `otel` makes it.

    Its end, or `close`, ends those that have not ended.
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
        require_here(commander, "otel(commander, ...)")
        self._sink = SpanSink(tracer_provider, meter_provider, content=content)
        self._feed = Feed(commander, self._sink, KINDS, name="making spans")
        # For the parents of those that are put below nodes which are there already.
        before = Gap(0, commander.tree(), {}, self._feed.start)
        self._sink.begin(self._feed.epoch, before)

    @property
    def error(self) -> BaseException | None:
        """What a span processor or an exporter has raised first, None if none did."""
        return self._sink.error or self._feed.error

    def flush(self, timeout: float = FLUSH_SECONDS) -> bool:
        """Wait until spans are made of all that happened before; say whether they are.

        A tracer provider's own `force_flush`, which exports those that have ended, comes after it.
        """
        return self._feed.flush(timeout)
