"""What `http` and `openai` share: a request goes out as JSON, the reply comes in as events.

Embeddings come in one piece.
"""

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
from ..messages import ChunkReader, Delta, Message, Request, ToolCallDelta, request_body
from ..messages.text import SurrogateJoiner, encodable, quote
from ._address import (
    CHAT,
    EMBEDDINGS,
    has_user,
    hide_secrets,
    host_of,
    secrets_of,
    server_address,
)
from ._embedding import Embedded, read_embeddings
from ._failure import LONGEST, any_reply, describe, whole_body
from ._model import ModelBackend
from ._request_events import names_listener
from ._secret import Redactor, as_secret, keep_from_logs
from ._sse import EventReader

__all__ = ["ReadOther", "WireBackend"]

ReadOther: TypeAlias = Callable[
    [int, Mapping[str, str], AsyncGenerator[bytes, None], str], AsyncGenerator[bytes, None]
]
"""Reads what is not declared as a stream of events: the status, headers and pieces of a response,
and the address that was asked."""

_LONGEST_VECTOR = 2**18  # bytes, as JSON: more numbers than any model gives for a text
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
                "the address holds a user or a password: give that or api_key, not both"
            )
        self._redactor = Redactor(self._api_key, *secrets_of(self.base_url), *secrets)
        keep_from_logs(self._redactor)

    def __repr__(self) -> str:
        where = self._redactor.text(hide_secrets(self.base_url))
        return f"{type(self).__name__}({self.model!r}, base_url={where!r})"

    @property
    def item_provider(self) -> str:
        return host_of(self.base_url)

    @property
    def server(self) -> tuple[str, int]:
        url = urlsplit(self.base_url)
        return url.hostname or "", url.port or (443 if url.scheme == "https" else 80)

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        """Refuse also what the SDK takes beside a request: where keys go is said of these."""
        if wrong := _NO_FIELDS.intersection(options):
            raise ConfigurationError(
                f"no option {', '.join(sorted(wrong))}: a key goes in api_key= or the address, and"
                " fields of the body in extra="
            )
        super().check_defaults(options)
        _check_values({**options, **(options.get("extra") or {})})

    @abstractmethod
    def post(
        self, path: str, body: dict[str, Any], read_other: ReadOther
    ) -> AsyncGenerator[bytes, None]:
        """Post `body` and pass the bytes of the reply on; raises `BackendError`.

        `path` is `CHAT` or `EMBEDDINGS`. What is not declared as a stream of events is passed on as
        `read_other` gives it. Closing it closes the connection, unless the reply has been read to
        its end.
        """

    def redact(self, text: str) -> str:
        """Return `text` with stars where the key stood, if that is more than a word."""
        return self._redactor.prose(text)

    async def leave_loop(self) -> None:
        """Close the connections, which are bound to the loop."""
        await self.aclose()

    def fields(self, request: Request) -> dict[str, Any]:
        """Return what stands in the body, named as this server names it, all but `extra`."""
        provider = self.item_provider
        body = request_body(self.model, request, self.default_options, provider=provider)
        body.pop("extra", None)
        return body

    def _body(
        self, fields: Callable[[], dict[str, Any]], options: Mapping[str, Any]
    ) -> dict[str, Any]:
        """Make the body; raises `ConfigurationError` for what is no request, or has no JSON."""
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
        # Lone surrogates are refused by servers, and the SDK cannot write them.
        return json.loads(_SURROGATE.sub(lambda found: "\\ufffd" if found[1] else found[0], text))

    def continuation(self, request: Request, partial: Message) -> Request | None:
        """Ask as vLLM and SGLang want it; llama.cpp and Ollama go on anyway."""
        go_on = {"continue_final_message": True, "add_generation_prompt": False}
        said = Message(role="assistant", content=partial.content)
        return Request([*request.messages, said], request.tools, {**request.options, **go_on})

    async def attempt(self, request: Request) -> AsyncGenerator[list[Delta], None]:
        """What comes in one piece is passed on in one: a wait for each delta would cost more.

        Whatever goes wrong in reading a reply is a `BadResponse`: a server may say anything.
        """
        failure: AnabranchError
        silent = whole = 0  # bytes since the last delta, and all of them
        # Servers need nothing back of a reply that was offered no tools.
        provider = self.item_provider if request.tools else ""
        events, chunks = EventReader(), ChunkReader(provider, names_listener())
        halves = _Halves()
        try:
            body = self._body(partial(self.fields, request), request.options)
            async with aclosing(self.post(CHAT, body, any_reply)) as pieces:
                async for piece in pieces:
                    deltas, failed = _read(events.feed(piece), chunks, halves)
                    whole += len(piece)
                    silent = 0 if deltas else silent + len(piece)
                    if deltas:
                        yield deltas
                    if failed is not None:
                        raise failed
                    if silent > LONGEST:
                        raise BadResponse(f"more than {LONGEST} bytes came without a delta")
                    if whole > _LONGEST_REPLY:
                        raise BadResponse(f"the reply is longer than {_LONGEST_REPLY} bytes")
            # An event that the end of the stream cut off counts only if it is whole.
            last = [event.strip() for event in events.close()]
            deltas, failed = _read(last, chunks, halves)
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
        longest = LONGEST + len(texts) * _LONGEST_VECTOR
        try:
            body = self._body(lambda: fields, {})
            read_other = partial(whole_body, longest=longest)
            async with aclosing(self.post(EMBEDDINGS, body, read_other)) as pieces:
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
    """Raise `ConfigurationError` for what servers take and no `Message` can hold."""
    if fields.get("n") not in (None, 1):
        raise ConfigurationError(f"n={quote(fields['n'])}: a reply is one message; ask n times")
    if any(fields.get(name) for name in ("logprobs", "top_logprobs")):
        raise ConfigurationError("logprobs cannot be read from a reply: leave out the option")


