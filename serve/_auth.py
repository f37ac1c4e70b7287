"""Who asks: tokens, and functions that know them.

A token is compared by its digest, in constant time, whatever it is made of and however long.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import traceback
from collections.abc import Awaitable, Callable, Sequence, Set
from inspect import isawaitable
from typing import Any, TypeAlias, cast

from ..commander.errors import ConfigurationError

__all__ = ["Auth", "AuthFailed", "Authenticator"]

logger = logging.getLogger("anabranch.serve")

Auth: TypeAlias = "str | Sequence[str] | Callable[[str], Awaitable[str | None] | str | None]"
"""Who may ask: a token, several, or a function that gives a token's user, or None for nobody."""

# Seconds that a function has to say whose a token is.
PATIENCE = 30.0


class AuthFailed(Exception):
    """A function that should know users has failed: nobody is let in; `id` is that in the log."""

    def __init__(self) -> None:
        super().__init__()
        self.id = secrets.token_hex(8)


class Authenticator:
    """Tells whose a token is; raises `ConfigurationError` for an `auth` that could know nobody."""

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
        # As it comes back: a header has no blanks around it, and a file a line's end behind it.
        self._digests = [_digest(each.strip()) for each in tokens]

    async def user_of(self, authorization: str) -> str | None:
        """Return who sends such a header, None for nobody that is known.

        Raises `AuthFailed` if the function raises, takes too long, or gives what names nobody.
        """
        kind, _, token = authorization.partition(" ")
        token = _as_sent(token).strip()
        if kind.lower() != "bearer" or not token:
            return None
        if self._ask is None:
            digest = _digest(token)
            right = [secrets.compare_digest(digest, each) for each in self._digests]
            # Not its place among them: that may be another one when the server begins again.
            return f"token {digest.hex()}" if any(right) else None
        try:
            async with asyncio.timeout(PATIENCE):
                found = self._ask(token)
                user: Any = await found if isawaitable(found) else found
        except Exception as error:  # noqa: BLE001 - whatever somebody's function may raise
            # Its text and its values may hold the token (`USERS[token]` raises just that).
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
