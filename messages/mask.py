"""Values of runs without what looks like a key: a journal should have none, but people log them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["mask"]

STARS = "***"
# Fields whose value is a secret, whatever it looks like.
_FIELD = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|apikey|token|secret|password|passwd|authorization|credentials?"
    r"|private[_-]?key)$",
    re.IGNORECASE,
)
# What keys of known makers begin with; a signed web token; what stands behind a scheme; and the
# user in an address.
_KEY = re.compile(
    r"\b(?:sk|pk|rk|gsk|hf|pypi|npm|glpat|xai|whsec)[-_](?=[\w-]*\d)[\w-]{12,}"
    r"|\bgh[opsur]_\w{16,}|\bgithub_pat_\w{16,}|\bxox[abeoprs]-[\w-]{8,}"
    r"|\bA(?:KIA|SIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
_SHORTEST = 8  # characters of what a variable of the environment holds, to be cut out as a key


def mask(value: Any) -> Any:
    """Return a JSON value with `***` for whatever in it looks like a key.

    That is what stands in fields such as `api_key` and `password`, what looks like the keys of
    known makers, and what this process has in variables of such names.
    """
    secrets = [
        secret
        for name, secret in os.environ.items()
        if len(secret) >= _SHORTEST and _FIELD.search(name)
    ]
    return _mask(value, secrets)


def _mask(value: Any, secrets: list[str]) -> Any:
    match value:
        case str():
            text = _KEY.sub(STARS, value)
            for secret in secrets:
                text = text.replace(secret, STARS)
            return text
        case list():
            return [_mask(each, secrets) for each in cast("list[Any]", value)]
        case dict():
            fields = cast("Mapping[str, Any]", value)
            return {
                _mask(name, secrets): STARS
                if each and _FIELD.search(name)
                else _mask(each, secrets)
                for name, each in fields.items()
            }
        case _:
            return value
