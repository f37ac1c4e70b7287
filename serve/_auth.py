"""Authentication by token or function, and the names of this machine.

Tokens are compared by their digests: in constant time, for any characters and any length.
"""

from __future__ import annotations

import asyncio
import hashlib
import ipaddress
import logging
import re
import secrets
import traceback
from collections.abc import Awaitable, Callable, Sequence, Set
from inspect import isawaitable
from typing import Any, TypeAlias, cast

from ..commander.errors import ConfigurationError

__all__ = ["Auth", "AuthFailed", "Authenticator", "host_name", "is_local", "is_remote_address"]

logger = logging.getLogger("anabranch.serve")

Auth: TypeAlias = "str | Sequence[str] | Callable[[str], Awaitable[str | None] | str | None]"
"""One token, several, or a function from a token to its user; None refuses the token."""

# The time limit of a function that looks up a token.
LOOKUP_SECONDS = 30.0
HOST_HEADER = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


class AuthFailed(Exception):
    """The function that looks up tokens failed, so the request is refused; the log has `id`."""

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(8)


class Authenticator:
    """Finds the user of a token; raises `ConfigurationError` for an `auth` without users."""

    def __init__(self, auth: Auth) -> None:
        self._look_up: Callable[[str], object] | None = None
        self._digests: list[bytes] = []
        if callable(auth):
            self._look_up = auth
            return
        given: Any = (auth,) if isinstance(auth, str) else auth
        tokens: list[Any] = [*given] if isinstance(given, Sequence | Set) else []
        if not tokens or not all(isinstance(each, str) and each.strip() for each in tokens):
            raise ConfigurationError(
                "auth must be a token, several tokens, or a function; no token may be empty"
            )
        # Without whitespace: headers lose it, and a token from a file ends with a line break.
        self._digests = [_digest(each.strip()) for each in tokens]

    async def user_of(self, authorization: str) -> str | None:
        """Return the user of an Authorization header; None if it has no known token.

        Raises `AuthFailed` if the function raises, takes longer than `LOOKUP_SECONDS`, or returns
        something else than a name.
        """
        kind, _, token = authorization.partition(" ")
        token = _as_sent(token).strip()
        if kind.lower() != "bearer" or not token:
            return None
        if self._look_up is None:
            digest = _digest(token)
            # Compare with all: the time must not tell which token is similar.
            equal = [secrets.compare_digest(digest, each) for each in self._digests]
            # Not its position: the order of the tokens may change with a restart.
            return f"token {digest.hex()}" if any(equal) else None
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = self._look_up(token)
                user: Any = await found if isawaitable(found) else found
        except Exception as error:  # noqa: BLE001 - a user's function
            # Its message and values may contain the token, as those of `USERS[token]` do.
            where = "".join(traceback.format_tb(error.__traceback__))
            failed = AuthFailed()
            text = "auth raised %s; the request was refused (id %s)\n%s"
            logger.error(text, type(error).__name__, failed.id, where)
            raise failed from None
        if user is None or user is False or user == "":
            return None
        if not isinstance(user, str):
            kind = type(cast("object", user)).__name__
            failed = AuthFailed()
            text = "auth must return a user's name, not a %s; the request was refused (id %s)"
            logger.error(text, kind, failed.id)
            raise failed
        return user


def _as_sent(token: str) -> str:
    """Return a token as its client wrote it: servers read the bytes of headers as latin-1."""
    try:
        return token.encode("latin-1").decode()
    except ValueError:
        return token


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()


# --- this machine


def host_name(host: str) -> str | None:
    """Return the name in a Host header, without its port; None if the header is not valid."""
    found = HOST_HEADER.fullmatch(host)
    return None if found is None else found[1].strip("[]").lower()


def is_local(name: str) -> bool:
    """Return whether a name means this machine in every network."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def is_remote_address(address: str) -> bool:
    """Return whether this is the address of another machine; False if it is not an address."""
    found = _address(address)
    return found is not None and not found.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # A socket for IPv4 and IPv6 reports 127.0.0.1 as ::ffff:127.0.0.1.
    return getattr(address, "ipv4_mapped", None) or address
