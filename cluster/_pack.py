"""What goes between an actor and its readers: named values, and how something ended."""

from __future__ import annotations

import pickle
from asyncio import Future
from dataclasses import dataclass
from typing import Any

from ..commander.errors import ConfigurationError
from ._parcel import dump, dump_error, guarded, load_error
from ._ray import this_host

__all__ = ["Outcome", "pack", "unpack", "unpack_code"]


def pack(value: object, what: str) -> bytes:
    """Pickle a value, functions and classes of the program too.

    Raises `TypeError` for what cannot be sent, `ConfigurationError` for a secret; both name `what`.
    """
    try:
        return guarded(value)
    except ConfigurationError as error:
        raise ConfigurationError(f"{what} cannot be sent: {error}") from None
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to another process: {error}") from error


def unpack(packed: bytes) -> Any:
    """Undo `pack`."""
    return pickle.loads(packed)  # noqa: S301 - a process of this program wrote it


def unpack_code(packed: bytes) -> Any:
    """Undo `pack`; raise `ConfigurationError` if it needs a module that is not here."""
    try:
        return unpack(packed)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"{this_host()} cannot import what it is to run ({error}): install it on all machines,"
            " or send it with Ray(runtime_env={'working_dir': ...})"
        ) from error


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value, or the failure that came after it or in its place."""

    value: Any = None
    failure: BaseException | None = None

    def packed(self) -> bytes:
        """Pickle it; a value that cannot be sent is a failure."""
        where = f"in another process, on {this_host()}"
        failure = None if self.failure is None else dump_error(self.failure, where)
        try:
            return dump((self.value, failure))
        except Exception as error:  # noqa: BLE001 - whatever pickling raises
            unsent = TypeError(f"{type(self.value).__name__} cannot be sent back: {error}")
            return dump((None, dump_error(unsent, where)))

    @staticmethod
    def unpacked(packed: bytes) -> Outcome:
        """Undo `packed`."""
        value, failure = unpack(packed)
        return Outcome(value, None if failure is None else load_error(failure))

    def settle(self, future: Future[Any]) -> None:
        """Hand it to those who wait for `future`."""
        if self.failure is None:
            future.set_result(self.value)
        else:
            future.set_exception(self.failure)

    def get(self) -> Any:
        """Return the value or raise the failure."""
        if self.failure is not None:
            raise self.failure
        return self.value
