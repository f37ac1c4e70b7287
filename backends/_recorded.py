"""Store replies in the journal of a durable run, and replay them. `key_of` is for cassettes too.

A journal stores the complete message and its usage, because the conversation contains that message
too. A cassette stores each delta with its time.
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
from ..messages.compact_json import read_message, write_json, write_message
from ..messages.options import StrictSchema
from ._cassette_file import delta_from_json, delta_to_json
from ._request_events import (
    REQUEST_EVENTS,
    ObservedRequest,
    add_usage,
    is_observed,
    observing,
    with_request_events,
)
from ._request_fit import fit_parts
from ._secret import redact_value

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = ["key_of", "note_usage", "record_replies"]

B = TypeVar("B", bound="Backend")

Stream: TypeAlias = Callable[[B, Request], AsyncGenerator[Delta, None]]

# Characters without a space that are held back, because they may be the beginning of a key.
_MAX_HELD_CHARS = 512
# Longer texts of images and files have a digest in a request's key.
_MAX_INLINE_CHARS = 1000

# The usage, by model, of the reply that is being recorded; None if none is. If a backend asks
# another backend for its reply, the variable is set already, so only the outer reply is recorded.
_USAGE: ContextVar[list[tuple[str, Usage]] | None] = ContextVar("anabranch_taken", default=None)


def key_of(request: Request) -> str:
    """Return the text that identifies a request, with digests for images and files."""
    body = request_body("", request, stream=False)
    del body["model"]
    items = [
        [place, item.model_dump(exclude_defaults=True) | {"data": _digest_of(item.data)}]
        for place, message in enumerate(request.messages)
        for item in message.provider_items
    ]
    if items:  # otherwise the key equals that of versions without provider items
        body["provider_items"] = items
    for message in body["messages"]:
        if isinstance(message["content"], list):
            message["content"] = [_short(part) for part in message["content"]]
    response_format = body.get("response_format")
    if isinstance(response_format, dict):
        response_format = cast("dict[str, Any]", response_format)
        if isinstance(schema := response_format.get("json_schema"), StrictSchema):
            body["response_format"] = {**response_format, "json_schema": schema.known_as}
    try:
        return json.dumps(body, sort_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"the request cannot be recorded as JSON: {error}") from None


def _short(part: dict[str, Any]) -> dict[str, Any]:
    if (kind := part["type"]) == "text":
        return part
    texts: dict[str, str] = part[kind]
    return {"type": kind, kind: {name: _digest_of(value) for name, value in texts.items()}}


def _digest_of(text: str) -> str:
    if len(text) < _MAX_INLINE_CHARS:
        return text
    return f"sha256:{sha256(text.encode()).hexdigest()}"


def note_usage(model: str, usage: Usage) -> None:
    """Add the usage of an attempt to the reply. Each replay charges it again."""
    add_usage(model, usage)
    if (usages := _USAGE.get()) is not None:
        usages.append((model, usage))


@contextmanager
def _collect_usage(usages: list[tuple[str, Usage]]) -> Generator[None]:
    """Collect the usage of attempts that end in this block."""
    token = _USAGE.set(usages)
    try:
        yield
    finally:
        _USAGE.reset(token)


def record_replies(stream: Stream[B]) -> Stream[B]:
    """Wrap `stream` so that the run's journal stores each complete reply and replays it.

    Also emits the events of the request, if the tree has listeners for them.
    """

    @wraps(stream)
    def recorded_stream(self: B, request: Request) -> AsyncGenerator[Delta, None]:
        request = fit_parts(self, request)
        node = payer()
        if node is None or self.asks_others or is_observed(node):
            return kept(self, request)[0]
        if not is_watched(node, *REQUEST_EVENTS):
            return kept(self, request)[0]
        with observing(ObservedRequest(node)):
            # A `stream` that is not a generator calls another backend's `stream` here. `observing`
            # prevents that one from emitting the events of this request again.
            source, replayed = kept(self, request)
        return with_request_events(self, source, request, replayed=replayed)

    def kept(self: B, request: Request) -> tuple[AsyncGenerator[Delta, None], bool]:
        scope = scope_here(any_loop=True)
        if scope is None or _USAGE.get() is not None:
            return stream(self, request), False
        reply = scope.reply(key_of(request), self.redact)
        for model, usage in reply.earlier_charges:
            charge_again(model, usage, own=self.limits_of_model(model))
        if reply.recorded is not None:
            return _replay(self, reply, reply.recorded), True
        usages: list[tuple[str, Usage]] = []
        with _collect_usage(usages):
            source = stream(self, request)
        if reply.has_reader:
            source = _publish_text(source, reply, self.redact)
        return _record(self, source, reply, usages), False

    recorded_stream.records_replies = True  # type: ignore[attr-defined] - read by `Backend`
    return recorded_stream


async def _publish_text(
    source: AsyncGenerator[Delta, None], reply: DurableReply, redact: Callable[[str], str]
) -> AsyncGenerator[Delta, None]:
    """Pass deltas on, and publish their text as it grows, in pieces that never split a key."""
    pending = ""
    async with aclosing(source):
        async for delta in source:
            pending += delta.text or ""
            end = max(pending.rfind(" "), pending.rfind("\n"), len(pending) - _MAX_HELD_CHARS) + 1
            if end > 0:
                reply.publish_text(redact(pending[:end]))
                pending = pending[end:]
            yield delta


async def _record(
    backend: Backend,
    source: AsyncGenerator[Delta, None],
    reply: DurableReply,
    usages: list[tuple[str, Usage]],
) -> AsyncGenerator[Delta, None]:
    """Pass deltas on, and store the reply before the reader sees its end.

    Otherwise the journal could have effects of the reply without the reply.
    """
    received: list[Delta] = []
    end = 0  # number of deltas including the first with a finish reason or end mark; else 0
    with reply.receiving():
        try:
            try:
                while True:
                    try:
                        with _collect_usage(usages):
                            delta = await anext(source)
                    except StopAsyncIteration:
                        break
                    received.append(delta)
                    if end or delta.finish_reason is not None or delta.done:
                        end = end or len(received)
                    else:
                        yield delta
            finally:
                with _collect_usage(usages):  # a reply that was left early has usage too
                    await source.aclose()
        except BaseException as error:
            seen = received[: end - 1] if end else received
            saved = _write_reply(backend, seen, usages, exact=True)
            reply.record_interruption(write_json(saved), error)
            raise
        saved = _write_reply(backend, received, usages)
        if not end:  # a user's backend may not send an end mark
            saved["open"] = True
        reply.record(write_json(saved))
    for delta in received[end - 1 :] if end else ():
        yield delta


def _write_reply(
    backend: Backend, received: list[Delta], usages: list[tuple[str, Usage]], *, exact: bool = False
) -> dict[str, Any]:
    """Return a reply as JSON: its message, and its deltas if the message is not enough.

    `exact` stores the deltas in any case, for an interrupted reply. An API key may be split over
    several deltas, so they are left out if the message contains one.
    """
    assembled = assemble(received)
    message = write_message(assembled)
    saved: dict[str, Any] = {
        "message": redact_value(message, backend.redact),
        "taken": [[model, usage.model_dump(exclude_defaults=True)] for model, usage in usages],
    }
    if (exact or not _equals_message(assembled, received)) and saved["message"] == message:
        saved["deltas"] = [{"at": 0, **delta_to_json(delta)} for delta in received]
    if exact:
        saved["open"] = True
    return saved


async def _replay(backend: Backend, reply: DurableReply, text: str) -> AsyncGenerator[Delta, None]:
    """Yield a stored reply and charge its usage again. It takes no turn of limits."""
    saved = json.loads(text)
    for model, usage in saved["taken"]:
        charge_again(model, Usage(**usage), own=backend.limits_of_model(model))
        add_usage(model, Usage(**usage))
    for delta in deltas_of(saved):
        yield delta
    await reply.finish_replay()


def deltas_of(saved: dict[str, Any]) -> Iterator[Delta]:
    """Yield deltas that assemble to the stored message.

    A call that the model wrote into its text stays text.
    """
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
                if refusal:  # a refusal is after the text and before the calls
                    yield Delta(refusal=refusal)
                refusal, index = None, part.index
                piece = ToolCallDelta(index, part.id, part.name, part.raw or "")
                yield Delta(tool_calls=(piece,))
            case ProviderItem(call=None):
                yield Delta(items=(part,))
            case ProviderItem():  # belongs to the call before it
                yield Delta(tool_calls=(ToolCallDelta(index, item=part),))
    if refusal:
        yield Delta(refusal=refusal)
    if message.usage is not None or message.finish_reason is not None:
        yield Delta(usage=message.usage, finish_reason=message.finish_reason)
    if "open" not in saved:
        yield Delta(done=True)


def _equals_message(message: Message, deltas: Iterable[Delta]) -> bool:
    """Return whether the message has all that the deltas have.

    Most models send one kind of part after the other, and calls with an id. Otherwise the replay of
    the message could move reasoning or a call to another place, or give a call another id. So could
    half of a surrogate pair, because it is held back while other deltas pass.
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
