"""What a node could wake, as far as it can be seen: the futures that it mentions (contract T9)."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ._node import Node

__all__ = ["mention"]

MOST = 10_000  # things that are looked at


def mention(nodes: Iterable[Node[Any]], futures: set[asyncio.Future[Any]]) -> bool:
    """Say whether `nodes` mention any of `futures`, or a lock, event or queue with one of them.

    A node mentions what is in its fields and arguments, and what its methods and callbacks close
    over or name, also within functions and containers; not what other objects hold.
    """
    seen: set[int] = set()
    todo: list[object] = [thing for node in nodes for thing in _of_node(node)]
    while todo and len(seen) < MOST:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, asyncio.Future):
            if thing in futures:
                return True
        else:
            todo += _inside(thing)
    return False


def _of_node(node: Node[Any]) -> Iterator[object]:
    yield from vars(node).values()
    yield from (node._n_callbacks, node._n_starts)
    for name in ("_n_function", "_n_args", "_n_kwargs"):
        yield getattr(node, name, None)
    for base in type(node).__mro__[:-1]:
        if not base.__module__.startswith("anabranch."):
            yield from (each for each in vars(base).values() if isinstance(each, FunctionType))


def _inside(thing: object) -> Iterable[object]:
    if isinstance(thing, FunctionType):
        return _in_function(thing)
    if isinstance(thing, MethodType):
        return thing.__func__, thing.__self__
    if isinstance(thing, BuiltinMethodType):  # such as `future.set_result`
        return (thing.__self__,)
    if isinstance(thing, partial):
        return thing.func, thing.args, thing.keywords
    if isinstance(thing, dict):
        return list(cast("dict[object, object]", thing).values())
    if isinstance(thing, (list, tuple, set, frozenset, deque)):
        return list(cast("Iterable[object]", thing))
    if type(thing).__module__.startswith(("asyncio.", "anyio.")):
        return list(getattr(thing, "__dict__", {}).values())
    return ()


def _in_function(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # it is empty
    yield from function.__defaults__ or ()
    for name in function.__code__.co_names:
        yield function.__globals__.get(name)
