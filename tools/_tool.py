"""A function becomes a tool that a model can call."""

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
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

import anyio.to_thread
from pydantic.fields import FieldInfo
from pydantic_core import to_json

from ..commander import Retry, ToolError, parent_here
from ..commander.kinds import NUMBER, require
from ..commander.stored_names import stored_name
from ..messages import Part
from ._docstring import parse_docstring
from ._effect import Done, EffectKind, NotDone, Reconcile, Unknown, check_effect
from ._remote_schema import RemoteSchema
from ._schema import Arguments, check_names, fill_defaults
from .origins import mask_spec
from .results import Illustrated, describe_error

__all__ = ["AnyTool", "Tool", "contain_exit", "result_text", "tool"]

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
S = TypeVar("S")


class Tool(Generic[P, R]):
    """A function with what a model needs to call it; calling it calls the plain function.

    A parameter's default may be a `Field(default=10, ge=1)` of pydantic, as in `validate_call`: a
    call without that argument gets the default.

    `name`, `description` and `parameters` (a JSON schema) are shown to the model. `read_only`
    says that a call changes nothing, so it may start while the reply still streams. `timeout` is
    in seconds, None for no limit. A call of a tool with `approve` waits for a person's yes. With
    `retry` a call that fails in a way that it names is tried again, each time with the whole
    `timeout`; the model is told of the last failure alone.
    `source` says where the tool comes from: which function it is, or which server has it. `spec` is
    the text by which `open_tools` opened it, where a package's toolkit read that text.

    `effect` and `reconcile` say what a durable run does with a call that had begun when its process
    died, and of whose end nothing is known. With `effect="keyed"` it is run again: whoever gets it
    knows by `effect_key()` that it is the same. With `effect="nested"` too, as all that it does
    outside are calls of other tools and models, which the run keeps by themselves (an agent as a
    tool). `reconcile` is asked, `reconcile_after` seconds after the call began at the earliest; it
    takes the tool's own arguments by name, and `effect_key`, and returns `Done(value)`, `NotDone()`
    or `Unknown()`. In doubt, without any of these, a person is asked. A `read_only` one is run
    again. What its `timeout` has cut off is in doubt as well.

    The schema comes from the function's signature. `parameters` may give another, as a JSON schema
    that came from elsewhere: the function is then called with the arguments by name as they are,
    once they have been checked as `McpServer` checks them (types, bounds, required fields).
    Raises `TypeError` for a function that cannot be called by name or whose types have no schema,
    or that does not take the arguments which `parameters` name, `ValueError` for a schema of which
    none can be made.
    """

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
    ) -> None:
        if isinstance(function, (staticmethod, classmethod)):
            kind = type(cast("object", function)).__name__
            raise TypeError(f"put @tool below @{kind}, next to the function")
        if not inspect.isroutine(function):
            raise TypeError(f"a tool is made of a function, not of {function!r}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError(
                f"tool {function.__qualname__}: a tool returns its result, it cannot yield"
            )
        if not name and function.__name__ == "<lambda>":
            raise TypeError(f"tool {function.__qualname__}: give a lambda a name, by name=")
        about = f"tool {function.__qualname__}:"
        require(retry, Retry | None, f"{about} retry must be a Retry or None")
        require(timeout, NUMBER | None, f"{about} timeout must be a number of seconds or None")
        summary, descriptions = parse_docstring(function.__doc__)
        self.function = function
        self.name = name or function.__name__
        self.description = summary if description is None else description
        self.read_only = read_only
        self.timeout = timeout
        self.approve = approve
        self.retry = retry
        self.effect = effect
        self.reconcile = reconcile
        self.reconcile_after = reconcile_after
        self.source = stored_name(function).replace(":", ".", 1)
        self.spec = ""
        signature = inspect.signature(function).parameters
        self._has_fields = any(isinstance(p.default, FieldInfo) for p in signature.values())
        if parameters is None:
            self._arguments = Arguments(function, descriptions)
            names: Iterable[str] = self._arguments.names
        else:
            self._arguments = RemoteSchema(parameters)
            names = self._arguments.parameters["properties"]
            check_names(function, names)
        check_effect(
            self.name,
            effect,
            reconcile,
            reconcile_after,
            read_only=read_only,
            arguments=names,
        )
        functools.update_wrapper(self, function, updated=())

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

        A plain function runs in a worker thread, inside a tree as a child of the current node. An
        awaitable that it returns, as a plain wrapper of an async function does, is awaited here.
        Cancelling does not wait for that thread; long work calls `check_cancelled()`. Raises
        `InvalidArguments` if the arguments are wrong, else what the function raises; a thread that
        ends by `sys.exit()` or the like raises a `ToolError`. It is one attempt, of any length:
        `timeout`, `retry` and `approve` are for the node in which a call runs.
        """
        return result_text(await self.give(arguments))

    async def give(self, arguments: Mapping[str, Any]) -> Any:
        """Do as `run`, and return what the function returns."""
        given = self.check(arguments)
        if self._has_fields:
            given = fill_defaults(self.function, (), given)
        return await _call(self.function, given)

    async def look_up(self, arguments: Mapping[str, Any], key: str) -> Done | NotDone | Unknown:
        """Ask `reconcile` what became of the call that has sent this key."""
        assert self.reconcile is not None
        known: object = await _call(self.reconcile, {**self.check(arguments), "effect_key": key})
        if not isinstance(known, (Done, NotDone, Unknown)):
            raise TypeError(
                f"reconcile of {self.name} returns Done(value), NotDone() or Unknown(),"
                f" not {known!r:.200}"
            )
        return known

    @property
    def origin(self) -> str:
        """What a person reads, before a call runs, of where it goes: more than `source` says.

        Two tools that come from different places have different texts. Known keys are left out.
        """
        return f"{mask_spec(self.spec)}: {self.source}" if self.spec else self.source

    @property
    def definition(self) -> Mapping[str, Any]:
        """What decides what a call of this tool does, as JSON: two tools that differ in it differ.

        It may hold keys: make a `fingerprint` of it, and store or show nothing else.
        """
        code = getattr(self.function, "__code__", None)
        file = getattr(code, "co_filename", "")  # a module of one name may be another elsewhere
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
        """The tool without the hooks that are around it."""
        return self

    async def finish(self, text: str) -> str:
        """Return what is told of a call that gave `text`: what the hooks after it make of that."""
        return text

    async def prepare(self, arguments: Mapping[str, Any]) -> tuple[Mapping[str, Any], AnyTool]:
        """Return the arguments and the tool of a call about which a person is to be asked.

        A tool with hooks runs here those that may change the call, so that the person sees what
        will run.
        """
        return arguments, self

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments as the function takes them; raise `InvalidArguments`."""
        return self._arguments.check(arguments)

    # In this order: a class method, which binds its class; then a tool that is read from the class;
    # then a method, which binds its object; then a static method, which binds nothing.
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
        """Bind a tool that was written as a method, as a plain function is bound."""
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
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...
def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function or method a `Tool`, as `@tool` or `@tool(read_only=True, timeout=20)`.

    Its name, its docstring (Google, numpy or reST) and its signature are what the model is told;
    `Annotated[T, Field(description=...)]` describes a parameter too. Options as in `Tool`.
    """
    if function is None:
        return functools.partial(Tool, **options)
    return Tool(function, **options)


def result_text(value: object) -> str:
    """Return a tool's result as a model reads it: a string as it is, anything else as JSON.

    Of a `Part`, and of a list with some in it, it is an `Illustrated` text.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, Part):
        return Illustrated(value.text or value.about, () if value.text else (value,))
    if isinstance(value, list | tuple):
        given = cast("Sequence[object]", value)
        if any(isinstance(each, Part) for each in given):
            texts = [result_text(each) for each in given]
            parts = [part for each in texts if isinstance(each, Illustrated) for part in each.parts]
            files = [file for each in texts if isinstance(each, Illustrated) for file in each.files]
            return Illustrated("\n".join(texts), parts, files)
    return to_json(value, fallback=str).decode()


