"""What is asked of models, and what they do, told to those who listen to the tree."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Any

from ..commander import EventKind, Node, emit, payer
from ..messages import Asked, Delta, Replied, Request, Usage, Working

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = ["TOLD", "hear_taken", "is_telling", "tell_request", "telling", "working"]

# The kinds of events that tell of a question.
TOLD: tuple[EventKind, ...] = ("request", "first_chunk", "working", "reply")

_numbers: Iterator[int] = count(1)

# The node whose question is told of here, what that has taken, by model, and its number once it has
# one; None where none is.
_TOLD: ContextVar[tuple[Node[Any], dict[str, Usage], int | None] | None] = ContextVar(
    "anabranch_told", default=None
)


def is_telling(node: Node[Any]) -> bool:
    """Say whether this runs inside a question of `node` that is told already.

    A backend that asks another one does so inside its own question, which alone is told. What a
    node asks that a backend has put is that node's.
    """
    told = _TOLD.get()
    return told is not None and told[0] is node


def hear_taken(model: str, usage: Usage) -> None:
    """Add what an attempt took to the question that is told here, if one is."""
    if (told := _TOLD.get()) is not None:
        taken = told[1]
        taken[model] = taken.get(model, Usage()) + usage


@contextmanager
def telling(node: Node[Any], taken: dict[str, Usage], number: int | None = None) -> Generator[None]:
    """Take what is asked in this block as part of a question of `node`, which is told."""
    token = _TOLD.set((node, taken, number))
    try:
        yield
    finally:
        _TOLD.reset(token)


def working() -> Callable[[Working], None]:
    """Return what tells of the work for the question that is told here; for any thread.

    Outside a question it is told of the node that is running, without a number.
    """
    told = _TOLD.get()
    node, number = (payer(), None) if told is None else (told[0], told[2])

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
    taken: dict[str, Usage] = {}
    error: BaseException | None = None
    left = True
    try:
        try:
            while True:
                try:
                    with telling(node, taken, asked.number):
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
            with telling(node, taken):
                await source.aclose()
    except Exception as failure:
        error, left = failure, False
        raise
    finally:
        _tell_reply(node, asked.number, first, came, taken, error, left)
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
    )


def _tell_reply(
    node: Node[Any],
    number: int,
    first: float | None,
    came: list[Delta],
    taken: dict[str, Usage],
    error: BaseException | None,
    left: bool,
) -> None:
    reasons = [delta.finish_reason for delta in came if delta.finish_reason is not None]
    reason = reasons[-1] if reasons else None
    about = (number, first, len(came), dict(taken), reason, error, left, tuple(came))
    emit(node, "reply", Replied(*about))
