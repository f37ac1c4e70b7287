"""`Durable`: a job whose result is kept; and what it may call."""

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
from ..commander.scope import is_aside_here, scope_here, scope_of
from ..commander.stored_names import stored_name
from ..jobs import Job
from ..messages import Conversation
from ..tools import AnyTool, Tool
from ._call import call_tool
from ._codec import MISSING, Codec, Shape, shape_of
from ._inbox import WALL_CLOCK_POLL_SECONDS
from ._json import canonical, canonical_inputs, digest
from ._roots import find_named, write_put
from ._scope import NodeScope
from ._state import JournalState
from ._transaction import IN_TRANSACTION, Transaction, require_no_transaction
from .errors import JournalError, JournalMismatch, LeaseLost, NotDurable, NotStorable

__all__ = ["Durable", "DurableCalls", "make_again"]

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Durable(Job[T_co], internal=True):
    """A job of a durable run: its result is kept, and it never runs again once it has one.

        class Order(Durable[str], version=2):
            order: str
            backend: Live[Backend] = live()

            async def task(self) -> str: ...

        run(Order("A-17"), journal="runs.db", run_id="order-A-17", live={"backend": backend})

    Inputs and result are written as JSON by their types: a field whose type cannot be written is
    refused when the class is made, with `NotStorable`, unless it is `Live`. Whoever awaits the job
    gets the value as it was read back, in the first life too. `version` says that what the class
    does has changed so much that a run of another version cannot go on: it is then parked. What
    may be called in `task` stands under `self.durable`.
    """

    _node_durable = True
    _node_version = 1
    _node_shape: ClassVar[Shape | None] = None

    def __init_subclass__(cls, *, version: int = 1, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls._node_own_init:
            raise TypeError(f"{cls.__name__} is durable: declare its inputs as fields, no __init__")
        if type(version) is not int or not 0 <= version < 2**63:
            raise TypeError(f"version= of {cls.__name__} is a number from 0 on, not {version!r}")
        cls._node_version = version
        cls._node_shape = None
        with suppress(NameError):  # a type that is defined further down
            cls._node_shape = shape_of(cls, Durable)

    @property
    def durable(self) -> DurableCalls:
        """What a durable job may call. Outside a durable run it is `NotDurable`."""
        return DurableCalls(self)

    # --- what the ledger asks

    @classmethod
    def _node_of(cls) -> Shape:
        if cls._node_shape is None:
            try:
                cls._node_shape = shape_of(cls, Durable)
            except NameError as error:
                raise NotStorable(
                    f"the fields of {cls.__name__} cannot be written: {error} where the class is"
                    " made: define that type in its module, not in a function"
                ) from error
        return cls._node_shape

    def _node_codec(self) -> Codec:
        return (self._node_shape or self._node_of()).result

    def _node_prepare(self, ledger: JournalState) -> tuple[str, bool]:
        shape = self._node_shape or self._node_of()
        for name in shape.live:
            if (value := getattr(self, name, MISSING)) is not MISSING:
                ledger.live.setdefault(name, value)
                ledger.keys.learn(value)
            elif name in ledger.live:
                setattr(self, name, ledger.live[name])
            else:
                raise ConfigurationError(
                    f"{type(self).__name__}.{name} is live, so the journal does not have it: give"
                    f" it when the run is taken up, live={{{name!r}: ...}}, or on the command line"
                    f" --live {name}=module:attribute"
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

    # --- callbacks: those that the body adds would be lost where it is skipped

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
            f"{job!r} gets a final callback from its own body, which does not run again once its"
            " result is kept, and the callback would be lost: add it in __post_init__, or where"
            " the job is put"
        )


def make_again(
    written: dict[str, Any], live: dict[str, Any], kind: type[Durable[Any]] | None = None
) -> Durable[Any]:
    """Make a job of what `_node_write` gave; raise `JournalMismatch` for one that is unknown.

    Its class is looked up by its name, unless it is given: it may be one inside a function.
    """
    found: Any = kind or find_named(written["class"])
    if not (isinstance(found, type) and issubclass(found, Durable)):
        raise JournalMismatch(f"{written['class']} is no durable job any more")
    if found._node_version != written["version"]:
        raise JournalMismatch(
            f"{written['class']} has version {found._node_version}, and the run began with version"
            f" {written['version']}: finish it with the code of that version, or cancel it"
        )
    shape = found._node_of()
    if unknown := set(written["inputs"]) - set(shape.fields):
        raise JournalMismatch(f"{written['class']} has no field {', '.join(sorted(unknown))} now")
    inputs = {
        name: shape.fields[name].decode(json.dumps(value).encode())
        for name, value in written["inputs"].items()
    }
    try:
        make = cast("type[Durable[Any]]", found)
        return make(**inputs, **{name: live.get(name, MISSING) for name in shape.live})
    except TypeError as error:
        raise JournalMismatch(f"{written['class']} cannot be made again: {error}") from error


class _Called(Protocol[P, T_co]):
    """A `Tool`, of which only what it returns matters: of `Tool` itself that has to be the same."""

    @property
    def read_only(self) -> bool: ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> T_co: ...


class DurableCalls:
    """What a node of a durable run may call, each once in the life of the run.

    A durable job has it as `self.durable`; for a plain handler below one it is
    `DurableCalls(node)`. Raises `NotDurable` for a node that is in no durable run.
    """

    def __init__(self, node: Node[Any]) -> None:
        scope = scope_of(node)
        if not isinstance(scope, NodeScope):
            raise NotDurable(
                f"{node!r} is in no durable run: start it by run(..., journal=..., run_id=...)"
            )
        self._node = node
        self._scope = scope

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._scope.ledger.run_id

    @overload
    def step(
        self, function: Callable[..., Awaitable[T]], *args: Any, key: str | None = None
    ) -> Node[T]: ...
    @overload
    def step(self, function: Callable[..., T], *args: Any, key: str | None = None) -> Node[T]: ...
    def step(self, function: Callable[..., Any], *args: Any, key: str | None = None) -> Node[Any]:
        """Call a function as a child of the job, and keep what it returns; await the result.

        It runs again if the process dies before its end is on disk: what must not be done twice
        is a tool's work. A plain function runs in a worker thread. The result is written by the
        function's return annotation; without one it must be plain JSON.
        """
        return self._node.call_handler(Step(function, args), key=key)

    @overload
    def call(
        self, tool: _Called[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Node[T]: ...
    @overload
    def call(self, tool: _Called[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Node[T]: ...
    @overload
    def call(
        self, tool: _Called[..., Coroutine[Any, Any, T]], /, *args: Any, key: str, **kwargs: Any
    ) -> Node[T]: ...
    @overload
    def call(self, tool: _Called[..., T], /, *args: Any, key: str, **kwargs: Any) -> Node[T]: ...
    def call(self, tool: Any, /, *args: Any, **kwargs: Any) -> Node[Any]:
        """Call a tool as a child of the job, once in the life of the run; await the result.

        All that the tool says of itself holds as where a model calls it: `effect`, `reconcile`,
        `approve`, `retry`, `timeout`. It gives what the tool returns, by its return annotation, and
        raises what the tool raises, or a `ToolError` if a person does not allow it. Replies that
        `fork` reads for this job, or for one above it, are waited for: see docs/durable.md.

        `key=` names the call in its run: `call(charge, order, key="charge")`. The journal then
        finds the call by this name alone, also after an edit that moves it to another job, renames
        the tool or changes the inputs. Two calls of one run with the same key are a
        `ConfigurationError`. A parameter `key` of the tool itself takes precedence.
        """
        if not isinstance(tool, Tool):
            raise TypeError(f"{tool!r} is no tool: mark it with @tool, or make it a step")
        return call_tool(self._node, cast("AnyTool", tool), args, kwargs)

    def now(self) -> datetime:
        """Return the time, in UTC: that of the first life."""
        text = self._once("now", lambda: datetime.fromtimestamp(time.time(), UTC).isoformat())
        return datetime.fromisoformat(text)

    def random(self) -> float:
        """Return a number from 0 up to 1: that of the first life."""
        return self._once("random", random.random)

    async def sleep(
        self, seconds: float = 0, *, minutes: float = 0, hours: float = 0, days: float = 0
    ) -> None:
        """Wait so long from the first call on, also while no process runs."""
        length = timedelta(days=days, hours=hours, minutes=minutes, seconds=seconds)
        seconds = length.total_seconds()
        with self._waiting(self._ident(f"sleep {seconds}"), "sleep", "", seconds) as due:
            while (left := cast("float", due) - time.time()) > 0:  # noqa: ASYNC110 - the wall clock tells nobody
                await asyncio.sleep(min(left, WALL_CLOCK_POLL_SECONDS))

    async def signal(
        self,
        name: str,
        type: Any = Any,  # noqa: A002 - as in the annotation of a field
        *,
        timeout: float | None = None,
    ) -> Any:
        """Return what `journal.signal(run_id, name, value)` sends: each is taken once, in order.

        One that came before anybody waited is kept. What does not fit `type` is refused, with a
        row and a warning, and the next one is waited for. `timeout` is in seconds from the first
        call on, also while no process runs; then `TimeoutError`, in every life.
        """
        codec = Codec(type, f"the signal {name!r}")
        ident = self._ident(f"signal {name}")
        with self._waiting(ident, "signal", name, timeout, type=codec.type_name) as due:
            data = await self._scope.ledger.take_letter(ident, "signal", name, due, codec)
        return codec.decode(data, foreign=True)

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        """Let statements be done in the journal's own database, all of them and once, or none.

        They are in the commit in which the journal notes that they are done. In a later life the
        statements answer from the journal and do nothing. The block must not wait for anything
        but its statements, as every other commit waits for it; nodes, steps, effects, sleeps and
        signals are refused in it. One that is left by an exception has done nothing.
        """
        transaction = Transaction(self._scope.ledger, self._ident("transaction"))
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
        """Keep that the run waits, for whoever looks at it; give until when, from the first life.

        A wait that the run itself has cancelled is withdrawn.
        """
        ledger = self._scope.ledger
        row = ledger.find(ident, "waits")
        value: dict[str, Any] = {} if row is None else json.loads(row.value)
        if row is None or value["seconds"] != seconds:
            until = None if seconds is None else time.time() + seconds
            value = {"kind": kind, "name": name, "seconds": seconds, "until": until, **more}
            ledger.append(ident, "waits", json.dumps(value).encode())
        try:
            yield value["until"]
        except asyncio.CancelledError:
            if not (ledger.suspending or ledger.suspended):
                with suppress(JournalError, LeaseLost):
                    ledger.append(ident, "withdrawn")
            raise

    def conversation(self, name: str, system: str | None = None) -> Conversation:
        """Return the run's conversation of this name: its messages are rows, each once.

        All who ask for one name get the same object. It holds what stood there when this job's
        round began, and `system` first if that was nothing; what the round itself has added comes
        back as its body adds it again: to add anything else there is `JournalMismatch`. Messages
        can be added and not changed in place.
        """
        self._scope.require_own_loop(f"self.durable's conversation {name!r}")
        return self._scope.ledger.talks.open(self._scope, name, system)

    def _once(self, kind: str, make: Callable[[], T]) -> T:
        ledger, ident = self._scope.ledger, self._ident(kind)
        if (row := ledger.find(ident, "once")) is not None:
            return json.loads(row.value)
        value = make()
        ledger.append(ident, "once", json.dumps(value).encode())
        return value

    def _ident(self, what: str) -> bytes:
        """Say which call this is: of those of the same kind by the node around this code."""
        scope = scope_here()
        if not isinstance(scope, NodeScope) or scope.ledger is not self._scope.ledger:
            scope = self._scope
        require_no_transaction()
        scope.require_own_loop(f"self.durable's {what}")
        # Sleeps of one length are alike, whoever of them was first.
        aside = is_aside_here() and not what.startswith("sleep")
        try:
            number = scope.number(f"call {what}", aside=aside)
        except ConfigurationError:
            raise ConfigurationError(
                f"several tasks of one body call self.durable for one {what} at once, and in"
                " another life another of them may be first: call it in a handler or a job for each"
            ) from None
        return digest(scope.now, what, number)


class Step(Node[T_co], internal=True):
    """One call of a function whose result is kept."""

    _node_durable = True
    _node_work = True

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        super().__init__(getattr(function, "__name__", type(function).__name__))
        self._function = function
        self._args = args

    async def task(self) -> Any:
        """Call it."""
        if inspect.iscoroutinefunction(self._function):
            return await self._function(*self._args)
        return await self.in_thread(self._function, *self._args)

    def _node_prepare(self, ledger: JournalState) -> tuple[str, bool]:
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
        with suppress(TypeError):  # one that has no hash, or takes no weak reference
            _codecs[function] = codec
        return codec


# How what functions return is written: to find that out takes a hundred times as long as to do it.
_codecs: WeakKeyDictionary[Any, Codec] = WeakKeyDictionary()