async def _call(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call a function, in a thread if it is a plain one, and await what it returns if it can be."""
    if inspect.iscoroutinefunction(function):
        return await _last(await function(**arguments))
    abandoned = False
    coroutine: Coroutine[Any, Any, Any] | None = None

    def call() -> Any:
        nonlocal coroutine
        with contain_exit():  # a KeyboardInterrupt too: the user's own never comes to a thread
            given = function(**arguments)
        if inspect.iscoroutine(given):
            coroutine = given
            if abandoned:
                given.close()
        return given

    try:
        if (node := parent_here()) is None:
            result = await anyio.to_thread.run_sync(call, abandon_on_cancel=True)
        else:
            result = await node.in_thread(call, abandon=True)
    except BaseException:
        # Close a coroutine that nobody will await, whether the thread has returned it yet or not.
        abandoned = True
        if coroutine is not None:
            coroutine.close()
        raise
    return await _last(result)


async def _last(result: Any) -> Any:
    """Await what a function returned, and what that gives, until it is no awaitable."""
    while inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncIterator):
        kind = type(cast("object", result)).__name__
        raise TypeError(f"a tool returns its result, it cannot give an {kind}")
    return result


@contextmanager
def contain_exit(*passed: type[BaseException]) -> Generator[None]:
    """Turn what would end the loop or the program into a `ToolError`, but for those `passed`."""
    try:
        yield
    except (Exception, asyncio.CancelledError, *passed):
        raise
    except BaseException as error:
        text = f"the tool tried to end the program ({describe_error(error)})"
        raise ToolError(text) from error
