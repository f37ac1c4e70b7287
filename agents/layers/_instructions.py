"""An agent's instructions: messages, or a function that returns them for each call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from ...commander import Context
from ...commander.context import call_with_context
from ...commander.errors import ConfigurationError
from ._aggregators import System, read_system

__all__ = ["Instructions", "check_instructions", "read_instructions"]

Returned: TypeAlias = System | Awaitable[System | None] | None

Instructions: TypeAlias = System | Callable[[], Returned] | Callable[[Context[Any]], Returned]
"""An agent's instructions: text, a message, a list of messages, or a function.

A function may be plain or async, and is called for each call of the agent. It gets the `Context` of
the call if it has a parameter for it.
"""


def check_instructions(instructions: Instructions | None) -> None:
    """Raise `TypeError` or `ValueError` for instructions of another type."""
    if not callable(instructions):
        read_system(instructions)


async def read_instructions(function: Callable[..., Returned], agent: str) -> System | None:
    """Return the instructions of `agent` for this call.

    Raises what the function raises; `ContextError` if it has a parameter for the context and none
    was given; `ConfigurationError` if its result is no instructions.
    """
    found: System | None = await call_with_context(function)
    try:
        read_system(found)
    except (TypeError, ValueError) as error:
        raise ConfigurationError(
            f"the function of instructions of {agent} returned {found!r:.200}: {error}"
        ) from error
    return found
