"""`@handler`, which makes an async function a kind of node."""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..commander import Node

__all__ = ["Handler", "HandlerFunction", "handler"]

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handler(Node[T_co], internal=True):
    """A node whose body is one call of a `@handler` function. Start it with `call_handler`.

    It waits in no queue and counts for no limit of concurrency.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[T_co]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        owner: object = None,
    ) -> None:
        self._node_name = function.__name__  # as Node.__init__, without the cost of its call
        self._function = function
        self._args = args
        self._kwargs = kwargs or None  # saves memory: most have no keywords
        self._owner = owner

    def __getstate__(self) -> Any:
        _name_body(self._function)
        return super().__getstate__()

    def task(self) -> Awaitable[T_co]:
        """Call the function, with the node as its first argument (after `self` in a method)."""
        args = self._args if self._owner is None else (self, *self._args)
        first = self if self._owner is None else self._owner
        if self._kwargs is None:
            return self._function(first, *args)
        return self._function(first, *args, **self._kwargs)


class HandlerFunction(Generic[P, T]):
    """The result of `@handler`. A call returns a `Handler` that has not started."""

    def __init__(self, function: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        self.__qualname__ = repr(function)  # for an object without a name
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Handler[T]:
        return Handler(self._function, args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> HandlerFunction[P, T]: ...
    @overload
    def __get__(
        self: Callable[Concatenate[Any, Q], Handler[T]], instance: object, owner: type[Any]
    ) -> Callable[Q, Handler[T]]: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> Any:
        if instance is None:
            return self

        def bound(*args: Any, **kwargs: Any) -> Handler[Any]:
            return Handler(self._function, args, kwargs, instance)

        return bound

    def __getstate__(self) -> dict[str, Any]:
        _name_body(self._function)
        return vars(self)

    def __repr__(self) -> str:
        return f"<handler {self.__qualname__}>"


def _name_body(function: Callable[..., Any]) -> None:
    """Make a function picklable under the name where `@handler` has replaced it."""
    name = getattr(function, "__qualname__", "")
    found: Any = sys.modules.get(function.__module__)
    for part in name.split("."):
        found = getattr(found, part, None)
    if isinstance(found, HandlerFunction) and found._function is function:
        function.__qualname__ = f"{name}._function"


def handler(function: Callable[Concatenate[Any, P], Awaitable[T]]) -> HandlerFunction[P, T]:
    """Make an async function a handler.

        @handler
        async def summarize(node: Node[Any], text: str) -> str: ...

        summary = await node.call_handler(summarize(text))

    Its first parameter is the handler's node; in a method, the one after `self`. A call with the
    other arguments returns a `Handler[T]`, which `node.call_handler(...)` starts, or `await` inside
    a node. Raises `TypeError` for a function that is not async.
    """
    if not iscoroutinefunction(function):
        raise TypeError(
            f"@handler needs an async function; {getattr(function, '__qualname__', function)!r} is "
            "not one. Write 'async def', and await node.in_thread(...) for blocking work."
        )
    return HandlerFunction(function)
