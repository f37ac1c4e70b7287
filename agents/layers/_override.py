"""Other models for one call, or for all calls of an agent in a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ...backends import Backend, as_backend
from ...backends.override import REPLACEMENTS, Replacement
from ...commander.errors import ConfigurationError
from ...commander.kinds import require

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "A_BACKEND",
    "BACKEND_OR_NONE",
    "backend_of",
    "enter_call",
    "override_backend",
    "read_backend",
    "require_backend",
]

A_BACKEND = "one that connect(...) makes, or the name of a model"
BACKEND_OR_NONE = "one that connect(...) makes, the name of a model or None"
"""The demand on an argument `backend`, for `@checked`."""


def read_backend(backend: Backend | str) -> Backend:
    """Return a backend or the one of a name; raise `TypeError` for anything else."""
    require(backend, (Backend, str), f"backend must be {A_BACKEND}", like="stream")
    return as_backend(backend)


@contextmanager
def override_backend(agent: Agent[Any], backend: Backend) -> Generator[None]:
    """Let calls of `agent` in this block, and all agents below these calls, ask `backend`."""
    token = REPLACEMENTS.set((*REPLACEMENTS.get(), Replacement(agent, backend)))
    try:
        yield
    finally:
        REPLACEMENTS.reset(token)


def enter_call(agent: Agent[Any], backend: Backend | None) -> None:
    """Begin a call of `agent`: its replacements now hold for everything below.

    `backend` is that of the call, which is the innermost.
    """
    around = REPLACEMENTS.get()
    if any(each.target is agent for each in around):
        around = tuple(
            Replacement(None, each.backend) if each.target is agent else each for each in around
        )
    elif backend is None:
        return
    if backend is not None:
        around = (*around, Replacement(None, backend))
    REPLACEMENTS.set(around)


def backend_of(agent: Agent[Any]) -> Backend | None:
    """Return the backend that `agent` asks here: the innermost replacement, else its own."""
    for each in reversed(REPLACEMENTS.get()):
        if each.target is None or each.target is agent:
            return each.backend
    return agent.backend


def require_backend(agent: Agent[Any]) -> Backend:
    """Return the backend that `agent` asks here; raise `ConfigurationError` if there is none."""
    backend = backend_of(agent)
    if backend is None:
        raise ConfigurationError(f"{agent.name} has no backend. Give it one, or write forward().")
    return backend
