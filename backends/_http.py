"""A backend for any server with chat completions, over aiohttp."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Literal

from pydantic import SecretStr

from ..commander.errors import BackendError, ConfigurationError, MissingExtra
from ..messages.text import quote
from ._address import (
    CHAT_PATH,
    EMBEDDINGS_PATH,
    endpoint,
    environment_proxy,
    header_secrets,
    hide_secrets,
    proxy_address,
    secrets_of,
    server_address,
)
from ._failure import failure_from_library, has_reply
from ._per_loop import Connections
from ._wire import ReadBody, WireBackend

if TYPE_CHECKING:
    from os import PathLike
    from ssl import SSLContext

    from aiohttp import ClientResponse, ClientSession

__all__ = ["HttpBackend"]


_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_RESERVED_HEADERS = frozenset(
    {"accept", "accept-encoding", "content-encoding", "content-length", "content-type"}
    | {"transfer-encoding"}
)


class HttpBackend(WireBackend):
    """A model on the server at `base_url`.

    Its connections are opened by the first request, reused, and closed by `aclose`. Use `limits` to
    bound their number. The key, if there is one, is sent as a bearer token.

    `headers` are sent with each request. `proxy` is the address of an http or https proxy. Without
    it the environment's proxy is used (`HTTPS_PROXY`, `HTTP_PROXY`, `ALL_PROXY`, `NO_PROXY`),
    except for an address of this machine; `proxy=False` uses none. `ssl` is an `ssl.SSLContext`, or
    False to accept any certificate. `unix_socket` is the path of the server's socket. `session` is
    an `aiohttp.ClientSession` with its own connector and proxy: it works in the event loop that
    made it, and is not closed here.
    """

    provider = "http"

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str | SecretStr | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        proxy: str | Literal[False] | None = None,
        ssl: SSLContext | bool = True,
        unix_socket: str | PathLike[str] | None = None,
        session: ClientSession | None = None,
        **settings: Any,
    ) -> None:
        headers = _check_headers({} if headers is None else headers, api_key)
        _check_kinds(proxy=proxy, ssl=ssl, unix_socket=unix_socket, session=session)
        direct = proxy is False or session is not None or unix_socket is not None
        if proxy:
            self._proxy = proxy_address(proxy)
        else:
            self._proxy = None if direct else environment_proxy(server_address(base_url))
        secrets = [*header_secrets(headers), *secrets_of(self._proxy or "")]
        super().__init__(model, base_url, api_key, secrets=secrets, **settings)
        if session is not None and not (ssl is True and unix_socket is None):
            raise ConfigurationError(
                "session= has its own connector: pass ssl and unix_socket to that"
            )
        if unix_socket is not None and (proxy or self.base_url.startswith("https:")):
            raise ConfigurationError(
                "unix_socket= needs an address such as 'http://localhost/v1', and no proxy"
            )
        try:
            import aiohttp
        except ImportError:
            raise MissingExtra("the http backend", "http") from None
        self._aiohttp = aiohttp
        self._endpoints = {
            path: endpoint(self.base_url, path) for path in (CHAT_PATH, EMBEDDINGS_PATH)
        }
        self._headers = {**headers, "Accept-Encoding": "identity"}
        if self._api_key is not None:
            self._headers["Authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        self._ssl = ssl
        self._unix_socket = unix_socket
        self._session = session
        self._sessions = Connections(self._open_session)

    async def aclose(self) -> None:
        """Close this loop's connections, except those of the user's session."""
        await self._sessions.close()

    def _open_session(self) -> ClientSession:
        connector = (
            self._aiohttp.TCPConnector(limit=0, ssl=self._ssl)
            if self._unix_socket is None
            else self._aiohttp.UnixConnector(os.fspath(self._unix_socket), limit=0)
        )
        return self._aiohttp.ClientSession(
            connector=connector, cookie_jar=self._aiohttp.DummyCookieJar()
        )

    async def post(
        self, path: str, body: dict[str, Any], read_other: ReadBody
    ) -> AsyncGenerator[bytes, None]:
        endpoint = self._endpoints[path]
        where = hide_secrets(endpoint)
        accept = "text/event-stream" if path == CHAT_PATH else "application/json"
        if self._session is not None and self._session.closed:
            raise ConfigurationError("the session= of the backend is closed; make a new one")
        response: ClientResponse | None = None
        failure: BackendError
        try:
            session = self._session or await self._sessions.get()
            response = await session.post(
                endpoint,
                json=body,
                headers={**self._headers, "Accept": accept},
                proxy=self._proxy,
                timeout=self._aiohttp.ClientTimeout(
                    total=None, sock_connect=self.timeouts.connect, ceil_threshold=60
                ),
                allow_redirects=False,
                raise_for_status=False,  # a user's session may have it set
            )
            streams = path == CHAT_PATH and response.content_type == "text/event-stream"
            if not (streams and has_reply(response.status)):
                pieces = (piece async for piece in response.content.iter_any())
                others = read_other(response.status, response.headers, pieces, where)
                async with aclosing(others):
                    async for piece in others:
                        yield piece
                return
            content = response.content
            while piece := await content.readany():
                yield piece
            return
        except BackendError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - any error of the library
            failure = failure_from_library(error, where)
        finally:
            # Close the connection unless the reply was read to its end. Then it can be used again.
            if response is not None and not response.content.at_eof():
                response.close()
        # Not in the `except`: the library's error, which may contain a key, would be its context.
        raise failure


def _check_kinds(*, proxy: Any, ssl: Any, unix_socket: Any, session: Any) -> None:
    """Raise `ConfigurationError` for a setting of a wrong type, without its value."""
    from ssl import SSLContext

    for name, value, expected, fits in (
        ("proxy", proxy, "an address, or False", proxy is False or isinstance(proxy, str)),
        ("ssl", ssl, "an ssl.SSLContext, or False", isinstance(ssl, SSLContext | bool)),
        ("unix_socket", unix_socket, "a path", isinstance(unix_socket, str | os.PathLike)),
        ("session", session, "an aiohttp.ClientSession", hasattr(session, "closed")),
    ):
        if not (fits or value is None):
            raise ConfigurationError(
                f"{name}= must be {expected}, not a value of type {type(value).__name__}"
            )


def _check_headers(
    headers: Mapping[str, str], api_key: str | SecretStr | None
) -> Mapping[str, str]:
    """Return `headers`; raise `ConfigurationError`, without their values, for wrong ones."""
    if not isinstance(headers, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
        raise ConfigurationError("headers must be a mapping of names to values, both text")
    for name, value in headers.items():
        is_text = isinstance(value, str)  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
        if not (_HEADER_NAME.fullmatch(str(name)) and is_text and value.isprintable()):
            raise ConfigurationError(f"headers: {quote(name)} or its value is not valid in HTTP")
        if name.lower() in _RESERVED_HEADERS:
            raise ConfigurationError(f"headers: the backend sets {name} itself")
        if api_key is not None and name.lower() == "authorization":
            raise ConfigurationError("pass api_key= or the header Authorization, not both")
    return headers
