"""A recording as one page of HTML."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike

from ..backends import Price
from ._trace import Trace

__all__ = ["write_page"]


def write_page(trace: Trace, file: str | PathLike[str], prices: Mapping[str, Price] | None) -> None:
    """Write the page."""
    raise NotImplementedError
