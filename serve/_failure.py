"""What clients and the server's log learn about a failure: clients no cause, the log no keys.

`anabranch serve` masks the records that its own handler writes. Under another server, as in
`uvicorn module:app`, the handlers belong to that program, so a filter masks the records.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import NamedTuple, cast

from ..agents.errors import InputRefused
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

# A filter applies to the records of one logger, not to those of loggers below it.
LOGGERS = (
    "anabranch",
    *(f"anabranch.{each}" for each in ("agents", "backends", "cluster", "knowledge", "serve")),
    *(f"anabranch.{each}" for each in ("store", "tools", "tracing")),
)


class Failure(NamedTuple):
    """Why a run failed: a message for its client, a `code` for programs.

    `retry_after` is in seconds; None: another attempt would fail too.
    """

    code: str
    message: str
    retry_after: int | None = None


HTTP_STATUS = {
    "insufficient_quota": 429,
    "rate_limit_exceeded": 429,
    "context_length_exceeded": 400,
    "input_refused": 400,
}


def status_of(code: str) -> int:
    """Return the HTTP status of a run that ended with this code."""
    return HTTP_STATUS.get(code, 500)


def log_failure(
    text: str, *values: object, error: BaseException, level: int = logging.ERROR
) -> None:
    """Log an error with its traceback; everything that looks like a key is masked.

    The record is without `exc_info`, because a handler would write the unmasked exception from it.
    """
    lines = "".join(traceback.format_exception(error)).rstrip()
    logger.log(level, f"{text}\n%s", *values, mask(lines))


def see_log(subject: str, log_id: str) -> str:
    """Return the message for a client about a failure; the log has the same id."""
    return f"{subject} failed (id {log_id}). See the server log."


def failure_of(error: BaseException, run_id: str) -> Failure:
    """Return the failure of a run for its client: the first cause that clients may know."""
    for cause in _causes(error, set()):
        match cause:
            case BudgetExceeded():
                return Failure("insufficient_quota", "The budget is used up.")
            case RateLimited():
                seconds = cause.retry_after
                wait = None if seconds is None else max(1, round(min(3600.0, seconds)))
                text = "The model has too many requests. Try again later."
                return Failure("rate_limit_exceeded", text, wait)
            case ContextTooLong():
                text = "The conversation is too long for the model."
                return Failure("context_length_exceeded", text)
            case InputRefused():
                return Failure("input_refused", str(cause) or "The input was refused.")
            case BackendError(status=402 | 429):
                return Failure("insufficient_quota", "The model's quota is used up.")
            case _:
                pass
    return Failure("server_error", see_log("The run", run_id))


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
    """Mask keys in all log records of Anabranch inside this block."""
    mask_filter = _MaskFilter()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(mask_filter)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(mask_filter)


class _MaskFilter(logging.Filter):
    """Masks keys in the message and the traceback of every record, and drops no record."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record in place. A record without keys keeps its exception."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - wrong arguments, which `logging` would print unmasked
            text = f"{record.msg} {record.args!r}"
        if (masked := mask(text)) != text:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            if (masked := mask(lines)) != lines:
                # Handlers would write the exception's own message from `exc_info`.
                record.exc_info, record.exc_text = None, masked
        return True
