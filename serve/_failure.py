"""Failures: in the server's log without keys, for clients without causes; log records without keys.

`anabranch serve` masks the records that its own handler writes. Under another server, as in
`uvicorn module:app`, the handlers are that program's, so the records themselves are masked.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from ..commander.errors import BackendError, BudgetExceeded, ContextTooLong, RateLimited
from ..messages.mask import mask

__all__ = [
    "LOGGERS",
    "Failure",
    "failure_of",
    "log_failure",
    "masked_logs",
    "see_log",
    "status_of",
]

logger = logging.getLogger("anabranch.serve")

# A filter applies to the records of its own logger, not to those of the loggers below it.
LOGGERS = (
    "anabranch",
    *(f"anabranch.{each}" for each in ("agents", "backends", "cluster", "knowledge", "serve")),
    *(f"anabranch.{each}" for each in ("store", "tools", "tracing")),
)


class Failure(NamedTuple):
    """Why a run failed: a message for its client, a `code` for programs."""

    code: str
    message: str
    retry_after: int | None = None


STATUS = {
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "context_length_exceeded": 400,
}


def status_of(code: str) -> int:
    """Return the HTTP status of a run that ended with this code."""
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
    """Return the message of a failure for a client; the log has the same id."""
    return f"{what} failed (id {name}); see the server log"


def failure_of(error: BaseException, run_id: str) -> Failure:
    """Return the failure of a run for a client: that of the first known cause."""
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


# --- log records


@contextmanager
def masked_logs() -> Generator[None]:
    """Mask keys in all log records of this package inside this block."""
    masking = _Mask()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(masking)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(masking)


class _Mask(logging.Filter):
    """Passes every record, without the keys in its message and traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record in place. A record without keys keeps its exception."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit, which `logging` would print
            text = f"{record.msg} {record.args!r}"
        if (masked := mask(text)) != text:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            if (masked := mask(lines)) != lines:
                # Handlers would write the exception's own message from `exc_info`.
                record.exc_info, record.exc_text = None, masked
        return True
