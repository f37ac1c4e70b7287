"""`Tool` and `@tool`: a function that a model can call."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import anyio.to_thread
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ..commander import Context, Retry, ToolError, parent_here
from ..commander.context import context_values, read_context_parameters
from ..commander.kinds import NUMBER, require
from ..commander.stored_names import stored_name
from ..messages import Part
from ._effect import Done, EffectKind, NotDone, Reconcile, Unknown, check_effect
from ._remote_schema import RemoteSchema
from ._schema import Arguments, InvalidArguments, check_names, fill_defaults, parse_docstring
from .origins import mask_spec
from .results import Illustrated, describe_error

__all__ = ["AnyTool", "Tool", "contain_exit", "result_text", "tool"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class Tool(Generic[P, R]):
    """A function with the data that a model needs to call it; calling it calls the function.

    `name`, `description` and `parameters` (a JSON schema) are shown to the model. They come from
    the function's name, docstring and signature unless given. A parameter's default may be
    pydantic's `Field(default=10, ge=1)`, as in `validate_call`: a call without that argument gets
    the default.

    - `read_only`: a call changes nothing, so it may start while the reply still streams.
    - `timeout`: seconds for one attempt; None means no limit.
    - `approve`: a call waits for a person's approval.
    - `retry`: failures that it names are tried again, each with the full `timeout`; the model reads
      the last one only.
    - `ends_turn`: the model is not asked again after a call that succeeds. A call with wrong
      arguments, one that fails and one that a person refuses do not end the turn.
    - `effect`, `reconcile`, `reconcile_after`: how a durable run handles a call in doubt, one whose
      process died or whose `timeout` expired before its outcome was known.

    For a call in doubt, a durable run repeats a tool with `effect="keyed"`: the service recognizes
    it by its `effect_key()`. It also repeats one with `effect="nested"`, whose only effects are
    calls of other tools and models, which the run records themselves (an agent as a tool), and a
    `read_only` one. `reconcile` is called at least `reconcile_after` seconds after the call began.
    It takes the tool's arguments and `effect_key` by name, and returns `Done(value)`, `NotDone()`
    or `Unknown()`. Otherwise the run asks a person.

    With `parameters`, a JSON schema of another author, the function gets the arguments by name
    after the checks of `RemoteSchema` (types, bounds, required fields), without conversion.
    `source` names the function or server of the tool, `spec` is the text with which `open_tools`
    opened it, if any.

    A parameter that is annotated as a `Context` gets the value that a caller passed as `context=`.
    The model does not see it.

    Raises `TypeError` for a function that cannot be called by name, that has types without a
    schema, or that does not accept the arguments in `parameters`, and `ValueError` for an invalid
    schema.
    """

    # Whether the result of a call that ends the turn is the model's answer.
    gives_output: ClassVar[bool] = True

    def __init__(
        self,
        function: Callable[P, R],
        *,
        name: str | None = None,
        description: str | None = None,
        read_only: bool = False,
        timeout: float | None = None,
        approve: bool = False,
        retry: Retry | None = None,
        parameters: Mapping[str, Any] | None = None,
        effect: EffectKind | None = None,
        reconcile: Reconcile | None = None,
        reconcile_after: float = 60.0,
        ends_turn: bool = False,
    ) -> None:
        if isinstance(function, (staticmethod, classmethod)):
            kind = type(cast("object", function)).__name__
            raise TypeError(f"put @tool below @{kind}, next to the function")
        if not inspect.isroutine(function):
            raise TypeError(f"a tool must be a function, not {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"tool {function.__qualname__}: a tool must return its result, not yield"
            )
        if not name and function.__name__ == "<lambda>":
            raise TypeError(f"tool {function.__qualname__}: a lambda must have name=")
        about = f"tool {function.__qualname__}:"
        require(retry, Retry | None, f"{about} retry must be a Retry or None")
        require(timeout, NUMBER | None, f"{about} timeout must be a number of seconds or None")
        summary, descriptions = parse_docstring(function.__doc__)
        self.function = function
        self.name: str = name or function.__name__
        self.description: str = summary if description is None else description
        self.read_only = read_only
        self.timeout = timeout
        self.approve = approve
        self.retry = retry
        self.effect = effect
        self.reconcile = reconcile
        self.reconcile_after = reconcile_after
        self.ends_turn = ends_turn
        self.source: str = stored_name(function).replace(":", ".", 1)
        self.spec = ""
        signature = inspect.signature(function).parameters
        self._has_fields = any(isinstance(p.default, FieldInfo) for p in signature.values())
        # The parameters that the call's `context=` fills, not the model.
        self._contexts = read_context_parameters(function)
        if parameters is None:
            self._arguments = Arguments(function, descriptions, self._contexts)
            names: Iterable[str] = self._arguments.names
        else:
            self._arguments = RemoteSchema(parameters)
            names = self._arguments.parameters["properties"]
            check_names(function, names, self._contexts)
        check_effect(
            self.name,
            effect,
            reconcile,
            reconcile_after,
            read_only=read_only,
            arguments=names,
        )
        functools.update_wrapper(self, function, updated=())

    # Errors that fail the exchange and are no results: only the caller can correct them.
    fatal_errors: ClassVar[tuple[type[BaseException], ...]] = ()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments, an object."""
        return self._arguments.parameters

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        if self._has_fields:
            kwargs = cast("Any", fill_defaults(self.function, args, kwargs))
        return self.function(*args, **kwargs)

    async def run(self, arguments: Mapping[str, Any]) -> str:
        """Check `arguments`, call the function and return its result as text for the model.

        A plain function runs in a worker thread, inside a tree as a child of the current node. If
        it returns an awaitable, as a wrapper of an async function does, that is awaited here. A
        cancel does not wait for the thread; long work calls `check_cancelled()`.

        Raises `InvalidArguments` for wrong arguments, `ContextError` if the function needs a
        context that no code above has passed, and `ToolError` if the function tries to end the
        program (`sys.exit()`), else what the function raises. This is one attempt without
        limits: the node of a call applies `timeout`, `retry` and `approve`.
        """
        return result_text(await self.run_raw(arguments))

    async def run_raw(self, arguments: Mapping[str, Any]) -> Any:
        """Run as `run` does, and return the function's own result."""
        values = self.check(arguments)
        if self._contexts:
            values |= self.contexts()
        if self._has_fields:
            values = fill_defaults(self.function, (), values)
        return await _call_function(self.function, values)

    async def run_reconcile(
        self, arguments: Mapping[str, Any], key: str
    ) -> Done | NotDone | Unknown:
        """Call `reconcile`, and return the outcome of the call that sent this key."""
        assert self.reconcile is not None
        contexts = context_values(read_context_parameters(self.reconcile), self.name)
        outcome: object = await _call_function(
            self.reconcile, {**self.check(arguments), **contexts, "effect_key": key}
        )
        if not isinstance(outcome, (Done, NotDone, Unknown)):
            raise TypeError(
                f"reconcile of {self.name} must return Done(value), NotDone() or Unknown(),"
                f" not {outcome!r:.200}"
            )
        return outcome

    @property
    def origin(self) -> str:
        """The place where calls go, as a person reads it before approving a call.

        Tools from different places have different texts. Known keys are masked.
        """
        return f"{mask_spec(self.spec)}: {self.source}" if self.spec else self.source

    @property
    def definition(self) -> Mapping[str, Any]:
        """All that determines what a call does, as JSON: it differs between different tools.

        May contain keys: only store or show a `fingerprint` of it.
        """
        code = getattr(self.function, "__code__", None)
        file = getattr(code, "co_filename", "")  # the same module name may be another file
        return {
            "name": self.name,
            "description": self.description,
            "parameters": self.parameters,
            "source": self.source,
            "spec": self.spec,
            "file": file,
        }

    @property
    def bare(self) -> AnyTool:
        """The tool without the hooks around it."""
        return self

    async def finish(self, text: str) -> str:
        """Return the text for the model: a tool with hooks runs those after the call."""
        return text

    async def prepare(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], AnyTool]:
        """Return the arguments and the tool of a call before a person is asked about it.

        A tool with hooks runs those that may change the call, so that the person sees the final
        call.
        """
        return arguments, self

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them; raise `InvalidArguments`."""
        values = self._arguments.check(arguments)
        for name in self._contexts:
            if name in values:  # the function takes any name, or the schema does
                raise InvalidArguments(
                    f"wrong arguments: {name}: Extra inputs are not permitted"
                    f" (got {values[name]!r:.80})"
                )
        return values

    def contexts(self) -> dict[str, Context[Any]]:
        """Return the values of the parameters that are annotated as a `Context`.

        Raises `ContextError` if the caller passed no context, or one of another type.
        """
        return context_values(self._contexts, f"the tool {self.name}")

    # Type checkers take the first match, so in this order: a class method, which binds its class; a
    # tool read from the class; a method, which binds its object; a static method.
    @overload
    def __get__(
        self: Callable[Concatenate[type[S], Q], R], instance: None, owner: type[S]
    ) -> Tool[Q, R]: ...
    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R]: ...
    @overload
    def __get__(
        self: Callable[Concatenate[S, Q], R], instance: S, owner: type | None = None
    ) -> Tool[Q, R]: ...
    @overload
    def __get__(
        self: Callable[Concatenate[type[S], Q], R], instance: S, owner: type | None = None
    ) -> Tool[Q, R]: ...
    @overload
    def __get__(self, instance: object, owner: type | None = None) -> Tool[P, R]: ...
    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., Any]:
        """Bind a tool that is a method, as a plain function is bound."""
        if instance is None:
            return self
        bound = cast("Tool[..., Any]", object.__new__(type(self)))
        bound.__dict__.update(self.__dict__)
        bound.function = cast("Any", self.function).__get__(instance, owner)
        if self.reconcile is not None and "self" in inspect.signature(self.reconcile).parameters:
            bound.reconcile = cast("Any", self.reconcile).__get__(instance, owner)
        return bound

    def __repr__(self) -> str:
        return f"<Tool {self.name}{inspect.signature(self.function)}>"


AnyTool = Tool[..., Any]


@overload
def tool(function: Callable[P, R], /) -> Tool[P, R]: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    read_only: bool = False,
    timeout: float | None = None,
    approve: bool = False,
    retry: Retry | None = None,
    parameters: Mapping[str, Any] | None = None,
    effect: EffectKind | None = None,
    reconcile: Reconcile | None = None,
    reconcile_after: float = 60.0,
    ends_turn: bool = False,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function or method a `Tool`, as `@tool` or `@tool(read_only=True, timeout=20)`.

        @tool(read_only=True)
        def get_weather(city: str) -> str:
            return f"It is sunny in {city}."

    The model reads the name, the docstring (Google, numpy or reST style) and the signature;
    `Annotated[T, Field(description=...)]` describes a parameter too. Options as in `Tool`.
    """
    if function is None:
        return functools.partial(Tool, **options)
    return Tool(function, **options)


