"""Checks of arguments by their annotations, with messages that say what the argument must be.

`@checked` reads a function's annotations. `require` is for checks that annotations cannot express,
such as the items of a list, and for hot paths. `require_awaitable` checks methods of users.
`require_no_loop` checks the place of a blocking call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from inspect import isawaitable, iscoroutinefunction
from itertools import chain
from numbers import Real
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    overload,
)

from .private import running_loop

if TYPE_CHECKING:
    from ._record import NodeBase

__all__ = [
    "FUNCTION",
    "NUMBER",
    "checked",
    "name_plain_body",
    "passes_with",
    "require",
    "require_awaitable",
    "require_no_loop",
]

FUNCTION: Any = Callable
NUMBER = Real

C = TypeVar("C", bound=Callable[..., Any])
T = TypeVar("T")


def require(
    given: object, kind: type | UnionType | tuple[type, ...], wanted: str, *, like: str = ""
) -> None:
    """Raise a `TypeError` unless `given` is of `kind`, or an object with the method `like`.

    `wanted` is the demand for the message: "view must be a View or None". If a class was passed
    instead of an instance, the message says so.
    """
    made: Any = given
    if isinstance(given, kind) or (
        like and not isinstance(made, type) and callable(getattr(made, like, None))
    ):
        return
    try:
        is_class = isinstance(made, type) and issubclass(made, kind)
    except TypeError:  # a protocol with attributes, from Python 3.12 on
        is_class = False
    remedy = f": create one, {made.__name__}(...)" if is_class else ""
    raise TypeError(f"{wanted}, not {given!r:.200}{remedy}")


class _StandIn(NamedTuple):
    method: str
    words: str


_STAND_INS: dict[Any, _StandIn] = {}


def passes_with(method: str, words: str = "") -> Callable[[T], T]:
    """Let `@checked` functions accept any object with `method` as an instance of the class.

    `words` describe the class in messages; the default is its name.
    """

    def decorate(kind: T) -> T:
        _STAND_INS[kind] = _StandIn(method, words)
        return kind

    return decorate


@overload
def checked(function: C, /) -> C: ...
@overload
def checked(**words: str) -> Callable[[C], C]: ...
def checked(function: Any = None, /, **words: str) -> Any:
    """Check arguments against the annotations of a function or a dataclass; raise `TypeError`.

        @checked
        @checked(speaker="a function, such as round_robin")

    Checks classes, numbers, functions, `None`, `Literal`s and unions of these, but not the items of
    containers. Arguments with other annotations, such as a `TypeVar` or a name that is only
    imported for type checkers, are not checked. `words` describe arguments in messages.
    """
    if function is None:
        return partial(_check, words)
    return _check({}, function)


def _check(words: Mapping[str, str], function: Any) -> Any:
    if isinstance(function, type):
        kind: Any = function
        kind.__init__ = _check(words, kind.__init__)
        return kind
    code = function.__code__
    names = code.co_varnames[: code.co_argcount]
    wanted: dict[str, _Wanted] = {}  # read at the first call, when all names are known

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not wanted:
            wanted.update(_read_annotations(function, words))
        for name, given in chain(zip(names, args, strict=False), kwargs.items()):
            want = wanted.get(name)
            if want is None or isinstance(given, want.kinds):
                continue
            if not want.choices:
                require(given, want.kinds, f"{name} must be {want.words}", like=want.like)
            elif given not in want.choices:
                raise ValueError(f"{name} must be {want.words}, not {given!r:.200}")
        return function(*args, **kwargs)

    return call


class _Wanted(NamedTuple):
    """The demand on an argument: of `kinds`, in `choices`, or an object with the method `like`."""

    kinds: tuple[type, ...]
    choices: tuple[Any, ...]
    like: str
    words: str


_WORDS: Mapping[Any, str] = {
    str: "a text",
    int: "a whole number",
    Real: "a number",
    Iterable: "a list",
    Sequence: "a list",
    Mapping: "a mapping",
    FUNCTION: "a function",
    NoneType: "None",
}


def _read_annotations(function: Callable[..., Any], words: Mapping[str, str]) -> dict[str, _Wanted]:
    """Return the demand on each argument that can be checked."""
    found = {"": _Wanted((), (), "", "")}  # never empty, so that they are read only once
    for name, annotation in function.__annotations__.items():
        try:
            kinds = _alternatives(annotation, function.__globals__)
        except (NameError, TypeError):
            continue
        choices = tuple(each for kind in kinds for each in get_args(kind))  # of `Literal`s
        plain = [kind for kind in kinds if not get_args(kind)]
        stand_ins = [_STAND_INS[kind] for kind in plain if kind in _STAND_INS]
        found[name] = _Wanted(
            tuple(kind for kind in plain if not _is_static(kind)),
            choices,
            stand_ins[0].method if stand_ins else "",
            words.get(name) or _join([*map(repr, choices), *map(_describe, plain)]),
        )
    return found


def _alternatives(annotation: Any, names: dict[str, Any]) -> list[Any]:
    """Return the classes and `Literal`s of an annotation; raise `TypeError` for anything else."""
    if isinstance(annotation, str):
        annotation = eval(annotation, names)  # noqa: S307 - as `typing.get_type_hints` does
        return _alternatives(annotation, names)
    origin = get_origin(annotation) or annotation
    if origin in (Union, UnionType):
        return [each for part in get_args(annotation) for each in _alternatives(part, names)]
    if origin is Literal:
        return [annotation]
    if origin is None:
        return [NoneType]
    if origin is object or (_is_static(origin) and origin not in _STAND_INS):
        raise TypeError(f"{annotation!r} cannot be checked with isinstance")
    return [Real if origin is float else origin]


def _is_static(kind: Any) -> bool:
    """Return whether `isinstance` refuses a kind, such as a protocol or a `TypedDict`."""
    try:
        isinstance(None, kind)
    except TypeError:
        return True
    return False


def _describe(kind: type) -> str:
    words = _STAND_INS[kind].words if kind in _STAND_INS else _WORDS.get(kind)
    name = kind.__name__
    return words or f"{'an' if name[0] in 'AEIOU' else 'a'} {name}"


def _join(words: list[str]) -> str:
    """Return "a, b or c", None last; with a comma before "or" if that reads better."""
    *first, last = sorted(words, key="None".__eq__)
    comma = "," if any(len(each.split()) > 3 for each in first) else ""
    return f"{', '.join(first)}{comma} or {last}" if first else last


# --- methods that users write as `async def`


def require_awaitable(value: Awaitable[T], owner: object, method: str) -> Awaitable[T]:
    """Return the value of a method of `owner`; raise `TypeError` if it cannot be awaited.

    Python's own message names neither the class nor the method.
    """
    if not isawaitable(value):
        raise TypeError(_text(owner, method))
    return value


def name_plain_body(node: NodeBase, error: TypeError) -> TypeError:
    """Return a better error for the `TypeError` of a body that is not async; else `error`."""
    task: Any = getattr(type(node), "task", None)
    if iscoroutinefunction(task):
        return error
    named = TypeError(_text(node, "task"))
    named.__cause__ = error
    return named


def _text(owner: object, method: str) -> str:
    return f"{type(owner).__name__}.{method} is not async: write 'async def {method}'"


def require_no_loop(name: str, instead: str) -> None:
    """Raise `RuntimeError` if a loop runs in this thread, which the function `name` would block."""
    if running_loop() is not None:
        raise RuntimeError(f"{name} cannot be called inside a running event loop: use {instead}")
