"""`Durable`: a job whose result is recorded, and the calls it may make."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import (
    Any,
    ClassVar,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    cast,
    get_type_hints,
    overload,
)
from weakref import WeakKeyDictionary

from ..commander import Callback, ConfigurationError, Node
from ..commander.durable import is_in_side_task, scope_here, scope_of
from ..commander.stored_names import stored_name
from ..jobs import Job
from ..messages import Conversation
from ..tools import AnyTool, Tool
from ._call import call_tool
from ._codec import MISSING, Codec, Shape, shape_of
from ._execution import Execution
from ._inbox import WALL_CLOCK_POLL_SECONDS
from ._json import canonical, canonical_inputs, digest
from ._roots import find_named, write_put
from ._scope import NodeScope
from ._transaction import IN_TRANSACTION, Transaction, require_no_transaction
from .errors import JournalError, JournalMismatch, LeaseLost, NotDurable, NotStorable

__all__ = ["Durable", "DurableCalls", "make_again"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Durable(Job[T_co], internal=True):
    """A job of a durable run: its result is recorded, and then it never runs again.

        class Order(Durable[str], version=2):
            order: str
            backend: Live[Backend] = live()

            async def task(self) -> str: ...

        run(Order("A-17"), journal="runs.db", run_id="order-A-17", live={"backend": backend})

    Inputs and result are stored as JSON by their types. A field whose type cannot be stored raises
    `NotStorable` when the class is created, unless it is `Live`. Awaiting the job returns the
    decoded value, also in the first execution. Raise `version` when runs of the earlier class
    cannot continue with the new one: they are parked. `self.durable` has the calls that `task` may
    make.
    """

    _node_is_durable = True
    _node_version = 1
    _node_shape: ClassVar[Shape | None] = None

    def __init_subclass__(cls, *, version: int = 1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls._node_own_init:
            raise TypeError(
                f"{cls.__name__} is durable: declare its inputs as fields instead of __init__"
            )
        if type(version) is not int or not 0 <= version < 2**63:
            raise TypeError(
                f"version= of {cls.__name__} must be an integer from 0 on, not {version!r}"
            )
        cls._node_version = version
        cls._node_shape = None
        with suppress(NameError):  # a type that is defined later in the module
            cls._node_shape = shape_of(cls, Durable)

    @property
    def durable(self) -> DurableCalls:
        """The durable calls of this job. Raises `NotDurable` outside a durable run."""
        return DurableCalls(self)

    # --- for the journal

    @classmethod
    def _node_of(cls) -> Shape:
        if cls._node_shape is None:
            try:
                cls._node_shape = shape_of(cls, Durable)
            except NameError as error:
                raise NotStorable(
                    f"the fields of {cls.__name__} cannot be stored: {error}. Define that type in"
                    " the module of the class, not in a function"
                ) from error
        return cls._node_shape

    def _node_codec(self) -> Codec:
        return (self._node_shape or self._node_of()).result

    def _node_prepare(self, execution: Execution) -> tuple[str, bool]:
        shape = self._node_shape or self._node_of()
        for name in shape.live:
            if (value := getattr(self, name, MISSING)) is not MISSING:
                execution.live.setdefault(name, value)
                execution.keys.learn(value)
            elif name in execution.live:
                setattr(self, name, execution.live[name])
            else:
                raise ConfigurationError(
                    f"the live field {type(self).__name__}.{name} is missing: to resume the run,"
                    f" pass live={{{name!r}: ...}}, or --live {name}=module:attribute"
                )
        texts: list[str] = []
        whole = not shape.live
        for name, begin, codec in shape.written:
            value: object = getattr(self, name)
            if (scalar := codec.scalars.get(type(value))) is not None:
                texts.append(begin + scalar(value))
                continue
            codec.encode(value)
            text, says_all = canonical(value)
            texts.append(begin + text)
            whole = whole and says_all
        return f"{{{','.join(texts)}}}", whole

    def _node_inputs(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._node_of().fields}

    def _node_live(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self._node_of().live}

    def _node_write(self) -> dict[str, Any]:
        cls = type(self)
        fields = {
            name: json.loads(self._node_of().fields[name].encode(value))
            for name, value in self._node_inputs().items()
        }
        return {"class": stored_name(cls), "version": cls._node_version, "inputs": fields}

    def _node_write_put(self) -> dict[str, Any]:
        return write_put(self, make_again(self._node_write(), self._node_live()))

    # --- callbacks; a body must not add any, as a replay skips it

    def at_end(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_end(callback)

    def at_exception(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_exception(callback)

    def at_terminate(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_terminate(callback)

    def at_done(self, callback: Callback) -> Self:
        _refuse_in_body(self)
        return super().at_done(callback)


def _refuse_in_body(job: Durable[Any]) -> None:
    if job.state == "running":
        raise ConfigurationError(
            f"the body of {job!r} adds a final callback, which a resumed run would not have: add it"
            " in __post_init__, or where the job is put"
        )


def make_again(
    written: dict[str, Any], live: dict[str, Any], kind: type[Durable[Any]] | None = None
) -> Durable[Any]:
    """Create a job from the result of `_node_write`; raise `JournalMismatch` if that fails.

    `kind` is its class, which may be local to a function; by default it is found by its name.
    """
    found: Any = kind or find_named(written["class"])
    if not (isinstance(found, type) and issubclass(found, Durable)):
        raise JournalMismatch(f"{written['class']} is not a Durable job any more")
    if found._node_version != written["version"]:
        raise JournalMismatch(
            f"{written['class']} has version {found._node_version}, but the run began with version"
            f" {written['version']}: finish it with the code of that version, or cancel it"
        )
    shape = found._node_of()
    if unknown := set(written["inputs"]) - set(shape.fields):
        raise JournalMismatch(
            f"{written['class']} no longer has the field {', '.join(sorted(unknown))}"
        )
    inputs = {
        name: shape.fields[name].decode(json.dumps(value).encode())
        for name, value in written["inputs"].items()
    }
    try:
        make = cast("type[Durable[Any]]", found)
        return make(**inputs, **{name: live.get(name, MISSING) for name in shape.live})
    except TypeError as error:
        raise JournalMismatch(
            f"{written['class']} cannot be created from its stored inputs: {error}"
        ) from error


def _refuse_tool(function: object) -> None:
    if isinstance(function, Tool):
        tool = cast("AnyTool", function)
        if not tool.read_only:
            raise ConfigurationError(
                f"{tool.name} is a tool, and a step could repeat its effect. Use"
                f" durable.call({tool.name}, ...)"
            )


class _CallableTool(Protocol[P, T_co]):
    """The parameters and the result of a `Tool`, for the overloads of `call`."""

    @property
    def read_only(self) -> bool: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class DurableCalls:
    """The durable calls of a node: each is made once in the lifetime of the run.

        paid = await self.durable.step(charge, order)
        await self.durable.sleep(hours=1)
        reply = await self.durable.signal("confirmed", bool)

    A durable job has them as `self.durable`, a plain handler below one as `DurableCalls(node)`.
    Raises `NotDurable` for a node outside a durable run.
    """

    def __init__(self, node: Node[Any]) -> None:
        scope = scope_of(node)
        if not isinstance(scope, NodeScope):
            raise NotDurable(
                f"{node!r} is not in a durable run: start it by run(..., journal=..., run_id=...)"
            )
        self._node = node
        self._scope = scope

    @property
    def run_id(self) -> str:
        """The name of the run."""
        return self._scope.execution.run_id

    @overload
    def step(
        self, function: Callable[..., Awaitable[T]], *args: Any, key: str | None = None
    ) -> Node[T]: ...
    @overload
    def step(self, function: Callable[..., T], *args: Any, key: str | None = None) -> Node[T]: ...
    def step(self, function: Callable[..., Any], *args: Any, key: str | None = None) -> Node[Any]:
        """Call a function as a child of the job and record its result; await it.

        The function runs again if the process dies before its result is on disk: use a tool for
        what must not be repeated. A plain function runs in a worker thread. The result is stored by
        the return annotation; without one it must be plain JSON. A tool is a `ConfigurationError`,
        unless it is `read_only`, since a step may repeat its effect.
        """
        _refuse_tool(function)
        return self._node.call_handler(Step(function, args), key=key)

    @overload
    def call(
        self, tool: _CallableTool[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[T]: ...
    @overload
    def call(self, tool: _CallableTool[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Node[T]: ...
    @overload
    def call(
        self,
        tool: _CallableTool[..., Coroutine[Any, Any, T]],
        /,
        *args: Any,
        key: str,
        **kwargs: Any,
    ) -> Node[T]: ...
    @overload
    def call(
        self, tool: _CallableTool[..., T], /, *args: Any, key: str, **kwargs: Any
    ) -> Node[T]: ...
    def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """Call a tool as a child of the job, once in the lifetime of the run; await the result.

        The options of the tool apply as in a call by a model: `effect`, `reconcile`, `approve`,
        `retry`, `timeout`. The result has the type of the tool's return annotation. Raises the
        exception of the tool, or `ToolError` if a person denies the call. Waits for replies that
        `fork` reads for this job or one above it: see docs/durable.md.

        `key=` names the call in its run: `call(charge, order, key="charge")`. The journal then
        finds the call by this name alone, also after an edit that moves it to another job, renames
        the tool or changes the inputs. Two calls of one run with the same key are a
        `ConfigurationError`. A parameter `key` of the tool itself takes precedence.
        """
        if not isinstance(tool, Tool):
            raise TypeError(f"{tool!r} is not a tool: decorate it with @tool, or call it as a step")
        return call_tool(self._node, cast("AnyTool", tool), args, kwargs)

    def now(self) -> datetime:
        """Return the current time in UTC; later executions get the same time."""
        text = self._once("now", lambda: datetime.fromtimestamp(time.time(), UTC).isoformat())
        return datetime.fromisoformat(text)

    def random(self) -> float:
        """Return a random number from 0 up to 1; later executions get the same number."""
        return self._once("random", random.random)

    async def sleep(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Wait for a time that starts with the first call and also passes while no process runs."""
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        seconds = length.total_seconds()
        with self._waiting(self._ident(f"sleep {seconds}"), "sleep", "", seconds) as due:
            while (left := cast("float", due) - time.time()) > 0:  # noqa: ASYNC110 - the wall clock has no event
                await asyncio.sleep(min(left, WALL_CLOCK_POLL_SECONDS))

    async def signal(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - as in the annotation of a field
        *,
        timeout: float | None = None,
    ) -> Any:
        """Wait for a value that `journal.signal(run_id, name, value)` sends, and return it.

        Each signal is received once, in order, and stored until then. A signal that is not of the
        `type` is refused with a row and a warning. After `timeout` seconds since the first call,
        also while no process runs, this raises `TimeoutError` in each execution.
        """
        codec = Codec(type, f"the signal {name!r}")
        ident = self._ident(f"signal {name}")
        with self._waiting(ident, "signal", name, timeout, type=codec.type_name) as due:
            data = await self._scope.execution.take_letter(ident, "signal", name, due, codec)
        return codec.decode(data, foreign=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        """Execute SQL statements in the journal's database exactly once: all of them, or none.

            async with self.durable.transaction() as sql:
                await sql.execute("insert into orders values (?)", self.order)

        They are committed together with the row that records them. A later execution gets the
        recorded answers and executes nothing. The block must wait only for its statements, as all
        other commits wait for it. It refuses nodes, steps, effects, sleeps and signals. If an
        exception leaves the block, it is rolled back.
        """
        transaction = Transaction(self._scope.execution, self._ident("transaction"))
        token = IN_TRANSACTION.set(True)
        try:
            async with transaction.done_once():
                yield transaction
        finally:
            IN_TRANSACTION.reset(token)

    @contextmanager
    def _waiting(
        self, ident: bytes, kind: str, name: str, seconds: float | None, **more: str
    ) -> Generator[float | None]:
        """Record that the run waits; yield the time at which the wait ends, the same each time.

        A wait that the run itself cancels is withdrawn.
        """
        execution = self._scope.execution
        row = execution.find(ident, "waits")
        value: dict[str, Any] = {} if row is None else json.loads(row.value)
        if row is None or value["seconds"] != seconds:
            until = None if seconds is None else time.time() + seconds
            value = {"kind": kind, "name": name, "seconds": seconds, "until": until, **more}
            execution.record(ident, "waits", value)
        try:
            yield value["until"]
        except asyncio.CancelledError:
            if not (execution.suspending or execution.suspended):
                with suppress(JournalError, LeaseLost):
                    execution.append(ident, "withdrawn")
            raise

    def conversation(self, name: str, system: str | None = None) -> Conversation:
        """Return the run's conversation of this name, whose messages are recorded.

        The same name returns the same object. It has the messages from before the round of this
        job, and `system` first if there were none. After a restart the body adds its own messages
        again; other messages instead raise `JournalMismatch`. Messages cannot be changed.
        """
        self._scope.require_own_loop(f"self.durable's conversation {name!r}")
        return self._scope.execution.conversations.open(self._scope, name, system)

    def _once(self, kind: str, make: Callable[[], T]) -> T:
        execution, ident = self._scope.execution, self._ident(kind)
        if (row := execution.find(ident, "once")) is not None:
            return json.loads(row.value)
        value = make()
        execution.record(ident, "once", value)
        return value

    def _ident(self, what: str) -> bytes:
        """Return the identity of a call, by its ordinal among those of the running node."""
        scope = scope_here()
        if not isinstance(scope, NodeScope) or scope.execution is not self._scope.execution:
            scope = self._scope
        require_no_transaction()
        scope.require_own_loop(f"self.durable's {what}")
        # Sleeps of the same length are interchangeable.
        aside = is_in_side_task() and not what.startswith("sleep")
        try:
            number = scope.number(f"call {what}", aside=aside)
        except ConfigurationError:
            raise ConfigurationError(
                f"several tasks of one body call self.durable for one {what} at once, and their"
                " order may differ after a restart: give each a handler or a job of its own"
            ) from None
        return digest(scope.attempt_ident, what, number)


class Step(Node[T_co], internal=True):
    """One call of a function whose result is recorded."""

    _node_is_durable = True
    _node_is_work = True

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self._args = args

    async def task(self) -> Any:
        """Call the function."""
        if inspect.iscoroutinefunction(self._function):
            return await self._function(*self._args)
        return await self.in_thread(self._function, *self._args)

    def _node_prepare(self, execution: Execution) -> tuple[str, bool]:
        return canonical_inputs(self)

    def _node_codec(self) -> Codec:
        function = getattr(self._function, "__func__", self._function)  # of a method of any object
        try:
            return _codecs[function]
        except (KeyError, TypeError):
            pass
        where = f"the result of {self._node_name}"
        try:
            hints = get_type_hints(self._function)
        except (NameError, TypeError):
            return Codec(Any, where, self._function)
        codec = Codec(hints.get("return", Any), where, self._function)
        with suppress(TypeError):  # not hashable, or without weak references
            _codecs[function] = codec
        return codec


# The codecs of functions: building one takes a hundred times as long as encoding a result.
_codecs: WeakKeyDictionary[Any, Codec] = WeakKeyDictionary()
