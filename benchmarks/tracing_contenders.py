"""The shapes of `benchmarks/tree.py`, each seen in several ways, for `benchmarks/tracing.py`.

Each way runs the same trees of this engine. The measurement waits for work in threads and queues,
so that it includes their cost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tree_contenders import Counter, Ours, OursJobs

Body = Callable[[Any], Any]


class Watched(Ours):
    """A reader of `events()` that reads everything."""

    name = "events()"
    listeners = 1


class Recorded(Ours):
    """A recording without `content`, the default."""

    name = "record()"

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.file = file
        self.recorder: Any = None

    def drive(self, body: Body) -> None:
        from anabranch.tracing import record

        async def main() -> None:
            async with self.commander() as commander:
                self.recorder = record(commander, self.file)
                await body(commander)

        asyncio.run(main())
        assert self.recorder.error is None


class Spanned(Ours):
    """A span for each node by OpenTelemetry's SDK, in batches for an exporter that does nothing.

    Its queue has room for all spans. Otherwise it would drop most of them, which is cheaper.
    """

    name = "otel()"

    def __init__(self) -> None:
        super().__init__()
        from anabranch.tracing import otel

        self.otel = otel
        self.exported = 0

    def drive(self, body: Body) -> None:
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import (
            BatchSpanProcessor,
            SpanExporter,
            SpanExportResult,
        )

        exported = 0

        class Nowhere(SpanExporter):
            def export(self, spans: Any) -> SpanExportResult:
                nonlocal exported
                exported += len(spans)
                return SpanExportResult.SUCCESS

        async def main() -> None:
            async with self.commander() as commander:
                spans = self.otel(commander, tracer_provider=provider)
                await body(commander)
            assert spans.flush(60)
            assert spans.error is None

        provider = TracerProvider(shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=200_000))
        asyncio.run(main())
        provider.force_flush(60_000)
        provider.shutdown()
        self.exported = exported


class InLogfire(Ours):
    """`with logfire.span(...)` around each body, with everything that would be sent dropped."""

    name = "Logfire"
    most = 2_000

    def __init__(self) -> None:
        super().__init__()
        import logfire

        from anabranch.handlers import handler

        logfire.configure(send_to_logfire=False, console=False)
        span = logfire.span

        @handler
        async def leaf(node: Any) -> None:
            with span("leaf"):
                pass

        @handler
        async def link(node: Any, left: int, done: Counter) -> None:
            with span("link"):
                if left:
                    node.call_handler(link(left - 1, done)).at_end(done)

        @handler
        async def branch(node: Any, left: int, done: Counter) -> None:
            with span("branch"):
                if left:
                    node.call_handler(branch(left - 1, done)).at_end(done)
                    node.call_handler(branch(left - 1, done)).at_end(done)

        self.leaf, self.link, self.branch = leaf, link, branch


def of_jobs(contender: Ours) -> Ours:
    """Make a contender run jobs, which wait in the commander's queue, instead of handlers."""
    jobs = OursJobs()
    contender.leaf, contender.link, contender.branch = jobs.leaf, jobs.link, jobs.branch
    contender.start = jobs.start  # type: ignore[method-assign]
    return contender
