"""Any server that speaks the chat-completions wire, over aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from pydantic import SecretStr

from ..commander._errors import BackendUnavailable, MissingExtra
from ._failure import failure_from_response, not_events, told
from ._wire import Connections, WireBackend, endpoint, shown

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["HttpBackend"]

_LONGEST_REFUSAL = 65_536  # bytes read of a body that refuses


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
        self._endpoint = endpoint(self.base_url)
        self._where = shown(self._endpoint)
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
        )

    async def _send(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        response: ClientResponse | None = None
        failure: str
        try:
            response = await self._post(body)
            if response.status != 200 or response.content_type != "text/event-stream":
                yield await self._whole(response)
                return
            content = response.content
            while piece := await content.readany():
                yield piece
            return
        except (self._aiohttp.ClientError, OSError) as error:
            failure = f"{self._where}: {told(error)}"
        finally:
            # Closes the connection unless the reply was read to its end: then it is used again.
            if response is not None and not response.content.at_eof():
                response.close()
        raise BackendUnavailable(failure)

    async def _post(self, body: dict[str, Any]) -> ClientResponse:
        session = await self._sessions.get()
        return await session.post(self._endpoint, json=body, allow_redirects=False)

    async def _whole(self, response: ClientResponse) -> bytes:
        if response.status != 200:
            text = await _read_some(response)
            raise failure_from_response(response.status, response.headers, text, self._where)
        return not_events(response.content_type, await response.read(), self._where)


async def _read_some(response: ClientResponse) -> bytes:
    try:
        return await response.content.readexactly(_LONGEST_REFUSAL)
    except asyncio.IncompleteReadError as error:
        return error.partial
