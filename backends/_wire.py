"""What `http` and `openai` share: a request goes out as JSON, the reply comes in as events."""

from __future__ import annotations

import asyncio
import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, Generic, Protocol, TypeVar

from pydantic import SecretStr
from pydantic_core import from_json

from ..commander.errors import AnabranchError, BackendError, BadResponse, ConfigurationError
from ..messages import Delta, Message, Request, delta_from_chunk, request_body
from ._address import has_user, secrets_of, server_address, shown
from ._failure import LONGEST, told
from ._model import ModelBackend
from ._secret import Redactor, as_secret, keep_from_logs
from ._sse import EventReader

__all__ = ["Connections", "PerLoop", "WireBackend"]

_T = TypeVar("_T")
_LONGEST_REPLY = 32 * LONGEST  # bytes of one stream: a million tokens, with all that is around them
_NO_FIELDS = frozenset(
    {"default_headers", "default_query", "extra_body", "extra_headers", "extra_query", "headers"}
)
# In JSON: a backslash, a pair of surrogates, one by itself.
_SURROGATE = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)")


class WireBackend(ModelBackend):
    """A server that speaks the chat-completions wire. Never shows its key.

    The option `extra` holds fields that go into the body as they are and win over all others; a
    request's are put over the backend's, field by field.
    """

    def __init__(
        self, model: str, base_url: str, api_key: str | SecretStr | None, **settings: Any
    ) -> None:
        super().__init__(model, **settings)
        _check_options(self.default_options)
        self.base_url = server_address(base_url)
        self._api_key = as_secret(api_key)
        if self._api_key is not None and has_user(self.base_url):
            raise ConfigurationError(
                "the address holds a user or a password: give that or api_key, not both"
            )
        self._redactor = Redactor(self._api_key, *secrets_of(self.base_url))
        keep_from_logs(self._redactor)

    def __repr__(self) -> str:
        where = self._redactor.text(shown(self.base_url))
        return f"{type(self).__name__}({self.model!r}, base_url={where!r})"

    @abstractmethod
    def _send(self, body: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """Post `body` and pass the bytes of the reply on; raises `BackendError`.

        Closing it closes the connection, unless the reply has been read to its end.
        """

    def redact(self, text: str) -> str:
        """Return `text` with stars where the key stood, if that is more than a word."""
        return self._redactor.prose(text)

    async def _leave_loop(self) -> None:
        await self.aclose()

    def _body(self, request: Request) -> dict[str, Any]:
        body = request_body(self.model, request, self.default_options)
        body.pop("extra", None)
        return body

    def _extra(self, request: Request) -> dict[str, Any]:
        default, own = self.default_options.get("extra"), request.options.get("extra")
        return {**(default or {}), **(own or {})}

    def _written(self, request: Request) -> dict[str, Any]:
        """Return the body; raises `ConfigurationError` for what is no request, or has no JSON."""
        _check_options(request.options)
        try:
            return _sendable(self._body(request) | self._extra(request))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ConfigurationError(f"the request cannot be written: {told(error)}") from None

    def _continued(self, request: Request, partial: Message) -> Request | None:
        """Ask as vLLM and SGLang want it; llama.cpp and Ollama go on anyway."""
        go_on = {"continue_final_message": True, "add_generation_prompt": False}
        said = Message(role="assistant", content=partial.content)
        return Request([*request.messages, said], request.tools, {**request.options, **go_on})

    async def _attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        """What comes in one piece is passed on in one: a wait for each delta would cost more.

        Whatever goes wrong in reading a reply is a `BadResponse`: a server may say anything.
        """
        failure: AnabranchError
        silent = whole = 0  # bytes since the last delta, and all of them
        try:
            body = self._written(request)
            async with aclosing(self._send(body)) as pieces:
                reader = EventReader()
                async for piece in pieces:
                    deltas, failed = _read(reader.feed(piece))
                    size = len(piece)
                    whole += size
                    silent = 0 if deltas else silent + size
                    if deltas:
                        yield deltas
                    if failed is not None:
                        raise failed
                    if silent > LONGEST or whole > _LONGEST_REPLY:
                        raise BadResponse(_too_long(silent, whole))
            if (delta := _last_delta(reader.close())) is not None:
                yield [delta]
            return
        except AnabranchError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - nothing else may leave a backend
            failure = BadResponse(
                f"the reply cannot be read: {type(error).__name__}: {told(error)}"
            )
        piece = b""  # some tracebacks show variables
        raise self._redactor.error(failure)


def _check_options(options: Iterable[str]) -> None:
    """Refuse what the SDK takes beside a request: it would go into the body, keys included."""
    if wrong := _NO_FIELDS.intersection(options):
        raise ConfigurationError(
            f"no option {', '.join(sorted(wrong))}: a key goes in api_key= or the address, and"
            " fields of the body in extra="
        )


def _sendable(body: dict[str, Any]) -> dict[str, Any]:
    """Return `body` without lone surrogates, which servers refuse and the SDK cannot write."""
    try:
        text = json.dumps(body, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the request cannot be written as JSON: {error}") from None
    if "\\ud" not in text:
        return body
    return json.loads(_SURROGATE.sub(lambda found: "\\ufffd" if found[1] else found[0], text))


def _too_long(silent: int, whole: int) -> str:
    if silent > LONGEST:
        return f"more than {LONGEST} bytes came without a delta"
    return f"the reply is longer than {_LONGEST_REPLY} bytes"


def _read(events: list[bytes]) -> tuple[list[Delta], BackendError | None]:
    """Return what the events say, up to the first that is a failure."""
    deltas: list[Delta] = []
    try:
        for event in events:
            if (delta := _delta(event)) is not None:
                deltas.append(delta)  # noqa: PERF401 - what comes before a failure is kept
    except BackendError as failure:
        return deltas, failure
    return deltas, None


def _delta(event: bytes) -> Delta | None:
    if event == b"[DONE]":
        return Delta(done=True)
    return delta_from_chunk(_chunk(event)) if event.strip() else None


def _chunk(event: bytes) -> dict[str, Any]:
    """Read one event. The slower reader takes what the fast one does not: lone surrogates."""
    try:
        chunk: Any = from_json(event)
    except ValueError:
        try:
            chunk = json.loads(event.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise BadResponse(f"an event that is not JSON: {event[:200]!r}") from None
    if not isinstance(chunk, dict):
        raise BadResponse(f"an event that is not an object: {event[:200]!r}")
    return chunk  # pyright: ignore[reportUnknownVariableType] - JSON


def _last_delta(event: bytes | None) -> Delta | None:
    """Read an event that the end of the stream cut off: counts only if it is whole."""
    if not event:
        return None
    try:
        return _delta(event.strip())
    except BadResponse:
        return None


class Closable(Protocol):
    """What has connections to close."""

    async def close(self) -> None:
        """Close them."""
        ...


_C = TypeVar("_C", bound=Closable)


class Connections(Generic[_C]):
    """A client for each event loop, opened at first use, closed by `close`.

    A client that nobody closes is closed with its loop: each is held by an async generator, and
    `asyncio.run` and our own `run` close these before the loop.
    """

    __slots__ = ("_kept",)

    def __init__(self, open_client: Callable[[], _C]) -> None:
        self._kept: PerLoop[AsyncGenerator[_C, None]] = PerLoop(lambda: _keep(open_client()))

    async def get(self) -> _C:
        """Return the running loop's client."""
        return await anext(self._kept.get())

    async def close(self) -> None:
        """Close the running loop's client; the next request opens another."""
        if kept := self._kept.pop():
            await kept.aclose()


async def _keep(client: _C) -> AsyncGenerator[_C, None]:
    try:
        while True:
            yield client
    finally:
        await client.close()


class PerLoop(Generic[_T]):
    """One thing for each event loop, made at first use."""

    __slots__ = ("_made", "_make")

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._made: dict[asyncio.AbstractEventLoop, _T] = {}

    def get(self) -> _T:
        """Return the running loop's own."""
        loop = asyncio.get_running_loop()
        made = self._made.get(loop)
        if made is None:
            self._forget_closed_loops()
            made = self._made[loop] = self._make()
        return made

    def pop(self) -> _T | None:
        """Forget the running loop's own and return it, None if there is none."""
        return self._made.pop(asyncio.get_running_loop(), None)

    def _forget_closed_loops(self) -> None:
        for loop in [loop for loop in self._made if loop.is_closed()]:
            del self._made[loop]
