"""The effects of tools: how a tool declares them, for runs that resume after a crash."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias
from uuid import uuid4

from ..commander.context import read_context_parameters

__all__ = [
    "CURRENT_CALL",
    "Done",
    "EffectKind",
    "NotDone",
    "Reconcile",
    "Unknown",
    "check_effect",
    "effect_key",
    "is_after_restart",
]

EffectKind: TypeAlias = Literal["keyed", "nested"]


@dataclass(frozen=True, slots=True)
class Done:
    """The call happened, and the tool would have returned `value`."""

    value: object


@dataclass(frozen=True, slots=True)
class NotDone:
    """The call did not happen and never will: the run may send it now."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """The outcome cannot be found out: the run asks a person."""


Reconcile: TypeAlias = Callable[
    ..., "Awaitable[Done | NotDone | Unknown] | Done | NotDone | Unknown"
]
"""Takes a tool's arguments and `effect_key` by name, and returns the outcome of that call."""


class _EffectCall(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def forgotten(self) -> bool: ...


CURRENT_CALL: ContextVar[_EffectCall] = ContextVar("anabranch_effect_key")
"""The tool call that runs this code."""


def effect_key() -> str:
    """Return the idempotency key of the tool call that runs this code.

    Send it to a service, which ignores a second request with the same key. In a durable run all
    attempts and executions of one call get the same key, and no other call gets it. In other runs
    each call has a new key, which its `retry` attempts share. Code that no tool call runs gets a
    new key each time. A tool that is a plain function can use it in its thread.

        @tool(effect="keyed")
        async def pay(amount: int) -> str:
            return await bank.pay(amount, idempotency_key=effect_key())
    """
    call = CURRENT_CALL.get(None)
    return uuid4().hex if call is None else call.key


def is_after_restart() -> bool:
    """Return whether an earlier process of this run has called the current tool."""
    call = CURRENT_CALL.get(None)
    return call is not None and call.forgotten


def check_effect(
    name: str,
    effect: str | None,
    reconcile: Callable[..., Any] | None,
    reconcile_after: float,
    *,
    read_only: bool,
    arguments: Iterable[str],
) -> None:
    """Raise `TypeError` or `ValueError` for invalid or contradictory effects of a tool."""
    if effect not in (None, "keyed", "nested"):
        raise ValueError(f'tool {name}: effect must be "keyed", "nested" or None, not {effect!r}')
    if read_only and (effect is not None or reconcile is not None):
        raise ValueError(f"tool {name}: a read_only tool must not have effect= or reconcile=")
    if reconcile is None:
        return
    if effect is not None:
        raise ValueError(
            f'tool {name}: effect="{effect}" repeats the call, so reconcile= must not be given'
        )
    if not reconcile_after >= 0:
        raise ValueError(
            f"tool {name}: reconcile_after must be a number of seconds, not {reconcile_after!r}"
        )
    if not callable(reconcile):
        raise TypeError(f"tool {name}: reconcile must be a function, not {reconcile!r}")
    try:
        parameters = inspect.signature(reconcile).parameters
        receiver = ["self"] if next(iter(parameters), "") == "self" else []
        values = dict.fromkeys(
            [*receiver, *arguments, *read_context_parameters(reconcile), "effect_key"]
        )
        inspect.signature(reconcile).bind(**values)
    except TypeError as error:
        raise TypeError(
            f"tool {name}: reconcile must take the tool's arguments and effect_key by name: {error}"
        ) from None
