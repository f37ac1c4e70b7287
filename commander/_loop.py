"""A tree lives on one loop: calls that would change it from anywhere else are refused."""

from __future__ import annotations

from asyncio import _get_running_loop, current_task
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["elsewhere", "require_loop"]


def require_loop(node: Node[Any], instead: str) -> None:
    """Refuse a call from another thread or loop than those of `node`, naming what to do `instead`.

    A loop that stands still is everybody's: nothing else happens on it meanwhile, and it looks at
    what was changed when it runs again.
    """
    if node._n_commander:
        loop = node._n_commander._n_loop
        if _get_running_loop() is not loop:
            if loop.is_running():
                raise elsewhere(node, instead)
        elif current_task(loop) is None:
            # Perhaps a signal handler's call, while the loop sleeps in its selector: it is woken.
            loop.call_soon_threadsafe(_wake)


def _wake() -> None:
    """Do nothing: that the loop calls it is all."""


def elsewhere(node: Node[Any], instead: str) -> RuntimeError:
    """Return the refusal, to be raised."""
    return RuntimeError(f"{node!r} lives on a loop that does not run in this thread: use {instead}")
