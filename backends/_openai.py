"""Hosted models through the official SDK: its keys, transport and errors, our reader."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from pydantic import SecretStr

from ..commander.errors import BackendError, ConfigurationError, MissingExtra
from ..messages import Message, Request
from ._address import CHAT, Host, hide_secrets
from ._failure import failure_from_library, has_reply, refuse
from ._per_loop import Connections
from ._secret import as_secret, filter_loggers
from ._wire import ReadOther, WireBackend

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx2 import Response
    from openai import AsyncOpenAI

__all__ = ["OpenAIBackend"]


_LAZY = (
    ("openai", "AsyncOpenAI"),
    ("openai.resources.chat", "AsyncChat"),
    ("openai.resources.chat.completions", "AsyncCompletions"),
    ("openai.resources", "AsyncEmbeddings"),
)


class OpenAIBackend(WireBackend):
    """A model of a hosted provider, or of any server that OpenAI's SDK can reach.

    The key comes from `api_key` or the host's variable. The SDK does not try again by itself:
    `retries` does, as for every backend. Options are renamed where a provider's own address names
    them otherwise; at another `base_url` they go as they are. Proxies named in the environment are
    used to reach a provider's own address, and no other.
    """

    def __init__(
        self,
        model: str,
        host: Host,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        **settings: Any,
    ) -> None:
        variable = host.base_url_variable
        base_url = base_url or (variable and os.environ.get(variable)) or host.base_url
        key = as_secret(api_key) or as_secret(os.environ.get(host.key_variable))
        if key is None:
            raise ConfigurationError(
                f"{host.name}: no key: set {host.key_variable}, or pass api_key= "
                "(any text for a server that needs none)"
            )
        try:  # here and now: it takes a second, which no reply should wait for
            import_module("aiohttp")
            for module, name in _LAZY:  # the SDK imports the modules of its clients at first use
                getattr(import_module(module), name)
        except ImportError:
            raise MissingExtra("the openai backend", "openai") from None
        _trust()
        super().__init__(model, base_url, key, **settings)
        self.provider = host.name
        self._host = host if self.base_url == host.base_url else None
        self._where = hide_secrets(self.base_url)
        self._clients = Connections(self._open_client)

    async def aclose(self) -> None:
        """Close the connections that this loop uses."""
        await self._clients.close()

    def _open_client(self) -> AsyncOpenAI:
        import httpx2
        from openai import AsyncOpenAI, DefaultAioHttpClient

        filter_loggers("openai")
        assert self._api_key is not None
        address = urlsplit(self.base_url)
        hosted_by_openai = self.provider == "openai"
        return AsyncOpenAI(
            api_key=self._api_key.get_secret_value(),
            organization=None if hosted_by_openai else "",
            project=None if hosted_by_openai else "",
            base_url=urlunsplit(address._replace(query="")),
            default_query=dict(parse_qsl(address.query)),
            max_retries=0,
            default_headers={"Accept-Encoding": "identity"},
            timeout=httpx2.Timeout(None, connect=self.timeouts.connect),
            http_client=DefaultAioHttpClient(
                verify=_trust(),
                trust_env=self._host is not None,
                follow_redirects=False,
                event_hooks={"response": [self._refuse]},
                limits=httpx2.Limits(max_connections=0, max_keepalive_connections=None),
            ),
        )

    def continuation(self, request: Request, partial: Message) -> Request | None:
        if self._host is not None and self._host.go_on is None:
            return None
        return super().continuation(request, partial)

    def fields(self, request: Request) -> dict[str, Any]:
        body = super().fields(request)
        if self._host is None:
            return body
        if body.pop("continue_final_message", False):
            del body["add_generation_prompt"]
            body["messages"][-1] |= self._host.go_on or {}
        renamed = self._host.renamed
        left_out = self._host.left_out
        return {renamed.get(key, key): v for key, v in body.items() if key not in left_out}

    async def post(
        self, path: str, body: dict[str, Any], read_other: ReadOther
    ) -> AsyncGenerator[bytes, None]:
        response: Response | None = None
        failure: BackendError
        try:
            client = await self._clients.get()
            if path == CHAT:
                # The messages go in as they are: the SDK takes a tenth of a millisecond to convert
                # each, in one go, though they are plain JSON already.
                opening = client.chat.completions.with_streaming_response.create(
                    model=body["model"],
                    messages=[],
                    stream=True,
                    extra_body=_but(body, "model"),
                )
            else:
                opening = client.embeddings.with_streaming_response.create(
                    model=body["model"],
                    input=body["input"],
                    encoding_format=body["encoding_format"],
                    extra_body=_but(body, "model", "input", "encoding_format"),
                )
            response = (await opening.__aenter__()).http_response
            pieces = response.aiter_bytes()
            kind = response.headers.get("content-type", "")
            if path != CHAT or not kind.lower().startswith("text/event-stream"):
                others = read_other(200, response.headers, pieces, self._where)
                async with aclosing(others):
                    async for piece in others:
                        yield piece
                return
            async for piece in pieces:
                yield piece
            return
        except BackendError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whatever the libraries make of what they get
            failure = failure_from_library(error, self._where)
        finally:
            if response is not None:
                with suppress(Exception):  # a connection that broke may say so once more
                    await response.aclose()
        raise failure

    async def _refuse(self, response: Response) -> None:
        """Raise for a refusal, before the SDK reads the whole of it."""
        if not has_reply(response.status_code):
            pieces = response.aiter_bytes()
            await refuse(response.status_code, response.headers, pieces, self._where)


def _but(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


@cache
def _trust() -> SSLContext:
    """Read the certificates of those to trust once: it blocks as long as a short reply takes."""
    import httpx2

    return httpx2.create_ssl_context()
