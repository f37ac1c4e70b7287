"""What goes from one process to another: values, and how something ended."""

from __future__ import annotations

import pickle
import traceback
from asyncio import Future
from dataclasses import dataclass
from typing import Any

from ._ray import load

__all__ = ["Outcome", "pack", "packed_outcome", "unpack"]


def pack(value: object, what: str) -> bytes:
    """Pickle a value, functions and classes of the program too; a refusal says what it is of."""
    try:
        return load().cloudpickle.dumps(value)
    except Exception as error:
        raise TypeError(f"{what} cannot be sent to another process: {error}") from error


def unpack(packed: bytes) -> Any:
    """Undo `pack`."""
    return pickle.loads(packed)  # noqa: S301 - our own process wrote it


@dataclass(frozen=True, slots=True)
class Outcome:
    """A value, or the failure that came after it or in its place."""

    value: Any
    failure: BaseException | None

    @staticmethod
    def unpacked(packed: bytes) -> Outcome:
        """Undo `packed_outcome`."""
        return Outcome(*unpack(packed))

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


def packed_outcome(value: object, failure: BaseException | None) -> bytes:
    """Pack an outcome; what cannot be sent becomes a failure that can."""
    if failure is not None:
        failure = _sendable(failure)
    try:
        return pack((value, failure), "the result")
    except TypeError as error:
        return pack((None, error.with_traceback(None)), "the result")


def _sendable(failure: BaseException) -> BaseException:
    """Return a failure that arrives, with where it was raised as a note."""
    where = "".join(traceback.format_exception(failure))
    failure.add_note(f"in another process:\n{where}")
    try:
        unpack(pack(failure, "the failure"))
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        return RuntimeError(f"{type(failure).__name__}: {failure}\n{where}")
    return failure
