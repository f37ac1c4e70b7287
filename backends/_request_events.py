"""Emit events about requests: sent, first chunk, progress, and the end of the reply."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..commander import EventKind, Node, emit, payer
from ..messages import Delta, ProgressEvent, ReplyEvent, Request, RequestEvent, Usage

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = [
    "REQUEST_EVENTS",
    "ObservedRequest",
    "add_usage",
    "is_observed",
    "names_listener",
    "observing",
    "progress_listener",
    "with_request_events",
]

# The kinds of these events.
REQUEST_EVENTS: tuple[EventKind, ...] = ("request", "first_chunk", "working", "reply")

_numbers: Iterator[int] = count(1)


@dataclass(slots=True)
class ObservedRequest:
    """A request whose events are emitted: its node, its number once sent, its usage.

    `usage` is by model. `response_id` and `response_model` come from the server.
    """

    node: Node[Any]
    number: int | None = None
    usage: dict[str, Usage] = field(default_factory=dict[str, Usage])
    response_id: str | None = None
    response_model: str | None = None


_observed: ContextVar[ObservedRequest | None] = ContextVar("anabranch_request", default=None)


def is_observed(node: Node[Any]) -> bool:
    """Return whether this runs inside a request of `node` that emits events already.

    If a backend asks another one, only the outer request emits events. A request of a node that a
    backend has put belongs to that node.
    """
    request = _observed.get()
    return request is not None and request.node is node


def add_usage(model: str, usage: Usage) -> None:
    """Add the usage of an attempt to the observed request, if there is one."""
    if (request := _observed.get()) is not None:
        request.usage[model] = request.usage.get(model, Usage()) + usage


def names_listener() -> Callable[[str | None, str | None], None] | None:
    """Return the function that stores a reply's id and model in the observed request, if any."""
    if (request := _observed.get()) is None:
        return None

    def listen(response_id: str | None, response_model: str | None) -> None:
        request.response_id, request.response_model = response_id, response_model

    return listen


@contextmanager
def observing(request: ObservedRequest) -> Generator[None]:
    """Make all requests in this block part of `request`."""
    token = _observed.set(request)
    try:
        yield
    finally:
        _observed.reset(token)


def progress_listener() -> Callable[[ProgressEvent], None]:
    """Return a function that emits progress as `working` events; it can be called in any thread.

    The events belong to the observed request. Without one they belong to the current node and have
    no number.
    """
    request = _observed.get()
    node, number = (payer(), None) if request is None else (request.node, request.number)

    def listen(state: ProgressEvent) -> None:
        if node is not None:
            emit(node, "working", replace(state, number=number))

    return listen


async def with_request_events(
    backend: Backend, source: AsyncGenerator[Delta, None], request: Request, *, replayed: bool
) -> AsyncGenerator[Delta, None]:
    """Yield the deltas of `source`, and emit exactly one `reply` event for each `request` event.

    The events belong to the node that reads first. If the stream is never closed, the `reply` is
    emitted when the generator is collected, or never: listeners consider the request ended with its
    node.
    """
    node = payer()
    if node is None:
        async for delta in source:
            yield delta
        return
    asked = _request_event(backend, request, replayed)
    emit(node, "request", asked)
    began = time.perf_counter()
    first: float | None = None
    deltas: list[Delta] = []
    observed = ObservedRequest(node, asked.number)
    error: BaseException | None = None
    is_left = True  # the reader closed the stream before its end
    try:
        try:
            while True:
                try:
                    with observing(observed):
                        delta = await anext(source)
                except StopAsyncIteration:
                    break
                if first is None:
                    first = time.perf_counter() - began
                    emit(node, "first_chunk", asked.number)
                deltas.append(delta)
                yield delta
            is_left = False
        finally:
            with observing(observed):
                await source.aclose()
    except Exception as failure:
        error, is_left = failure, False
        raise
    finally:
        _emit_reply(backend, observed, asked.number, first, deltas, error, is_left)
        del error  # its traceback refers to this frame, which would be a cycle


def _request_event(backend: Backend, request: Request, replayed: bool) -> RequestEvent:
    return RequestEvent(
        next(_numbers),
        backend.provider,
        backend.model,
        {**backend.default_options, **request.options},
        len(request.messages),
        tuple(tool.name for tool in request.tools),
        replayed,
        request,
        backend.server,
    )


def _emit_reply(
    backend: Backend,
    request: ObservedRequest,
    number: int,
    first: float | None,
    deltas: list[Delta],
    error: BaseException | None,
    is_left: bool,
) -> None:
    reasons = [delta.finish_reason for delta in deltas if delta.finish_reason is not None]
    reason = reasons[-1] if reasons else None
    usage = dict(request.usage)
    about = (number, first, len(deltas), usage, reason, error, is_left, tuple(deltas))
    names = request.response_id, request.response_model
    server = [None if name is None else backend.redact(name) for name in names]
    emit(request.node, "reply", ReplyEvent(*about, *server))
