"""Authentication by token or function; the names of this machine, which needs none.

Tokens are compared by their digests, in constant time, whatever their characters and length.
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
"""Who may ask: a token, several, or a function that gives a token's user, or None for nobody."""

# The time limit of a function that looks up a token.
LOOKUP_SECONDS = 30.0
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?", re.ASCII | re.IGNORECASE)


class AuthFailed(Exception):
    """The function that looks up tokens failed, so nobody has access; the log has `id`."""

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(8)


class Authenticator:
    """Finds the user of a token; raises `ConfigurationError` for an `auth` without users."""

    def __init__(self, auth: Auth) -> None:
        self._ask: Callable[[str], object] | None = None
        self._digests: list[bytes] = []
        if callable(auth):
            self._ask = auth
            return
        given: Any = (auth,) if isinstance(auth, str) else auth
        tokens: list[Any] = [*given] if isinstance(given, Sequence | Set) else []
        if not tokens or not all(isinstance(each, str) and each.strip() for each in tokens):
            raise ConfigurationError(
                "auth is a token, several, or a function, and no token may be empty"
            )
        # Without whitespace: headers lose it, and a token from a file ends with a line break.
        self._digests = [_digest(each.strip()) for each in tokens]

    async def user_of(self, authorization: str) -> str | None:
        """Return the user of such a header, or None.

        Raises `AuthFailed` if the function raises, takes too long, or returns no name.
        """
        kind, _, token = authorization.partition(" ")
        token = _as_sent(token).strip()
        if kind.lower() != "bearer" or not token:
            return None
        if self._ask is None:
            digest = _digest(token)
            right = [secrets.compare_digest(digest, each) for each in self._digests]
            # Not its position: another start of the server may have another order.
            return f"token {digest.hex()}" if any(right) else None
        try:
            async with asyncio.timeout(LOOKUP_SECONDS):
                found = self._ask(token)
                user: Any = await found if isawaitable(found) else found
        except Exception as error:  # noqa: BLE001 - a user's function
            # Its message and values may contain the token, as those of `USERS[token]` do.
            where = "".join(traceback.format_tb(error.__traceback__))
            failed = AuthFailed()
            text = "auth raised %s; nobody was let in (id %s)\n%s"
            logger.error(text, type(error).__name__, failed.id, where)
            raise failed from None
        if user is None or user is False or user == "":
            return None
        if not isinstance(user, str):
            kind = type(cast("object", user)).__name__
            failed = AuthFailed()
            text = "auth gave a %s, not a user's name; nobody was let in (id %s)"
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
    """Return the name in a Host header, without its port; None if it is no host."""
    found = HOST.fullmatch(host)
    return None if found is None else found[1].strip("[]").lower()


def is_local(name: str) -> bool:
    """Return whether a name leads to this machine in every network."""
    address = _address(name)
    return name.lower() == "localhost" if address is None else address.is_loopback


def is_remote_address(address: str) -> bool:
    """Return whether this is the address of another machine; False if it is no address."""
    found = _address(address)
    return found is not None and not found.is_loopback


def _address(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None
    # A socket for both kinds has 127.0.0.1 as ::ffff:127.0.0.1.
    return getattr(address, "ipv4_mapped", None) or address
