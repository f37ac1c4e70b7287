"""Mask keys and passwords in values before they are shown or logged."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any, cast

__all__ = ["mask"]

MASK = "***"
# Names of fields and environment variables with a secret value.
SECRET_NAME = re.compile(
    r"(?:^|[_-])(?:api[_-]?key|apikey|token|secret|password|passwd|authorization|credentials?"
    r"|private[_-]?key)$",
    re.IGNORECASE,
)
# Keys of known providers, JSON web tokens, bearer tokens, the user part of a URL, private keys.
_SECRET = re.compile(
    r"\b(?:sk|pk|rk|gsk|hf|pypi|npm|glpat|xai|whsec)[-_](?=[\w-]*\d)[\w-]{12,}"
    r"|\bgh[opsur]_\w{16,}|\bgithub_pat_\w{16,}|\bxox[abeoprs]-[\w-]{8,}"
    r"|\bA(?:KIA|SIA)[A-Z0-9]{12,}|\bAIza[\w-]{20,}"
    r"|\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"
    r"|(?<=[Bb]earer )[\w.~+/=-]{8,}"
    r"|(?<=://)[^\s/@]+(?=@)"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
)
MIN_SECRET_CHARS = 8  # a shorter value of an environment variable is not masked in texts


def mask(value: Any) -> Any:
    """Return a JSON value with `***` in place of secrets.

    Secrets are the values of fields such as `api_key` and `password`, texts that look like keys of
    known providers, and the values of environment variables with such names.
    """
    secrets = [
        secret
        for name, secret in os.environ.items()
        if len(secret) >= MIN_SECRET_CHARS and SECRET_NAME.search(name)
    ]
    return _mask(value, secrets)


def _mask(value: Any, secrets: list[str]) -> Any:
    match value:
        case str():
            text = _SECRET.sub(MASK, value)
            for secret in secrets:
                text = text.replace(secret, MASK)
            return text
        case list():
            return [_mask(each, secrets) for each in cast("list[Any]", value)]
        case dict():
            fields = cast("Mapping[str, Any]", value)
            return {
                _mask(name, secrets): MASK
                if each and SECRET_NAME.search(name)
                else _mask(each, secrets)
                for name, each in fields.items()
            }
        case _:
            return value