def result_text(value: object) -> str:
    """Return a tool's result as text for a model: a string unchanged, other values as JSON.

    A `Part`, or a list that contains one, becomes an `Illustrated` text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Part):
        return Illustrated(value.text or value.about, () if value.text else (value,))
    if isinstance(value, list | tuple):
        values = cast("Sequence[object]", value)
        if any(isinstance(each, Part) for each in values):
            texts = [result_text(each) for each in values]
            parts = [part for each in texts if isinstance(each, Illustrated) for part in each.parts]
            files = [file for each in texts if isinstance(each, Illustrated) for file in each.files]
            return Illustrated("\n".join(texts), parts, files)
    return to_json(value, fallback=str).decode()


async def _call_function(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function, a plain one in a thread, and await its result if possible."""
    if inspect.iscoroutinefunction(function):
        return await _await_result(await function(**arguments))
    abandoned = False
    coroutine: Coroutine[Any, Any, Any] | None = None

    def call() -> Any:
        nonlocal coroutine
        with contain_exit():  # KeyboardInterrupt too: the user's own reaches the main thread only
            values = function(**arguments)
        if inspect.iscoroutine(values):
            coroutine = values
            if abandoned:
                values.close()
        return values

    try:
        if (node := parent_here()) is None:
            result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        else:
            result = await node.in_thread(call, abandon=True)
    except BaseException:
        # Close a coroutine that nothing will await, whether the thread has returned it yet or not.
        abandoned = True
        if coroutine is not None:
            coroutine.close()
        raise
    return await _await_result(result)


async def _await_result(result: Any) -> Any:
    """Await a function's result, and the result of that, until it is not awaitable."""
    while inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncIterator):
        kind = type(cast("object", result)).__name__
        raise TypeError(f"a tool must return its result, not an {kind}")
    return result


@contextmanager
def contain_exit(*passed: type[BaseException]) -> Generator[None]:
    """Turn exceptions that would end the loop or the program into `ToolError`, except `passed`."""
    try:
        yield
    except (Exception, asyncio.CancelledError, *passed):
        raise
    except BaseException as error:
        text = f"the tool tried to end the program ({describe_error(error)})"
        raise ToolError(text) from error
