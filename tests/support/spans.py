"""A span processor that collects spans for a test."""

from __future__ import annotations

from typing import Any

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider

__all__ = ["CollectedSpans"]


class CollectedSpans(SpanProcessor):
    """Collects the started and the ended spans of its `provider`."""

    def __init__(self, **options: Any) -> None:
        self.started: list[Span] = []
        self.ended: list[ReadableSpan] = []
        self.provider = TracerProvider(
            resource=Resource.get_empty(), shutdown_on_exit=False, **options
        )
        self.provider.add_span_processor(self)

    def on_start(self, span: Span, parent_context: Any = None) -> None:
        self.started.append(span)

    def on_end(self, span: ReadableSpan) -> None:
        self.ended.append(span)

    def named(self, name: str) -> ReadableSpan:
        """Return the one span of this name."""
        (found,) = (span for span in self.ended if span.name == name)
        return found

    def parents(self) -> dict[str, str | None]:
        """Return the name of each span's parent by the span's name. All names must differ."""
        names = {span.context.span_id: span.name for span in self.ended}
        assert len({*names.values()}) == len(self.ended)
        return {
            span.name: None if span.parent is None else names[span.parent.span_id]
            for span in self.ended
        }

    def check(self) -> None:
        """Check that each started span has ended exactly once, and not before its start."""
        ended = [span.context.span_id for span in self.ended]
        assert sorted(ended) == sorted(span.context.span_id for span in self.started)
        assert len({*ended}) == len(ended)
        for span in self.ended:
            assert span.start_time <= span.end_time

    def text(self) -> str:
        """Return the complete text of all spans."""
        return "\n".join(
            f"{span.name} {dict(span.attributes)} {span.status.description}"
            f" {[(event.name, dict(event.attributes)) for event in span.events]}"
            for span in self.ended
        )
