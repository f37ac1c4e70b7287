"""The spans of a tree on Ray equal those of a local tree."""

from __future__ import annotations

import pytest
from support.ray_jobs import Nest
from support.spans import CollectedSpans

from anabranch import Commander
from anabranch.cluster import Ray
from anabranch.tracing import otel

pytestmark = pytest.mark.usefixtures("nodes")


async def test_what_runs_on_other_machines_has_its_parent_here() -> None:
    """At any depth of jobs that put jobs; each span names its machine."""
    kept = CollectedSpans()
    async with Commander() as commander, otel(commander, tracer_provider=kept.provider) as spans:
        pids = await commander.run(Nest(2), on=Ray(num_cpus=1))
    assert spans.flush()
    assert spans.error is None
    kept.check()
    assert len(kept.ended) == len(pids) == 7
    (top,) = (span for span in kept.ended if span.parent is None)
    below = [span for span in kept.ended if span.parent is not None]
    middle = {span.context.span_id for span in below if span.parent == top.context}
    leaves = [span.parent.span_id for span in below if span.parent != top.context]
    assert len(middle) == 2
    assert sorted(leaves) == sorted([*middle, *middle])
    assert all(span.attributes["host.name"] for span in kept.ended)
    assert len({span.context.trace_id for span in kept.ended}) == 1
    for span in below:  # the clocks of all machines are in line
        assert top.start_time <= span.start_time <= span.end_time <= top.end_time
