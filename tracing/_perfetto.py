"""A recording as a trace in the format of Chrome, which Perfetto reads."""

from __future__ import annotations

from os import PathLike

from ._trace import Trace

__all__ = ["write_perfetto"]


def write_perfetto(trace: Trace, file: str | PathLike[str]) -> None:
    """Write the trace."""
    raise NotImplementedError
