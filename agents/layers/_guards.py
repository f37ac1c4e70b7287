"""Guards: checks of an agent's input that run at the same time as its first request.

A `Gate` is closed until all guards of a call have passed. What must not happen before waits for it:
text and tool calls of replies (`hold`), tools that an agent runs itself, answers, and the view of
other calls on the memory.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast

from ...commander import Context, Node, actor_of
from ...commander.context import call_with_context
from ...commander.durable import IS_ASIDE, TEXT_GATE, scope_here
from ...commander.errors import ConfigurationError
from ...commander.waiting import observe, wait_shielded
from ...messages import Delta
from ._message import AgentMessage, copy_message

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "GATE",
    "Gate",
    "Guard",
    "GuardCheck",
    "Guarded",
    "check_guards",
    "hold",
    "wait_for_gate",
]

T = TypeVar("T")

Guard: TypeAlias = (
    Callable[[AgentMessage], Awaitable[None] | None]
    | Callable[[AgentMessage, Context[Any]], Awaitable[None] | None]
)
"""Checks a message to an agent, plain or async. It raises to refuse the message."""

# The deltas that a reader may be behind after the gate has opened.
MAX_HELD_DELTAS = 1024


def check_guards(guards: Iterable[Guard], name: str) -> list[Guard]:
    """Return the guards of an agent; raise `ConfigurationError` for one that cannot be called."""
    found = [*guards]
    for guard in found:
        if not callable(guard) or isinstance(guard, type):
            raise ConfigurationError(
                f"a guard of {name} must be a function of a message, not {guard!r:.200}"
            )
        if inspect.isasyncgenfunction(guard) or inspect.isgeneratorfunction(guard):
            raise ConfigurationError(
                f"the guard {name_of(guard)} of {name} must raise or return, not yield"
            )
        try:
            signature = inspect.signature(guard)
        except ValueError:  # a builtin without a signature
            continue
        for given in (None,), (None, None):
            with suppress(TypeError):
                signature.bind(*given)
                break
        else:
            raise ConfigurationError(
                f"the guard {name_of(guard)} of {name} must take the message, or the message and"
                f" the context, not {signature}"
            )
    return found


def name_of(guard: Callable[..., object]) -> str:
    """Return the name of a guard's node."""
    return getattr(guard, "__name__", None) or type(guard).__name__


class Gate:
    """Closed until all guards of one call, and of the calls above it, have passed."""

    def __init__(self, outer: Gate | None, calls: tuple[object, ...]) -> None:
        self.outer = outer
        self.calls = calls  # the call, after the calls above it, as in `CURRENT_CALLS`
        self._waiting: list[GuardCheck] | None = None  # None until the guards are known
        self._call: Node[Any] | None = None

    def set_guards(self, call: Node[Any], guards: list[GuardCheck]) -> None:
        """Set the guards that open it, and the node that fails if one refuses."""
        self._call, self._waiting = call, guards

    @property
    def is_open(self) -> bool:
        """Whether all guards have passed."""
        waiting = self._waiting
        if waiting is None:
            return False
        while waiting and waiting[-1].state == "completed":
            waiting.pop()
        return not waiting and (self.outer is None or self.outer.is_open)

    async def passed(self) -> None:
        """Wait until all guards have passed. If one refuses, the waiting node is cancelled."""
        while self._waiting:
            guard = self._waiting[-1]
            await observe(guard)
            if guard.state == "completed":
                if self._waiting and self._waiting[-1] is guard:
                    self._waiting.pop()
                continue
            if guard.state == "failed" and self._call is not None:
                await observe(self._call)  # it cancels all nodes below itself, so mostly this one
            assert guard.error is not None
            raise guard.error
        if self.outer is not None:
            await self.outer.passed()


GATE = cast("ContextVar[Gate | None]", TEXT_GATE)
"""The gate of the call around this, None without guards. Nodes inherit it."""

GUARDS_NOTE = "guards"  # the name of the notes about guards in a journal


async def wait_for_gate() -> None:
    """Wait until the guards of all calls around this have passed."""
    if (gate := GATE.get()) is not None:
        await gate.passed()


