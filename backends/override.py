"""Replace the models that the code below a call asks."""

from __future__ import annotations

from contextvars import ContextVar
from typing import NamedTuple

from ._backend import Backend

__all__ = ["REPLACEMENTS", "Replacement", "replaced"]


class Replacement(NamedTuple):
    """A backend for all requests here, or, with a `target`, for its calls alone."""

    target: object | None
    backend: Backend


REPLACEMENTS: ContextVar[tuple[Replacement, ...]] = ContextVar(
    "anabranch_backends_replacements", default=()
)
"""The replacements around this code, the outermost first. Nodes, tasks and threads inherit it."""


def replaced(backend: Backend) -> Backend:
    """Return the backend that code here has to ask in place of `backend`.

    It is the innermost replacement, or `backend` itself.
    """
    for each in reversed(REPLACEMENTS.get()):
        if each.target is None:
            return each.backend
    return backend
