"""Replies that are kept: what a request is found by, and a reply as JSON.

A cassette keeps each delta with its time; a journal keeps the whole message, which is a message of
a conversation too, and what the reply took.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator
from contextlib import aclosing, contextmanager
from contextvars import ContextVar
from functools import wraps
from hashlib import sha256
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from ..commander import is_watched, payer
from ..commander.durable import DurableReply, charge_again, scope_here
from ..commander.errors import ConfigurationError
from ..dispatch.assembly import assemble
from ..messages import (
    Delta,
    Message,
    ProviderItem,
    Request,
    ToolCall,
    ToolCallDelta,
    Usage,
    request_body,
)
from ..messages.kept import read_message, write_json, write_message
from ..messages.options import StrictSchema
from ._request_events import (
    REQUEST_EVENTS,
    ObservedRequest,
    add_usage,
    is_observed,
    observing,
    with_request_events,
)
from ._secret import clean
from ._takes import fit_parts
from ._tape import delta_from_json, delta_to_json

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = ["keep_replies", "key_of", "note_taken"]

B = TypeVar("B", bound="Backend")

Stream: TypeAlias = Callable[[B, Request], AsyncGenerator[Delta, None]]

# Characters without a space that are held back, as they may be the beginning of a key.
LONGEST_WORD = 512
# Characters of an image or a file that stand in what a request is found by.
LONGEST_PART = 1000

# What the reply that is being kept here has taken, by model; None where none is. A backend that
# asks another one does so inside its own reply, which alone is kept.
_TAKEN: ContextVar[list[tuple[str, Usage]] | None] = ContextVar("anabranch_taken", default=None)


def key_of(request: Request) -> str:
    """Write what a request is found by; images and files stand there as digests."""
    body = request_body("", request, stream=False)
    del body["model"]
    items = [
        [place, item.model_dump(exclude_defaults=True) | {"data": _digest_of(item.data)}]
        for place, message in enumerate(request.messages)
        for item in message.provider_items
    ]
    if items:  # without them a request is written as before there were any
        body["provider_items"] = items
    for message in body["messages"]:
        if isinstance(message["content"], list):
            message["content"] = [_short(part) for part in message["content"]]
    wanted = body.get("response_format")
    if isinstance(wanted, dict):
        wanted = cast("dict[str, Any]", wanted)
        if isinstance(schema := wanted.get("json_schema"), StrictSchema):
            body["response_format"] = {**wanted, "json_schema": schema.known_as}
    try:
        return json.dumps(body, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the request cannot be recorded as JSON: {error}") from None


def _short(part: dict[str, Any]) -> dict[str, Any]:
    if (kind := part["type"]) == "text":
        return part
    said: dict[str, str] = part[kind]
    return {"type": kind, kind: {name: _digest_of(value) for name, value in said.items()}}


def _digest_of(text: str) -> str:
    if len(text) < LONGEST_PART:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def note_taken(model: str, usage: Usage) -> None:
    """Say what an attempt took: it is charged again whenever the reply is played."""
    add_usage(model, usage)
    if (taken := _TAKEN.get()) is not None:
        taken.append((model, usage))


@contextmanager
def _noting(taken: list[tuple[str, Usage]]) -> Generator[None]:
    """Note in `taken` what attempts take that end in this block."""
    token = _TAKEN.set(taken)
    try:
        yield
    finally:
        _TAKEN.reset(token)


def keep_replies(stream: Stream[B]) -> Stream[B]:
    """Let `stream` keep each whole reply in the journal of its run, and play it from there.

    Those who listen to the tree are told of the request, and of the end of its reply.
    """

    @wraps(stream)
    def kept_stream(self: B, request: Request) -> AsyncGenerator[Delta, None]:
        request = fit_parts(self, request)
        node = payer()
        if node is None or self.asks_others or is_observed(node):
            return kept(self, request)[0]
        if not is_watched(node, *REQUEST_EVENTS):
            return kept(self, request)[0]
        with observing(ObservedRequest(node)):
            # A `stream` that is no generator asks another backend at once.
            source, replayed = kept(self, request)
        return with_request_events(self, source, request, replayed=replayed)

    def kept(self: B, request: Request) -> tuple[AsyncGenerator[Delta, None], bool]:
        scope = scope_here(any_loop=True)
        if scope is None or _TAKEN.get() is not None:
            return stream(self, request), False
        reply = scope.reply(key_of(request), self.redact)
        for model, usage in reply.earlier_charges:
            charge_again(model, usage, own=self.limits_of_model(model))
        if reply.recorded is not None:
            return _play(self, reply, reply.recorded), True
        taken: list[tuple[str, Usage]] = []
        with _noting(taken):
            source = stream(self, request)
        if reply.has_reader:
            source = _tell(source, reply, self.redact)
        return _keep(self, source, reply, taken), False

    kept_stream.keeps_replies = True  # type: ignore[attr-defined] - `Backend` asks
    return kept_stream


async def _tell(
    source: AsyncGenerator[Delta, None], reply: DurableReply, redact: Callable[[str], str]
) -> AsyncGenerator[Delta, None]:
    """Pass deltas on, and tell their text as it grows, in pieces that part no key in two."""
    held = ""
    async with aclosing(source):
        async for delta in source:
            held += delta.text or ""
            end = max(held.rfind(" "), held.rfind("\n"), len(held) - LONGEST_WORD) + 1
            if end > 0:
                reply.publish_text(redact(held[:end]))
                held = held[end:]
            yield delta


async def _keep(
    backend: Backend,
    source: AsyncGenerator[Delta, None],
    reply: DurableReply,
    taken: list[tuple[str, Usage]],
) -> AsyncGenerator[Delta, None]:
    """Pass deltas on; nobody sees the reply's end before it is kept, whatever end that is.

    Else what was done about the reply could be in the journal without it.
    """
    came: list[Delta] = []
    whole = 0  # how many had come before its end
    with reply.receiving():
        try:
            try:
                while True:
                    try:
                        with _noting(taken):
                            delta = await anext(source)
                    except StopAsyncIteration:
                        break
                    came.append(delta)
                    if whole or delta.finish_reason is not None or delta.done:
                        whole = whole or len(came)
                    else:
                        yield delta
            finally:
                with _noting(taken):  # one that is left before its end takes something too
                    await source.aclose()
        except BaseException as error:
            seen = came[: whole - 1] if whole else came
            saved = _write(backend, seen, taken, exact=True)
            reply.record_interruption(write_json(saved), error)
            raise
        saved = _write(backend, came, taken)
        if not whole:  # a backend of the user's own may know no end mark
            saved["open"] = True
        reply.record(write_json(saved))
    for delta in came[whole - 1 :] if whole else ():
        yield delta


def _write(
    backend: Backend, came: list[Delta], taken: list[tuple[str, Usage]], *, exact: bool = False
) -> dict[str, Any]:
    """Write what came of a reply: its message, and the deltas where these say more, or if `exact`.

    A key may be spread over deltas, so these are never written where the message has one.
    """
    assembled = assemble(came)
    message = write_message(assembled)
    saved: dict[str, Any] = {
        "message": clean(message, backend.redact),
        "taken": [[model, usage.model_dump(exclude_defaults=True)] for model, usage in taken],
    }
    if (exact or not _says_all(assembled, came)) and saved["message"] == message:
        saved["deltas"] = [{"at": 0, **delta_to_json(delta)} for delta in came]
    if exact:
        saved["open"] = True
    return saved


async def _play(backend: Backend, reply: DurableReply, text: str) -> AsyncGenerator[Delta, None]:
    """Give a reply that was kept, and charge what it took; it takes no turn of any limit."""
    saved = json.loads(text)
    for model, usage in saved["taken"]:
        charge_again(model, Usage(**usage), own=backend.limits_of_model(model))
        add_usage(model, Usage(**usage))
    for delta in deltas_of(saved):
        yield delta
    await reply.finish_replay()


def deltas_of(saved: dict[str, Any]) -> Iterator[Delta]:
    """Give deltas that make the message that was saved, whatever calls are written in its text."""
    if "deltas" in saved:
        yield from (delta_from_json(delta)[1] for delta in saved["deltas"])
        return
    message = read_message(saved["message"])
    if message.reasoning:
        yield Delta(reasoning=message.reasoning)
    refusal, index = message.refusal, 0
    for part in message.in_order():
        match part:
            case str():
                yield Delta(text=part)
            case ToolCall():
                if refusal:  # which comes after the text and before the calls
                    yield Delta(refusal=refusal)
                refusal, index = None, part.index
                piece = ToolCallDelta(index, part.id, part.name, part.raw or "")
                yield Delta(tool_calls=(piece,))
            case ProviderItem(call=None):
                yield Delta(items=(part,))
            case ProviderItem():  # of the call before it
                yield Delta(tool_calls=(ToolCallDelta(index, item=part),))
    if refusal:
        yield Delta(refusal=refusal)
    if message.usage is not None or message.finish_reason is not None:
        yield Delta(usage=message.usage, finish_reason=message.finish_reason)
    if "open" not in saved:
        yield Delta(done=True)


def _says_all(message: Message, deltas: Iterable[Delta]) -> bool:
    """Say whether the deltas tell nothing that their message does not.

    Most models say one kind of part after the other, and give calls an id. Else a thought or a call
    that is written in the text may come to stand before one that is not, or take its id. Half a
    surrogate pair waits for its other half, behind what comes meanwhile.
    """
    if "\ufffd" in f"{message.reasoning}{message.content}":
        return False
    heads = [piece for delta in deltas for piece in delta.tool_calls if piece.id or piece.name]
    calls = [(call.index, call.id, call.name) for call in message.tool_calls]
    if calls != [(piece.index, piece.id, piece.name) for piece in heads]:
        return False
    last = 0
    for delta in deltas:
        parts = (delta.reasoning, delta.text, delta.refusal, delta.tool_calls)
        kinds = [kind for kind, part in enumerate(parts) if part]
        if len(kinds) > 1 or (kinds and kinds[0] < last):
            return False
        last = max(kinds, default=last)
    return True
