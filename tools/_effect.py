"""What a tool says of what it does outside, for runs that are taken up after a crash."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias
from uuid import uuid4

__all__ = [
    "KEYED",
    "Done",
    "EffectKind",
    "NotDone",
    "Reconcile",
    "Unknown",
    "check_effect",
    "effect_key",
    "is_forgotten",
]

EffectKind: TypeAlias = Literal["keyed", "nested"]


@dataclass(frozen=True, slots=True)
class Done:
    """It was done, and `value` is what the tool would have returned."""

    value: object


@dataclass(frozen=True, slots=True)
class NotDone:
    """It was not done, and never will be by the call that is asked about: it may be done now."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """It cannot be known: a person is asked."""


Reconcile: TypeAlias = Callable[
    ..., "Awaitable[Done | NotDone | Unknown] | Done | NotDone | Unknown"
]
"""Takes a tool's own arguments by name and `effect_key`, and says what became of that call."""


class _Keyed(Protocol):
    @property
    def key(self) -> str: ...

    @property
    def forgotten(self) -> bool: ...


KEYED: ContextVar[_Keyed] = ContextVar("anabranch_effect_key")
"""The call of a tool in which this code runs."""


def effect_key() -> str:
    """Return a name for what the call of a tool around this code does, to send along with it.

    A receiver that sees a key twice does the thing once (an idempotency key). In a durable run it
    is the same in each attempt of the call and in each life of the run, and no other call has it.
    Elsewhere it is new for each call, and the same in all attempts of that call's `retry`; outside
    any call it is new each time. It works in plain tools too, in their threads.
    """
    call = KEYED.get(None)
    return uuid4().hex if call is None else call.key


def is_forgotten() -> bool:
    """Say whether the run around this code has called this tool in a process that is gone."""
    call = KEYED.get(None)
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
    """Raise `TypeError` or `ValueError` for what a tool cannot say of its effects."""
    if effect not in (None, "keyed", "nested"):
        raise ValueError(f'tool {name}: effect is "keyed", "nested" or None, not {effect!r}')
    if read_only and (effect is not None or reconcile is not None):
        raise ValueError(
            f"tool {name}: one that is read_only changes nothing: it has no effect= or reconcile="
        )
    if reconcile is None:
        return
    if effect is not None:
        raise ValueError(
            f'tool {name}: with effect="{effect}" it is run again, and reconcile= never asked'
        )
    if not reconcile_after >= 0:
        raise ValueError(f"tool {name}: reconcile_after is in seconds, not {reconcile_after!r}")
    if not callable(reconcile):
        raise TypeError(f"tool {name}: reconcile must be a function, not {reconcile!r}")
    try:
        parameters = inspect.signature(reconcile).parameters
        own = ["self"] if next(iter(parameters), "") == "self" else []
        given = dict.fromkeys([*own, *arguments, "effect_key"])
        inspect.signature(reconcile).bind(**given)
    except TypeError as error:
        raise TypeError(
            f"tool {name}: reconcile has to take the tool's arguments by name, and effect_key:"
            f" {error}"
        ) from None
