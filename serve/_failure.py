"""A failure: what the server's log has of it, and what a client is told, which is little more
than which of a few things it was.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from typing import NamedTuple, cast

from ..commander.errors import BackendError, BudgetExceeded, ContextTooLong, RateLimited
from ..messages.mask import mask

__all__ = ["Failure", "failure_of", "log_failure", "see_log", "status_of"]

logger = logging.getLogger("anabranch.serve")


class Failure(NamedTuple):
    """Why a run failed, in words for its client; `code` is for programs."""

    code: str
    message: str
    retry_after: int | None = None


STATUS = {
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "context_length_exceeded": 400,
}


def status_of(code: str) -> int:
    """Return the status of HTTP's for a run that ended so."""
    return STATUS.get(code, 500)


def log_failure(
    text: str, *values: object, error: BaseException, level: int = logging.ERROR
) -> None:
    """Log an error with its traceback, without what looks like a key.

    The record has no `exc_info`: a handler would write the exception's own text from it.
    """
    lines = "".join(traceback.format_exception(error)).rstrip()
    logger.log(level, f"{text}\n%s", *values, mask(lines))


def see_log(what: str, name: str) -> str:
    """Return what a client is told of a failure; the log has the same name."""
    return f"{what} failed (id {name}); see the server log"


def failure_of(error: BaseException, run_id: str) -> Failure:
    """Return what a client is told of a run's error.

    The first of the error's causes that is known counts.
    """
    for cause in _causes(error, set()):
        match cause:
            case BudgetExceeded():
                return Failure("insufficient_quota", "the budget for this is spent")
            case RateLimited():
                seconds = cause.retry_after
                wait = None if seconds is None else max(1, round(min(3600.0, seconds)))
                return Failure("rate_limit_exceeded", "the model is asked too much for now", wait)
            case ContextTooLong():
                return Failure(
                    "context_length_exceeded", "the conversation is too long for the model"
                )
            case BackendError(status=402 | 429):
                return Failure("insufficient_quota", "the quota of the model is used up")
            case _:
                pass
    return Failure("server_error", see_log("the run", run_id))


def _causes(error: BaseException, seen: set[int]) -> Iterator[BaseException]:
    if id(error) in seen:
        return
    seen.add(id(error))
    yield error
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for each in group.exceptions:
            yield from _causes(each, seen)
    if error.__cause__ is not None:
        yield from _causes(error.__cause__, seen)
