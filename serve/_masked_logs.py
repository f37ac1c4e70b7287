"""Records of this package's loggers without what looks like a key, while a server runs.

`anabranch serve` masks what its own handler writes. Under another server, as `uvicorn module:app`,
handlers are that program's, so the records themselves are masked.
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Generator
from contextlib import contextmanager

from ..messages.mask import mask

__all__ = ["LOGGERS", "masked_logs"]

# A filter holds for the records of its logger alone, not for those of the loggers below it.
LOGGERS = (
    "anabranch",
    *(f"anabranch.{each}" for each in ("agents", "backends", "cluster", "knowledge", "serve")),
    *(f"anabranch.{each}" for each in ("store", "tools", "tracing")),
)


@contextmanager
def masked_logs() -> Generator[None]:
    """Mask keys in all that this package logs inside this block."""
    masking = _Mask()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(masking)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(masking)


class _Mask(logging.Filter):
    """Lets every record pass; one that has a key in its text or its traceback loses it."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Mask the record in place. One without keys stays as it is, with its exception."""
        try:
            text = record.getMessage()
        except Exception:  # noqa: BLE001 - arguments that do not fit: `logging` would print them
            text = f"{record.msg} {record.args!r}"
        if (masked := mask(text)) != text:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[1] is not None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
            if (masked := mask(lines)) != lines:
                # Handlers write the exception's own text from `exc_info`.
                record.exc_info, record.exc_text = None, masked
        return True