class GuardCheck(Node[None], internal=True):
    """One guard that checks one message. It has the guard's name."""

    def __init__(self, guard: Guard, message: AgentMessage, gate: Gate | None) -> None:
        super().__init__(name_of(guard))
        # Named like the engine's attributes, so that they do not enter the identity.
        self._node_guard, self._node_message, self._node_gate = guard, message, gate

    async def task(self) -> None:
        """Call the guard, outside of the gate and of the stream of the call that it checks."""
        from ._steer import STEERING
        from ._stream import MESSAGE_FEED

        GATE.set(self._node_gate)
        IS_ASIDE.set(True)
        MESSAGE_FEED.set(None)
        STEERING.set(None)
        guard = self._node_guard
        result: object = await call_with_context(guard, copy_message(self._node_message))
        if result is not None:
            raise TypeError(
                f"the guard {name_of(guard)} must raise to refuse a message, and return None, not"
                f" {result!r:.200}"
            )


class Guarded(Node[T], Generic[T], internal=True, name="guarded"):
    """Runs the guards of a call beside its work. The first guard that refuses cancels both."""

    # A failure of a guard, which no code awaits, cancels the body and all other nodes.
    policy = "fail_fast"

    def __init__(
        self,
        agent: Agent[Any],
        gate: Gate,
        messages: Sequence[AgentMessage],
        work: Callable[[], Awaitable[T]],
    ) -> None:
        self._node_guards = [
            GuardCheck(guard, message, gate.outer) for message in messages for guard in agent.guards
        ]
        self._node_gate, self._node_task = gate, work

    async def task(self) -> T:
        """Start the guards, do the work, and wait for the guards."""
        self._note_guards()
        for guard in self._node_guards:
            self.call_handler(guard)
        self._node_gate.set_guards(self, [*self._node_guards])
        result = await self._node_task()
        await self._node_gate.passed()
        return result

    def _note_guards(self) -> None:
        """Note in the session's journal that guards have begun, and later that all have passed.

        The end of an interrupted call drops what they have not passed.
        """
        from ._call import OUTER_SESSION

        scope = scope_here()
        if scope is None or OUTER_SESSION.get() is None or not self._node_guards:
            return
        actor = actor_of(self)
        is_inner = self._node_gate.outer is not None or bool(actor and actor.answers_for)
        about = {"of": scope.identity[1], "inner": is_inner, "aside": IS_ASIDE.get()}
        notes = scope.notes(GUARDS_NOTE)
        if not notes:
            scope.note(GUARDS_NOTE, {"guards": "begun", **about})
        if len(notes) > 1:
            return  # they passed in an earlier execution
        left: set[Node[Any]] = {*self._node_guards}

        def passed(guard: Node[Any]) -> None:
            left.discard(guard)
            if not left:
                scope.note(GUARDS_NOTE, {"guards": "passed", **about})

        for each in self._node_guards:
            each.at_end(passed)


async def hold(deltas: AsyncGenerator[Delta, None], gate: Gate) -> AsyncGenerator[Delta, None]:
    """Read a reply at once, and yield its deltas when the gate is open."""
    waiting: deque[Delta] = deque()
    changed = asyncio.Event()

    async def read() -> None:
        # In one task from beginning to end: the timeouts of a backend belong to a task.
        async with aclosing(deltas):
            async for delta in deltas:
                waiting.append(delta)
                changed.set()
                while len(waiting) >= MAX_HELD_DELTAS and gate.is_open:
                    changed.clear()
                    await changed.wait()

    reading = asyncio.ensure_future(read())
    reading.add_done_callback(lambda _: changed.set())
    try:
        await gate.passed()
        while True:
            while waiting:
                delta = waiting.popleft()
                if not waiting:
                    changed.set()
                yield delta
            if reading.done():
                break
            changed.clear()
            await changed.wait()
        reading.result()
    finally:
        reading.cancel()
        interrupted = await wait_shielded(reading)
        if not reading.cancelled():
            reading.exception()  # so that asyncio does not log it
        if interrupted is not None:
            raise interrupted
