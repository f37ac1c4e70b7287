"""The base class of `http` and `openai`: JSON requests, streamed replies, embeddings."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, TypeAlias, cast
from urllib.parse import urlsplit

from pydantic import SecretStr
from pydantic_core import from_json

from ..commander.errors import AnabranchError, BackendError, BadResponse, ConfigurationError
from ..messages import (
    ChunkReader,
    Delta,
    Message,
    OutputMode,
    Request,
    ToolCallDelta,
    request_body,
)
from ..messages.text import SurrogateJoiner, encodable, quote
from ._address import (
    CHAT_PATH,
    EMBEDDINGS_PATH,
    has_user,
    hide_secrets,
    host_of,
    secrets_of,
    server_address,
)
from ._embedding import Embedded, read_embeddings
from ._failure import MAX_SILENT_BYTES, describe, read_json_body, read_reply
from ._model import ModelBackend
from ._providers import HOSTED_PROVIDERS
from ._request_events import names_listener
from ._secret import Redactor, as_secret, filter_library_logs
from ._sse import EventReader

__all__ = ["ReadBody", "WireBackend"]

ReadBody: TypeAlias = Callable[
    [int, Mapping[str, str], AsyncGenerator[bytes, None], str], AsyncGenerator[bytes, None]
]
"""Reads a response that is not declared as a stream of events: its status, headers and pieces, and
the address of the request."""

_MAX_VECTOR_BYTES = 2**18  # as JSON; no model returns more for a text
_MAX_REPLY_BYTES = 32 * MAX_SILENT_BYTES  # of one stream: a million tokens with their JSON
_TRANSPORT_OPTIONS = frozenset(
    {"default_headers", "default_query", "extra_body", "extra_headers", "extra_query", "headers"}
)
# In JSON: a backslash, a pair of surrogates, a single one.
_SURROGATE = re.compile(r"\\\\|\\ud[89ab]..\\ud[c-f]..|(\\ud[89a-f]..)")


class WireBackend(ModelBackend):
    """A server with chat completions. It never shows its key.

    The option `extra` has fields that are added to the body unchanged and replace all others. A
    request's fields replace the backend's, field by field.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        api_key: str | SecretStr | None,
        *,
        secrets: Iterable[SecretStr] = (),
        **settings: Any,
    ) -> None:
        super().__init__(model, **settings)
        self.base_url = server_address(base_url)
        self._api_key = as_secret(api_key)
        if self._api_key is not None and has_user(self.base_url):
            raise ConfigurationError(
                "the address has a user or a password: pass that or api_key, not both"
            )
        self._redactor = Redactor(self._api_key, *secrets_of(self.base_url), *secrets)
        filter_library_logs(self._redactor)

    def __repr__(self) -> str:
        if "_redactor" not in vars(self):  # a traceback of __init__ shows it
            return object.__repr__(self)
        where = self._redactor.text(hide_secrets(self.base_url))
        return f"{type(self).__name__}({self.model!r}, base_url={where!r})"

    @property
    def item_provider(self) -> str:
        return host_of(self.base_url)

    @property
    def server(self) -> tuple[str, int]:
        url = urlsplit(self.base_url)
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """Those of the hosted provider with this address; of another server nothing is known."""
        hosts = [host for host in HOSTED_PROVIDERS if host.base_url == self.base_url]
        return hosts[0].modes_of(self.model) if hosts else super().output_modes

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        """Also refuse the SDK's transport options, and say where to put keys and fields."""
        if wrong := _TRANSPORT_OPTIONS.intersection(options):
            raise ConfigurationError(
                f"no option {', '.join(sorted(wrong))}: pass a key in api_key= or the address, and"
                " fields of the body in extra="
            )
        super().check_defaults(options)
        _check_values({**options, **(options.get("extra") or {})})

    @abstractmethod
    def post(
        self, path: str, body: dict[str, Any], read_other: ReadBody
    ) -> AsyncGenerator[bytes, None]:
        """Post `body` and yield the bytes of the reply; raise `BackendError`.

        `path` is `CHAT_PATH` or `EMBEDDINGS_PATH`. A response that is not declared as a stream of
        events goes through `read_other`. Closing it closes the connection, unless the reply was
        read to its end.
        """

    def redact(self, text: str) -> str:
        """Return `text` with `***` for the API key. A key that is an ordinary word stays."""
        return self._redactor.prose(text)

    async def leave_loop(self) -> None:
        """Close the connections, which are bound to the loop."""
        await self.aclose()

    def fields(self, request: Request) -> dict[str, Any]:
        """Return the fields of the body with the server's names, without `extra`."""
        provider = self.item_provider
        body = request_body(self.model, request, self.default_options, provider=provider)
        body.pop("extra", None)
        return body

    def _body(
        self, fields: Callable[[], dict[str, Any]], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Return the body; raise `ConfigurationError` if it is wrong or cannot be JSON."""
        try:
            body = fields()
            for each in self.default_options, options:
                extra: dict[str, Any] | None = each.get("extra")
                body = {**body, **(extra or {})}
            _check_values(body)
            text = json.dumps(body, allow_nan=False)
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(f"the request cannot be written: {describe(error)}") from None
        if "\\ud" not in text:
            return body
        # Servers reject single surrogates, and the SDK cannot write them.
        return json.loads(_SURROGATE.sub(lambda found: "\\ufffd" if found[1] else found[0], text))

    def continuation(self, request: Request, partial: Message) -> Request | None:
        """Continue as vLLM and SGLang require; llama.cpp and Ollama continue anyway."""
        options = {
            **request.options,
            "continue_final_message": True,
            "add_generation_prompt": False,
        }
        beginning = Message(role="assistant", content=partial.content)
        return Request([*request.messages, beginning], request.tools, options)

    async def attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        """Yield the deltas of each piece as one list: a wait for each delta would cost more.

        Any failure in reading a reply is a `BadResponse`, whatever the server sends.
        """
        failure: AnabranchError
        silent = total = 0  # bytes since the last delta, and in all
        # Servers only need items back from a reply that could call tools.
        provider = self.item_provider if request.tools else ""
        events, chunks = EventReader(), ChunkReader(provider, names_listener())
        mender = _SurrogateMender()
        try:
            body = self._body(partial(self.fields, request), request.options)
            async with aclosing(self.post(CHAT_PATH, body, read_reply)) as pieces:
                async for piece in pieces:
                    deltas, failed = _read(events.feed(piece), chunks, mender)
                    total += len(piece)
                    silent = 0 if deltas else silent + len(piece)
                    if deltas:
                        yield deltas
                    if failed is not None:
                        raise failed
                    if silent > MAX_SILENT_BYTES:
                        raise BadResponse(
                            f"the server sent more than {MAX_SILENT_BYTES} bytes without a delta"
                        )
                    if total > _MAX_REPLY_BYTES:
                        raise BadResponse(f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
            # An event that was cut off by the end of the stream counts only if it is complete.
            last = [event.strip() for event in events.close()]
            deltas, failed = _read(last, chunks, mender)
            if deltas:
                yield deltas
            if not (failed is None or isinstance(failed, BadResponse)):
                raise failed
            return
        except AnabranchError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - nothing else may leave a backend
            failure = _unreadable(error)
        piece = b""  # some tracebacks show variables
        raise self._redactor.error(failure)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return await self.embed_with(self._embed_once, texts)

    async def _embed_once(self, texts: list[str]) -> Embedded:
        failure: AnabranchError
        answer = b""
        fields = {"model": self.model, "input": texts, "encoding_format": "float"}
        max_bytes = MAX_SILENT_BYTES + len(texts) * _MAX_VECTOR_BYTES
        try:
            body = self._body(lambda: fields, {})
            read_other = partial(read_json_body, longest=max_bytes)
            async with aclosing(self.post(EMBEDDINGS_PATH, body, read_other)) as pieces:
                async for piece in pieces:
                    answer += piece
            return read_embeddings(answer, len(texts))
        except AnabranchError as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - nothing else may leave a backend
            failure = _unreadable(error)
        answer = piece = b""  # some tracebacks show variables
        raise self._redactor.error(failure)


def _check_values(fields: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for options that servers take but a `Message` cannot hold."""
    if fields.get("n") not in (None, 1):
        raise ConfigurationError(f"n={quote(fields['n'])}: a reply is one message; send n requests")
    if any(fields.get(name) for name in ("logprobs", "top_logprobs")):
        raise ConfigurationError("logprobs cannot be read from a reply; leave out the option")


def _unreadable(error: Exception) -> BadResponse:
    kind = type(error).__name__
    return BadResponse(f"the reply cannot be read: {kind}: {describe(error)}")


class _SurrogateMender:
    """Joins surrogate pairs that the deltas of a reply split.

    A half of a pair cannot be printed or sent. `from_json` rejects an event that contains one.
    Call `mend` for the deltas of such an event, and for each later delta while a half is `pending`.
    """

    __slots__ = ("_arguments", "_call_id", "_joiners", "pending")

    def __init__(self) -> None:
        self._joiners = {name: SurrogateJoiner() for name in ("text", "reasoning", "refusal")}
        # For each call's arguments: by index, or by id if the server sends no index.
        self._arguments: dict[int | str, SurrogateJoiner] = {}
        self._call_id = ""
        self.pending = False

    def mend(self, delta: Delta) -> Delta:
        """Return `delta` without halves. The last delta gets U+FFFD for each half still pending."""
        ends = delta.done or delta.finish_reason is not None
        for name, joiner in self._joiners.items():
            text = joiner.feed(getattr(delta, name))
            setattr(delta, name, text + joiner.end() if ends else text)
        if delta.tool_calls or (ends and self._arguments):
            delta.tool_calls = [*self._mend_calls(delta.tool_calls, ends)]
        joiners = (*self._joiners.values(), *self._arguments.values())
        self.pending = any(joiner.half for joiner in joiners)
        return delta

    def _mend_calls(self, pieces: Iterable[ToolCallDelta], ends: bool) -> Iterator[ToolCallDelta]:
        for piece in pieces:
            key: int | str = piece.index
            if piece.index < 0:
                key = self._call_id = piece.id or self._call_id
            joiner = self._arguments.setdefault(key, SurrogateJoiner())
            completes = "\udc00" <= piece.arguments[:1] <= "\udfff"
            if piece.name and joiner.half and not completes:  # another call has the same key
                yield _piece(key, joiner.end())
            piece.id = piece.id and encodable(piece.id)
            piece.name = piece.name and encodable(piece.name)
            piece.arguments = joiner.feed(piece.arguments)
            yield piece
        for key, joiner in self._arguments.items() if ends else ():
            if half := joiner.end():
                yield _piece(key, half)


def _piece(key: int | str, arguments: str) -> ToolCallDelta:
    """Return a delta that adds `arguments` to the call with this index or id."""
    if isinstance(key, int):
        return ToolCallDelta(key, arguments=arguments)
    return ToolCallDelta(-1, key or None, arguments=arguments)


def _read(
    events: list[bytes], chunks: ChunkReader, mender: _SurrogateMender
) -> tuple[list[Delta], BackendError | None]:
    """Return the deltas of the events up to the first failure, and that failure."""
    deltas: list[Delta] = []
    try:
        for event in events:
            if event == b"[DONE]":
                deltas.append(mender.mend(chunks.end()))
                continue
            try:
                chunk: Any = from_json(event)
            except ValueError:
                for value in _values(event):
                    other = chunks.read(value) if value else chunks.end()
                    if other is not None:
                        deltas.append(mender.mend(other))
                continue
            if not isinstance(chunk, dict):
                chunk = _only_object(chunk, event)
            if (delta := chunks.read(cast("dict[str, Any]", chunk))) is not None:
                deltas.append(mender.mend(delta) if mender.pending else delta)
    except BackendError as failure:
        return deltas, failure
    return deltas, None


def _values(event: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of an event that `from_json` rejects; an empty object stands for `[DONE]`.

    The event may have single surrogates, comments, spaces around `[DONE]`, or several objects
    without an empty line in between. Raises `BadResponse`.
    """
    text = event.decode("utf-8", "replace")
    for line in [text] if _is_json(text) else text.split("\n"):
        text = line.strip()
        while text.startswith("data:"):
            text = text.removeprefix("data:").strip()
        if text == "[DONE]":
            yield {}
        elif text.startswith("error:"):
            yield {"error": text.removeprefix("error:").strip() or "unnamed"}
        elif text and not text.startswith(":"):
            try:
                value: Any = json.loads(text)
            except (ValueError, RecursionError):
                raise BadResponse(
                    f"the server sent an event that is not JSON: {event[:200]!r}"
                ) from None
            yield _only_object(value, event) or {"choices": []}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _only_object(value: object, event: bytes) -> dict[str, Any]:
    """Return `value` if it is an object, or the only object of a list: Gemini sends errors so.

    Raises `BadResponse` for anything else.
    """
    if isinstance(value, list) and len(cast("list[object]", value)) == 1:
        value = cast("list[object]", value)[0]
    if not isinstance(value, dict):
        raise BadResponse(f"the server sent an event that is not an object: {event[:200]!r}")
    return cast("dict[str, Any]", value)
