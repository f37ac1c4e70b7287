"""What a server's refusal means: an HTTP response becomes one of the backend errors."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from ..commander._errors import (
    BackendError,
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    RateLimited,
)
from ..dispatch import error_from_wire

__all__ = ["failure_from_response", "not_events", "told"]

_TOO_LONG = re.compile(
    r"context[ _](length|size|window)|reduce the length|too (long|many tokens)|max_model_len"
    r"|maximum context",
    re.IGNORECASE,
)
_TRY_AGAIN = frozenset({408, 409, 425})  # the request never ran, or ran into another
_SHOWN = 300  # characters of a body that is no error object


def failure_from_response(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> BackendError:
    """Make the error that a response with this status stands for; `where` is the address asked."""
    error = _error_object(body)
    made = error_from_wire(error or _plain(status, headers, body, where), status)
    text = f"{made.args[0]} ({status})"
    if status == 413 or (status in {400, 422} and _TOO_LONG.search(text)):
        return ContextTooLong(text, status=status)
    if status in _TRY_AGAIN:
        return BackendUnavailable(text, status=status)
    if isinstance(made, RateLimited):
        return RateLimited(text, status=status, retry_after=_retry_after(headers))
    made.args = (text,)
    return made


def not_events(content_type: str, body: bytes, where: str) -> bytes:
    """Turn the body of a reply that did not stream into the events it stands for.

    Raises `BadResponse` if it is not JSON either.
    """
    if "json" not in content_type:
        raise BadResponse(f"{where} answered {content_type or 'nothing known'}, not events")
    return b"data: " + b" ".join(body.splitlines()) + b"\n\ndata: [DONE]\n\n"


def _error_object(body: bytes) -> object:
    try:
        value: Any = json.loads(body)
    except ValueError:
        return None
    if isinstance(value, list) and value:
        value = cast("list[Any]", value)[0]
    if not isinstance(value, dict):
        return None
    fields = cast("dict[str, Any]", value)
    return fields.get("error") or fields.get("detail") or (fields if "message" in fields else None)


def _plain(status: int, headers: Mapping[str, str], body: bytes, where: str) -> str:
    if 300 <= status < 400:
        return f"{where} redirects to {headers.get('location')!r}: give that as base_url"
    text = " ".join(body.decode("utf-8", "replace").split())
    if not text or text.startswith("<"):
        return f"{where} answered with status {status}"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long to wait, in seconds: a number, or a date; None if it is neither."""
    if milliseconds := headers.get("retry-after-ms"):
        return _number(milliseconds, 1000)
    value = headers.get("retry-after")
    if not value:
        return None
    seconds = _number(value, 1)
    return _until(value) if seconds is None else seconds


def _number(text: str, divisor: int) -> float | None:
    try:
        seconds = float(text) / divisor
    except ValueError:
        return None
    return seconds if 0 <= seconds < float("inf") else None


def _until(date: str) -> float | None:
    try:
        moment = parsedate_to_datetime(date)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, (moment - datetime.now(UTC)).total_seconds())


def told(error: BaseException) -> str:
    """Say what happened in words; the library's own are sometimes none."""
    if isinstance(error, TimeoutError):
        return "no connection in time"
    return str(error) or type(error).__name__
