"""`Context`: a value that a caller passes once, for all code below.

The value is in a context variable, which nodes inherit. So nodes without one pay nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    NamedTuple,
    Union,
    cast,
    final,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
    overload,
)

from ._record import record_of
from ._report import describe, type_name
from ._usage import payer, payers
from .errors import ContextError

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from ._node import Node

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    V = TypeVar("V")
    V_co = TypeVar("V_co", covariant=True)

__all__ = [
    "CONTEXT",
    "INHERITED",
    "Context",
    "ContextParameter",
    "SentContext",
    "call_with_context",
    "context_set",
    "context_values",
    "current_context",
    "read_context_parameters",
    "receive_context",
    "send_context",
    "set_context",
]

CONTEXT: ContextVar[Any] = ContextVar("anabranch.context")
"""The value of the nearest `context=`."""


class _Inherited:
    def __repr__(self) -> str:
        return "INHERITED"

    def __reduce__(self) -> str:
        return "INHERITED"  # copies and pickles are this very object


INHERITED: Any = _Inherited()
"""The default of `context=`: the value of the calling code, if it has one. None is a value."""


@final
@dataclass(frozen=True, slots=True)
class Context(Generic[V_co]):
    """The value that a caller passed as `context=`, for everything below.

        @tool
        def list_orders(ctx: Context[User]) -> list[str]:
            return ORDERS[ctx.value.name]

        answer = await agent("What did I order?", context=user)

    A tool declares a parameter with this annotation, of any name. The model never sees it.
    `current_context()` returns the same in all other code.

    `value` is the value itself, not a copy. `agent` is the name of the nearest agent, "" if none.
    `session_id` is the session of the nearest call that named one, None if none did. In a test,
    call the function with a context of your own: `list_orders(ctx=Context(User("ada")))`.
    """

    value: V_co
    agent: str = ""
    session_id: int | str | None = None
    # Neither shown nor compared: it is where the value is read.
    _node: Node[Any] | None = field(default=None, repr=False, compare=False)

    @property
    def node(self) -> Node[Any]:
        """The node that reads the context: in a tool, that of its call.

        Raises `LookupError` outside of a tree.
        """
        if self._node is None:
            raise LookupError("this context belongs to no node: it was not read in a tree")
        return self._node

    def __reduce__(self) -> tuple[Any, ...]:
        return Context, (self.value, self.agent, self.session_id)  # a node stays in its process


@overload
def current_context() -> Context[object]: ...
@overload
def current_context(kind: type[V]) -> Context[V]: ...
def current_context(kind: type[Any] | None = None) -> Context[Any]:
    """Return the context of the calling code, for hooks and other code without a parameter for it.

        def before_agent(agent, message, session_id):
            log.info("%s asks", current_context(User).value.name)

    With `kind`, a type checker knows the type of the value. Raises `ContextError` if no code above
    passed `context=`, or if the value is not a `kind`.
    """
    context = _find_context()
    if context is None:
        raise _missing("current_context() was called")
    if kind is not None:
        _require_kind(context.value, (kind,), "current_context()")
    return context


def set_context(node: Node[Any], value: object) -> None:
    """Set the context of the running body of `node`, and so of all nodes that it puts.

    Does nothing for `INHERITED`.
    """
    if value is not INHERITED:
        CONTEXT.set(value)
        record_of(node).own_context = (value,)


@contextmanager
def context_set(value: object) -> Generator[None]:
    """Set the context of the block, unless the value is `INHERITED`. The block must not yield."""
    token = None if value is INHERITED else CONTEXT.set(value)
    try:
        yield
    finally:
        if token is not None:
            CONTEXT.reset(token)


def _find_value(node: Node[Any] | None) -> Any:
    """Return the value of the nearest `context=`; INHERITED if there is none."""
    value = CONTEXT.get(INHERITED)
    if value is INHERITED:
        # As in a node that a thread without our context variables put below another node.
        every = (record_of(each).own_context for each in payers(node))
        (value,) = next((each for each in every if each is not None), (INHERITED,))
    return value


def _find_context() -> Context[Any] | None:
    node = payer()
    value = _find_value(node)
    if value is INHERITED:
        return None
    if isinstance(value, _PackedContext):
        value = value.read()
        CONTEXT.set(value)
    actor = None if node is None else record_of(node).actor
    if actor is None:
        return Context(value, _node=node)
    return Context(value, actor.agent, actor.session_id, node)


def _missing(what: str) -> ContextError:
    return ContextError(
        f"{what}, and no context was given: pass context= to the call, as in"
        " agent(question, context=user), put_job(job, context=user) or run(job, context=user)"
    )


# --- other processes


class SentContext(NamedTuple):
    """A context on its way to another process: its pickle, or the reason why it has none."""

    packed: bytes | None
    why: str = ""


class _PackedContext:
    """A context from another process. It is unpickled when it is first read."""

    def __init__(self, sent: SentContext, load: Callable[[bytes], Any]) -> None:
        self.sent = sent
        self._load = load

    def read(self) -> Any:
        packed, why = self.sent
        if packed is None:
            raise ContextError(why)
        try:
            return self._load(packed)
        except Exception as error:
            raise ContextError(
                f"this process cannot read the context that it was sent: {describe(error)}"
            ) from error


def send_context(pack: Callable[[Any], bytes]) -> SentContext | None:
    """Return the context of the calling code for another process; None if there is none.

    A value that `pack` refuses is an error only for code that reads it there.
    """
    value = _find_value(payer())
    if value is INHERITED:
        return None
    if isinstance(value, _PackedContext):
        return value.sent
    try:
        return SentContext(pack(value))
    except Exception as error:  # noqa: BLE001 - pickling may raise anything
        why = (
            f"the context, a {type_name(value)}, cannot be sent to another process:"
            f" {describe(error)}. Pass a value that can be pickled, or read it before"
        )
        return SentContext(None, why)


def receive_context(sent: SentContext | None, load: Callable[[bytes], Any]) -> None:
    """Set the context that another process sent, for the calling code and its nodes."""
    if sent is not None:
        CONTEXT.set(_PackedContext(sent, load))


# --- parameters for a context


class ContextParameter(NamedTuple):
    """A parameter that is annotated as a `Context`."""

    # The classes of which its value must be one; empty if the annotation names others.
    kinds: tuple[type[Any], ...]
    has_default: bool


def read_context_parameters(function: Callable[..., Any]) -> dict[str, ContextParameter]:
    """Return the parameters of a function that are annotated as a `Context`, by name."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C
        return {}
    found: dict[str, ContextParameter] = {}
    for parameter in parameters:
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        given = parameter.annotation
        if isinstance(given, str):
            given = _resolve(given, function)
        kinds = _context_kinds(given)
        if kinds is not None:
            default = parameter.default is not parameter.empty
            found[parameter.name] = ContextParameter(kinds, default)
    return found


