"""Any server that speaks the chat-completions wire, over aiohttp."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from ..commander.errors import BackendError, MissingExtra
from ._address import CHAT, EMBEDDINGS, endpoint, hide_secrets
from ._failure import failure_from_library
from ._per_loop import Connections
from ._wire import ReadWhole, WireBackend

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["HttpBackend"]


class HttpBackend(WireBackend):
    """A model behind `base_url`, whatever server stands there.

    One session of connections, kept open between requests, opened at the first and closed by
    `aclose`. The number of connections is not limited here: `limits` does that. The key, if there
    is one, goes as a bearer token; proxies named in the environment are not used.
    """

    provider = "http"

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str | SecretStr | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(model, base_url, api_key, **settings)
        try:
            import aiohttp
        except ImportError:
            raise MissingExtra("the http backend", "http") from None
        self._aiohttp = aiohttp
        self._endpoints = {path: endpoint(self.base_url, path) for path in (CHAT, EMBEDDINGS)}
        self._sessions = Connections(self._open_session)

    async def aclose(self) -> None:
        """Close the connections that this loop uses."""
        await self._sessions.close()

    def _open_session(self) -> ClientSession:
        headers = {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
        if self._api_key is not None:
            headers["Authorization"] = f"Bearer {self._api_key.get_secret_value()}"
        return self._aiohttp.ClientSession(
            connector=self._aiohttp.TCPConnector(limit=0),
            timeout=self._aiohttp.ClientTimeout(
                total=None, sock_connect=self.timeouts.connect, ceil_threshold=60
            ),
            headers=headers,
            cookie_jar=self._aiohttp.DummyCookieJar(),
        )

    async def post(
        self, path: str, body: dict[str, Any], read_whole: ReadWhole
    ) -> AsyncGenerator[bytes, None]:
        endpoint = self._endpoints[path]
        where = hide_secrets(endpoint)
        headers = {} if path == CHAT else {"Accept": "application/json"}
        response: ClientResponse | None = None
        failure: BackendError
        try:
            session = await self._sessions.get()
            response = await session.post(
                endpoint, json=body, headers=headers, allow_redirects=False
            )
            streams = path == CHAT and response.content_type == "text/event-stream"
            if response.status != 200 or not streams:
                pieces = (piece async for piece in response.content.iter_any())
                yield await read_whole(response.status, response.headers, pieces, where)
                return
            content = response.content
            while piece := await content.readany():
                yield piece
            return
        except BackendError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever the library makes of what it gets
            failure = failure_from_library(error, where)
        finally:
            # Closes the connection unless the reply was read to its end: then it is used again.
            if response is not None and not response.content.at_eof():
                response.close()
        raise failure
