"""`@handler`: an async function becomes a kind of node."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from ..commander import Node

__all__ = ["Handler", "HandlerFunction", "handler"]

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Shared by all handlers without keyword arguments: a dictionary less to keep for each.
_NO_KWARGS: dict[str, Any] = {}


class Handler(Node[T_co], internal=True):
    """A node whose body is one call of a function made by `@handler`; start it with `call_handler`.

    It passes no queue and counts against no limit.
    """

    def __init__(
        self,
        function: Callable[..., Awaitable[T_co]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        owner: object = None,
    ) -> None:
        super().__init__(function.__name__)
        self._n_function = function
        self._n_args = args
        self._n_kwargs = kwargs or _NO_KWARGS
        self._n_owner = owner

    def task(self) -> Awaitable[T_co]:
        """Call the function, with the node as its first argument (after `self` in a method)."""
        if self._n_owner is None:
            return self._n_function(self, *self._n_args, **self._n_kwargs)
        return self._n_function(self._n_owner, self, *self._n_args, **self._n_kwargs)


class HandlerFunction(Generic[P, T]):
    """What `@handler` makes: calling it gives a `Handler` that has not started."""

    def __init__(self, function: Callable[Concatenate[Any, P], Awaitable[T]]) -> None:
        functools.update_wrapper(self, function)
        self._function = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Handler[T]:
        return Handler(self._function, args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> HandlerFunction[P, T]: ...
    @overload
    def __get__(
        self: HandlerFunction[Concatenate[Any, Q], T], instance: object, owner: type[Any]
    ) -> Callable[Q, Handler[T]]: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> Any:
        if instance is None:
            return self

        def bound(*args: Any, **kwargs: Any) -> Handler[Any]:
            return Handler(self._function, args, kwargs, instance)

        return bound

    def __repr__(self) -> str:
        return f"<handler {self._function.__qualname__}>"


def handler(function: Callable[Concatenate[Any, P], Awaitable[T]]) -> HandlerFunction[P, T]:
    """Make an async function into a handler.

    Its first parameter is the handler's own node; in a method, the one after `self`. Calling it
    with the other arguments makes a `Handler[T]`, which starts with `node.call_handler(...)` or by
    being awaited inside a node. Raises `TypeError` for a function that is not async.
    """
    if not iscoroutinefunction(function):
        raise TypeError(
            f"@handler needs an async function; {getattr(function, '__qualname__', function)!r} is "
            "not one (write 'async def', and await node.in_thread(...) for blocking work)"
        )
    return HandlerFunction(function)