def _resolve(annotation: str, function: Callable[..., Any]) -> Any:
    called: Any = function
    while isinstance(called, partial):
        called = cast("Any", called).func
    if not inspect.isroutine(called):
        kind: Any = type(cast("object", called))
        called = kind.__call__  # an object's own method
    called = inspect.unwrap(getattr(called, "__func__", called))
    names = getattr(called, "__globals__", {})
    holder = type("_Holder", (), {"__annotations__": {"it": annotation}})
    try:
        return get_type_hints(holder, dict(names), include_extras=True)["it"]
    except (NameError, AttributeError, TypeError, SyntaxError):
        return None  # not the engine's to report: the reader of the other annotations does


def _context_kinds(annotation: Any) -> tuple[type[Any], ...] | None:
    """Return the classes of a context's value; None if the annotation is no `Context`."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _context_kinds(get_args(annotation)[0])
    if origin in (Union, UnionType):
        every = [_context_kinds(each) for each in get_args(annotation)]
        contexts = [each for each in every if each is not None]
        if not contexts:
            return None
        return () if () in contexts else tuple(kind for each in contexts for kind in each)
    if type(annotation).__name__ == "TypeAliasType":  # that of typing or of typing_extensions
        return _context_kinds(annotation.__value__)
    if annotation is Context:
        return ()
    if origin is not Context:
        return None
    return _plain_classes(get_args(annotation)[0])


def _plain_classes(annotation: Any) -> tuple[type[Any], ...]:
    """Return the classes of a union of classes; () if anything else is in it.

    A generic type stands for its class, a protocol for itself if it is `runtime_checkable`.
    """
    if get_origin(annotation) is Annotated:
        return _plain_classes(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        every = [_plain_classes(each) for each in get_args(annotation)]
        return () if () in every else tuple(kind for each in every for kind in each)
    if annotation is None:
        return (type(None),)
    origin = get_origin(annotation)
    if isinstance(origin, type):
        return _plain_classes(origin)  # `dict[str, int]`: the class can be checked
    if annotation is Any or not isinstance(annotation, type):
        return ()
    if is_typeddict(annotation):
        return ()
    if vars(annotation).get("_is_protocol"):
        try:
            isinstance(None, annotation)
        except TypeError:  # it is not `runtime_checkable`
            return ()
    more: dict[Any, tuple[type[Any], ...]] = {float: (int,), complex: (int, float)}
    return (annotation, *more.get(annotation, ()))


def _require_kind(value: object, kinds: tuple[type[Any], ...], what: str) -> None:
    checked = _plain_classes(kinds[0]) if len(kinds) == 1 else kinds
    if checked and not isinstance(value, checked):
        names = " or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds)
        raise ContextError(
            f"{what} needs a context of type {names}, and context= was a {type_name(value)}"
        )


def context_values(
    parameters: Mapping[str, ContextParameter], what: str
) -> dict[str, Context[Any]]:
    """Return the arguments for these parameters of `what`.

    Without a context, a parameter with a default keeps it. Raises `ContextError` if another one
    has no context, or if a value has the wrong type.
    """
    context = _find_context()
    if context is None:
        needed = [name for name, each in parameters.items() if not each.has_default]
        if needed:
            raise _missing(f"{what} has the parameter {needed[0]!r} for a context")
        return {}
    for each in parameters.values():
        if each.kinds:
            _require_kind(context.value, each.kinds, what)
    return dict.fromkeys(parameters, context)


async def call_with_context(function: Callable[..., Any], *args: object) -> Any:
    """Call a plain or async function, with the context if it has a parameter for it.

    That is a parameter annotated as a `Context`, else a required one after those for `args`. Raises
    `ContextError` if it has one and there is no context.
    """
    what = getattr(function, "__qualname__", None) or type_name(function)
    parameters, left = _positional(function), [*args]
    contexts = read_context_parameters(function)
    unnamed = [p for p in parameters if p.name not in contexts and p.default is p.empty]
    if not contexts and len(unnamed) > len(args):
        contexts = {unnamed[len(args)].name: ContextParameter((), has_default=False)}
    values = context_values(contexts, what)
    given: list[Any] = []
    for parameter in parameters:
        if parameter.name in contexts:
            given.append(values.pop(parameter.name, parameter.default))
        elif left:
            given.append(left.pop(0))
        else:
            break
    result = function(*given, *left, **values)
    return await result if inspect.isawaitable(result) else result


def _positional(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        parameters: Iterable[inspect.Parameter] = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # some functions in C
        return []
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter for parameter in parameters if parameter.kind in kinds]