def _unreadable(error: Exception) -> BadResponse:
    kind = type(error).__name__
    return BadResponse(f"the reply cannot be read: {kind}: {describe(error)}")


class _Halves:
    """Joins the surrogate pairs of a reply that its deltas cut in two.

    A half alone could not be printed or sent. A piece ends in one only where `from_json` refuses
    its event, so `mend` is needed for such deltas, and for all others while a half is `pending`.
    """

    __slots__ = ("_arguments", "_call_id", "_joiners", "pending")

    def __init__(self) -> None:
        self._joiners = {name: SurrogateJoiner() for name in ("text", "reasoning", "refusal")}
        # Of each call's arguments, by its index; by its id where the server gives no index.
        self._arguments: dict[int | str, SurrogateJoiner] = {}
        self._call_id = ""  # of the last call without an index
        self.pending = False

    def mend(self, delta: Delta) -> Delta:
        """Return `delta` without halves; the last delta has what stands for those that remain."""
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
            if piece.name and joiner.half and not completes:  # another call begins
                yield _piece(key, joiner.end())
            piece.id = piece.id and encodable(piece.id)
            piece.name = piece.name and encodable(piece.name)
            piece.arguments = joiner.feed(piece.arguments)
            yield piece
        for key, joiner in self._arguments.items() if ends else ():
            if half := joiner.end():
                yield _piece(key, half)


def _piece(key: int | str, arguments: str) -> ToolCallDelta:
    """Return more of the arguments of a call, which an index or an id names."""
    if isinstance(key, int):
        return ToolCallDelta(key, arguments=arguments)
    return ToolCallDelta(-1, key or None, arguments=arguments)


def _read(
    events: list[bytes], chunks: ChunkReader, halves: _Halves
) -> tuple[list[Delta], BackendError | None]:
    """Return the deltas of the events, up to the first failure, and that failure."""
    deltas: list[Delta] = []
    try:
        for event in events:
            if event == b"[DONE]":
                deltas.append(halves.mend(chunks.end()))
                continue
            try:
                chunk: Any = from_json(event)
            except ValueError:
                for value in _values(event):
                    other = chunks.read(value) if value else chunks.end()
                    if other is not None:
                        deltas.append(halves.mend(other))
                continue
            if not isinstance(chunk, dict):
                chunk = _only_object(chunk, event)
            if (delta := chunks.read(cast("dict[str, Any]", chunk))) is not None:
                deltas.append(halves.mend(delta) if halves.pending else delta)
    except BackendError as failure:
        return deltas, failure
    return deltas, None


def _values(event: bytes) -> Iterator[dict[str, Any]]:
    """Yield the objects of an event that the fast reader refuses; an empty one is the end mark.

    It may have lone surrogates, comments, the end mark among spaces, or several objects that no
    empty line parts. Raises `BadResponse`.
    """
    text = event.decode("utf-8", "replace")
    for line in [text] if _is_json(text) else text.split("\n"):
        said = line.strip()
        while said.startswith("data:"):
            said = said.removeprefix("data:").strip()
        if said == "[DONE]":
            yield {}
        elif said.startswith("error:"):
            yield {"error": said.removeprefix("error:").strip() or "unnamed"}
        elif said and not said.startswith(":"):
            try:
                value: Any = json.loads(said)
            except (ValueError, RecursionError):
                raise BadResponse(f"an event that is not JSON: {event[:200]!r}") from None
            yield _only_object(value, event) or {"choices": []}


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _only_object(value: object, event: bytes) -> dict[str, Any]:
    """Return an object, also one that is alone in a list, as Gemini writes errors.

    Raises `BadResponse` for anything else.
    """
    if isinstance(value, list) and len(cast("list[object]", value)) == 1:
        value = cast("list[object]", value)[0]
    if not isinstance(value, dict):
        raise BadResponse(f"an event that is not an object: {event[:200]!r}")
    return cast("dict[str, Any]", value)
