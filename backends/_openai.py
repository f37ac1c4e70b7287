"""A backend for hosted models, over OpenAI's SDK: its transport and errors, our parsing."""

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
from ._address import CHAT_PATH, hide_secrets
from ._failure import failure_from_library, has_reply, raise_refusal
from ._per_loop import Connections
from ._secret import as_secret, filter_loggers
from ._wire import ReadBody, WireBackend

if TYPE_CHECKING:
    from ssl import SSLContext

    from httpx2 import Response
    from openai import AsyncOpenAI

    from ._providers import HostedProvider

__all__ = ["OpenAIBackend", "load_sdk"]


_LAZY_SDK_CLASSES = (
    ("openai", "AsyncOpenAI"),
    ("openai.resources.chat", "AsyncChat"),
    ("openai.resources.chat.completions", "AsyncCompletions"),
    ("openai.resources", "AsyncEmbeddings"),
)


class OpenAIBackend(WireBackend):
    """A model of a hosted provider, or of any server that OpenAI's SDK can reach.

    The key is `api_key` or the provider's environment variable. The SDK does not retry: `retries`
    does, as for every backend. At the provider's own address, options get the provider's names; at
    another `base_url` they are sent unchanged. Proxies of the environment are used for the
    provider's own address only.
    """

    def __init__(
        self,
        model: str,
        host: HostedProvider,
        base_url: str | None = None,
        api_key: str | SecretStr | None = None,
        *,
        load: bool = True,
        **settings: Any,
    ) -> None:
        variable = host.base_url_variable
        base_url = base_url or (variable and os.environ.get(variable)) or host.base_url
        key = as_secret(api_key) or as_secret(os.environ.get(host.key_variable))
        if key is None:
            raise ConfigurationError(
                f"{host.name}: no key. Set {host.key_variable} "
                "(any text for a server that needs none)."
            )
        if load:  # now, because it takes a second that no reply should wait for
            load_sdk()
        super().__init__(model, base_url, key, **settings)
        self.provider = host.name
        self._host = host if self.base_url == host.base_url else None
        self._where = hide_secrets(self.base_url)
        self._clients = Connections(self._open_client)

    async def aclose(self) -> None:
        """Close this loop's connections."""
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
                verify=_certificates(),
                trust_env=self._host is not None,
                follow_redirects=False,
                event_hooks={"response": [self._refuse]},
                limits=httpx2.Limits(max_connections=0, max_keepalive_connections=None),
            ),
        )

    def continuation(self, request: Request, partial: Message) -> Request | None:
        if self._host is not None and self._host.continuation_fields is None:
            return None
        return super().continuation(request, partial)

    def fields(self, request: Request) -> dict[str, Any]:
        body = super().fields(request)
        if self._host is None:
            return body
        if body.pop("continue_final_message", False):
            del body["add_generation_prompt"]
            body["messages"][-1] |= self._host.continuation_fields or {}
        renamed = self._host.renamed
        omitted = self._host.omitted
        return {renamed.get(key, key): v for key, v in body.items() if key not in omitted}

    async def post(
        self, path: str, body: dict[str, Any], read_other: ReadBody
    ) -> AsyncGenerator[bytes, None]:
        response: Response | None = None
        failure: BackendError
        try:
            client = await self._clients.get()
            if path == CHAT_PATH:
                # Messages are passed in `extra_body`, because they are JSON already. The SDK would
                # convert each again, which blocks the loop for 0.1 ms each.
                opening = client.chat.completions.with_streaming_response.create(
                    model=body["model"],
                    messages=[],
                    stream=True,
                    extra_body=_without(body, "model"),
                )
            else:
                opening = client.embeddings.with_streaming_response.create(
                    model=body["model"],
                    input=body["input"],
                    encoding_format=body["encoding_format"],
                    extra_body=_without(body, "model", "input", "encoding_format"),
                )
            response = (await opening.__aenter__()).http_response
            pieces = response.aiter_bytes()
            kind = response.headers.get("content-type", "")
            if path != CHAT_PATH or not kind.lower().startswith("text/event-stream"):
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
        except Exception as error:  # noqa: BLE001 - any error of the libraries
            failure = failure_from_library(error, self._where)
        finally:
            if response is not None:
                with suppress(Exception):  # a broken connection may raise again
                    await response.aclose()
        # Not in the `except`: the library's error, which may contain a key, would be its context.
        raise failure

    async def _refuse(self, response: Response) -> None:
        """Raise for an HTTP error status, before the SDK reads the whole body."""
        if not has_reply(response.status_code):
            pieces = response.aiter_bytes()
            await raise_refusal(response.status_code, response.headers, pieces, self._where)


def _without(body: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name not in names}


def load_sdk() -> None:
    """Import the SDK and read the certificates, which takes a second; raise `MissingExtra`."""
    try:
        import_module("aiohttp")
        for module, name in _LAZY_SDK_CLASSES:  # the SDK imports these at first use
            getattr(import_module(module), name)
    except ImportError:
        raise MissingExtra("the openai backend", "openai") from None
    _certificates()


@cache
def _certificates() -> SSLContext:
    """Read the trusted certificates once, because it blocks as long as a short reply takes."""
    import httpx2

    return httpx2.create_ssl_context()
