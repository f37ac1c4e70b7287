"""The ids of a durable run's trace and of its spans: the same in each process it lives in."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import lru_cache
from hashlib import sha256
from threading import Lock, local
from typing import Any

__all__ = ["RunIds", "span_id_of", "trace_id_of"]

# Tracers are shared by all who ask for them, in whatever thread.
_asking = Lock()


@lru_cache(256)
def trace_id_of(run_id: str) -> int:
    """Return the id of a run's trace."""
    return _number(run_id, 16)


def span_id_of(run_id: str, identity: str) -> int:
    """Return the id of a node's span."""
    return _number(f"{run_id}\0{identity}", 8)


class RunIds(local):
    """Gives a tracer's next span the ids that a run has for it; for each thread its own."""

    def __init__(self, usual: Any) -> None:
        self._usual = usual
        self._trace_id: int | None = None
        self._span_id: int | None = None

    @classmethod
    def of(cls, tracer: Any) -> RunIds | None:
        """Let ids be given to the spans of a tracer; None if it is not the SDK's own."""
        with _asking:
            usual = getattr(tracer, "id_generator", None)
            if usual is None or isinstance(usual, cls):
                return usual
            tracer.id_generator = cls(usual)
            return tracer.id_generator

    @contextmanager
    def given(self, trace_id: int, span_id: int) -> Generator[None]:
        """Let the span that is started inside have these."""
        self._trace_id, self._span_id = trace_id, span_id
        try:
            yield
        finally:
            self._trace_id = self._span_id = None

    # --- what the tracer asks

    def generate_trace_id(self) -> int:
        """Return the id of a span that begins a trace."""
        return self._usual.generate_trace_id() if self._trace_id is None else self._trace_id

    def generate_span_id(self) -> int:
        """Return the id of the next span."""
        return self._usual.generate_span_id() if self._span_id is None else self._span_id

    def is_trace_id_random(self) -> bool:
        """Say whether a trace's id is as good as a random one."""
        return self._trace_id is not None or self._usual.is_trace_id_random()


def _number(text: str, size: int) -> int:
    """Return a number of so many bytes for a text, never 0, which is no id."""
    return int.from_bytes(sha256(text.encode()).digest()[:size]) or 1
