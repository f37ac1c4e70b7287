"""Which models a server of chat completions serves, where the person has named none."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from importlib.util import find_spec
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ...commander import ConfigurationError, MissingExtra
from .._http import SILENCE, read_object
from .._terminal import in_line

__all__ = ["Choose", "find_model", "is_address"]

Choose: TypeAlias = Callable[[Sequence[str]], Awaitable[str | None]]
"""Lets the person choose one of several names; None: none of them."""

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
REMEDY = "name one: --name NAME, or /model ADDRESS NAME in the chat"


def is_address(spec: str) -> bool:
    """Say whether a model's name is the address of a server."""
    return ADDRESS.match(spec) is not None


async def find_model(address: str, choose: Choose | None = None) -> str:
    """Return the name of the one model behind an address, or of the one that the person chooses.

    An address is such as `http://localhost:8000/v1`. Raises `ConfigurationError`, which says what
    to do, for a server that cannot be asked, or has none, or several without a choice.
    """
    where, names = await _list_models(address)
    if len(names) == 1:
        return names[0]
    chosen = await choose(names) if names and choose is not None else None
    if chosen is None:
        known = in_line(", ".join(names), 500) or "none"
        raise ConfigurationError(f"which model? {where} has: {known}; {REMEDY}")
    return chosen


async def _list_models(address: str) -> tuple[str, list[str]]:
    """Return an address as it may be shown, and the names of the models behind it."""
    if find_spec("aiohttp") is None:
        raise MissingExtra("talking to a server", "http")
    import aiohttp

    try:
        url = urlsplit(address)
    except ValueError:
        raise ConfigurationError("the address of the model's server is none") from None
    path = url.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    where = in_line(shown.geturl().rstrip("/"), 200)
    try:
        asked = url._replace(path=f"{path}/models", fragment="").geturl()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(asked, allow_redirects=False) as answer,
        ):
            if answer.status == 200:
                listed: Any = (await read_object(answer))["data"]
                return where, [name for each in listed if (name := str(each["id"]).strip())]
            why = f"status {answer.status}"
            if answer.status in (401, 403):
                why += "; with a key it is --model openai:NAME --base-url ADDRESS"
            elif answer.status == 404 and not path:
                why += f"; is it {where}/v1?"
    except aiohttp.InvalidURL:
        why = "it is no address"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = in_line(str(error), 200) or type(error).__name__
    except (ValueError, KeyError, TypeError):
        why = "it lists no models"
    raise ConfigurationError(f"which model? {where} cannot be asked ({why}); {REMEDY}")
