"""What is asked of models, and what they do, told to those who listen to the tree."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..commander import EventKind, Node, emit, payer
from ..messages import Asked, Delta, Replied, Request, Usage, Working

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = [
    "TOLD",
    "ToldQuestion",
    "hear_taken",
    "is_telling",
    "names_listener",
    "tell_request",
    "telling",
    "working",
]

# The kinds of events that tell of a question.
TOLD: tuple[EventKind, ...] = ("request", "first_chunk", "working", "reply")

_numbers: Iterator[int] = count(1)


@dataclass(slots=True)
class ToldQuestion:
    """A question that is told of: its node, its number once it has one, and what is known so far.

    `taken` is its usage by model, `response_id` and `response_model` are what its server says.
    """

    node: Node[Any]
    number: int | None = None
    taken: dict[str, Usage] = field(default_factory=dict[str, Usage])
    response_id: str | None = None
    response_model: str | None = None


# The question that is told of here; None where none is.
_TOLD: ContextVar[ToldQuestion | None] = ContextVar("anabranch_told", default=None)


def is_telling(node: Node[Any]) -> bool:
    """Say whether this runs inside a question of `node` that is told already.

    A backend that asks another one does so inside its own question, which alone is told. What a
    node asks that a backend has put is that node's.
    """
    told = _TOLD.get()
    return told is not None and told.node is node


def hear_taken(model: str, usage: Usage) -> None:
    """Add what an attempt took to the question that is told here, if one is."""
    if (told := _TOLD.get()) is not None:
        told.taken[model] = told.taken.get(model, Usage()) + usage


def names_listener() -> Callable[[str | None, str | None], None] | None:
    """Return the function that stores a reply's id and model in the question told here, if any."""
    if (told := _TOLD.get()) is None:
        return None

    def listen(response_id: str | None, response_model: str | None) -> None:
        told.response_id, told.response_model = response_id, response_model

    return listen


@contextmanager
def telling(question: ToldQuestion) -> Generator[None]:
    """Take what is asked in this block as part of a question that is told."""
    token = _TOLD.set(question)
    try:
        yield
    finally:
        _TOLD.reset(token)


def working() -> Callable[[Working], None]:
    """Return what tells of the work for the question that is told here; for any thread.

    Outside a question it is told of the node that is running, without a number.
    """
    told = _TOLD.get()
    node, number = (payer(), None) if told is None else (told.node, told.number)

    def tell(state: Working) -> None:
        if node is not None:
            emit(node, "working", replace(state, number=number))

    return tell


async def tell_request(
    backend: Backend, source: AsyncGenerator[Delta, None], request: Request, *, replayed: bool
) -> AsyncGenerator[Delta, None]:
    """Pass deltas on, and tell of the question they answer: exactly one `reply` each `request`.

    It is told by the node that reads first. A stream that is never closed tells of its end when it
    is collected, or not at all: whoever listens takes it as ended with its node.
    """
    node = payer()
    if node is None:
        async for delta in source:
            yield delta
        return
    asked = _asked(backend, request, replayed)
    emit(node, "request", asked)
    began = time.perf_counter()
    first: float | None = None
    came: list[Delta] = []
    question = ToldQuestion(node, asked.number)
    error: BaseException | None = None
    left = True
    try:
        try:
            while True:
                try:
                    with telling(question):
                        delta = await anext(source)
                except StopAsyncIteration:
                    break
                if first is None:
                    first = time.perf_counter() - began
                    emit(node, "first_chunk", asked.number)
                came.append(delta)
                yield delta
            left = False
        finally:
            with telling(question):
                await source.aclose()
    except Exception as failure:
        error, left = failure, False
        raise
    finally:
        _tell_reply(backend, question, asked.number, first, came, error, left)
        del error  # its traceback leads to this frame


def _asked(backend: Backend, request: Request, replayed: bool) -> Asked:
    return Asked(
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


def _tell_reply(
    backend: Backend,
    question: ToldQuestion,
    number: int,
    first: float | None,
    came: list[Delta],
    error: BaseException | None,
    left: bool,
) -> None:
    reasons = [delta.finish_reason for delta in came if delta.finish_reason is not None]
    reason = reasons[-1] if reasons else None
    about = (number, first, len(came), dict(question.taken), reason, error, left, tuple(came))
    said = question.response_id, question.response_model
    server = [None if each is None else backend.redact(each) for each in said]
    emit(question.node, "reply", Replied(*about, *server))
