"""Sessions: runs that stay open. Their roots are calls, one after the other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from ..commander import Node
from ..commander.durable import attach_scope, is_commander_ending
from ..commander.waiting import observe, wait_shielded
from ..messages import Usage
from ._codec import Codec
from ._execution import FIRST_ROOT, Execution
from ._journal_file import ENDED_STATES, SESSION_CLASS
from ._json import digest
from ._run import OwnedRun, acquired, record_taken
from ._scope import NodeScope
from ._view import RunView, view
from .errors import JournalError, RunNotFound

if TYPE_CHECKING:
    from ._journal_file import JournalFile, Letter

__all__ = ["Session", "SessionCall", "open_session"]

T = TypeVar("T")


class ResultCodec(Protocol[T]):
    """Stores the result of a call."""

    def encode(self, value: T) -> bytes:
        """Return the value as JSON, or raise `NotStorable`."""
        ...

    def decode(self, data: bytes) -> T:
        """Return the value."""
        ...


class SessionCall:
    """A recorded call of a session, with its `inputs` as `Session.begin` got them."""

    def __init__(self, execution: Execution, ident: bytes, inputs: Any) -> None:
        self._execution = execution
        self.ident = ident
        self.inputs = inputs

    @property
    def is_over(self) -> bool:
        """Whether the call is over, with all that it has put."""
        return self._execution.is_over(self.ident)

    @property
    def has_ended(self) -> bool:
        """Whether its result, failure or cancel is recorded."""
        execution = self._execution
        cut = self.is_cancelled or execution.find(self.ident, "aborted") is not None
        return cut or self.is_over or execution.find_outcome(self.ident) is not None

    @property
    def is_cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.ident in self._execution.recorded_cancels

    @property
    def result(self) -> Any:
        """Its recorded result as JSON data, or None."""
        row = self._execution.find_outcome(self.ident)
        return json.loads(row.value) if row is not None and row.kind == "result" else None

    @property
    def usage(self) -> dict[str, Usage]:
        """Its usage by model, as recorded when it ended."""
        row = self._execution.find(self.ident, "usage")
        taken: dict[str, Any] = {} if row is None else json.loads(row.value)
        return {model: Usage(**each) for model, each in taken.items()}

    @property
    def stored_value(self) -> Any:
        """The last value that `Session.store_value` stored for it, or None."""
        row = self._execution.find(self.ident, "kept")
        return None if row is None else json.loads(row.value)


class Session(OwnedRun):
    """A run that ends only by a cancel, acquired by `Journal.session`.

    Its calls run one after the other. A call that was interrupted by a crash or the end of its tree
    is the last in `calls` and not over. Resume or `end` it before the next call begins.
    """

    def __init__(self, execution: Execution, *, grace: float) -> None:
        super().__init__(None, execution, ended=False, grace=grace)
        self.is_calling: bool = False
        self.calls: list[SessionCall] = [
            SessionCall(execution, row.ident, json.loads(row.value)["inputs"])
            for row in execution.rows_of_kind("root")
        ]

    def begin(self, inputs: Any) -> SessionCall:
        """Record a new call with these inputs, plain JSON; `run_call` then runs it."""
        execution, number = self._execution, len(self.calls) + 1
        text = Codec(Any, f"the inputs of a call of {execution.run_id}").encode(inputs)
        ident, name = digest("call", number), json.dumps(f"call {number}").encode()
        data = execution.append(ident, "root", b'{"name":%b,"inputs":%b}' % (name, text), find=True)
        self.calls.append(SessionCall(execution, ident, json.loads(data)["inputs"]))
        return self.calls[-1]

    async def run_call(
        self,
        call: SessionCall,
        parent: Node[Any],
        work: Callable[[], Awaitable[T]],
        written: ResultCodec[T],
    ) -> T:
        """Run a call, or resume it, in a node below `parent`.

        Its result is durable when this returns. A call that has ended returns its recorded result.
        """
        self._early_cancels = []
        self._began = asyncio.get_running_loop().create_future()
        self._job, self._parent = _SessionCallNode(call, work, written), parent
        self.error: BaseException | None = None
        self.is_calling = True
        try:
            await self.drive(parent)
        finally:
            self.is_calling = False
        return self.outcome()

    def store_value(self, call: SessionCall, value: Any) -> None:
        """Store plain JSON beside the result of a call, in place of an earlier value."""
        if not self._execution.suspended:
            self._execution.record(call.ident, "kept", value, find=True)

    async def end(self, call: SessionCall) -> None:
        """End a call without a result, durably.

        For one that was begun only to store a value beside it, and for an interrupted one.
        """
        if not call.is_over:
            self._execution.append(call.ident, "over", find=True)
        await self._execution.barrier()

    async def look(self) -> RunView:
        """Return the view of this run."""
        return view(*await self._execution.file.look(self.run_id))

    async def suspend(self) -> None:
        """Wait up to `grace` seconds for effects in progress, then stop the session."""
        if not self._execution.suspended:
            await super()._suspend()

    def learn_keys(self, *owners: object) -> None:
        """Remove the keys of these backends from all that is written from now on."""
        self._execution.keys.learn(*owners)

    def without_keys(self, value: Any) -> Any:
        """Return plain JSON data without keys."""
        return self._execution.keys.cut(value)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._execution.run_id

    @property
    def rows(self) -> int:
        """The number of its last row."""
        return self._execution.last_number

    # --- differences from other runs

    def ending(self) -> tuple[str, str | None]:
        return (
            "cancelled" if FIRST_ROOT in self._execution.recorded_cancels else "suspended"
        ), None

    def _put_roots(self, commander: Node[Any]) -> None:
        execution, ident = self._execution, self._job.call.ident
        execution.roots.add(ident, self._job)
        attach_scope(self._job, NodeScope(execution, ident, ident, None, ident), commander)
        commander.call_handler(self._job, claim=True)

    def _put_rounds(self, *_: object, **__: object) -> None:
        """Put none: rounds end with their call."""

    def _take_cancel(self, letter: Letter) -> None:
        if self._early_cancels is not None:
            self._early_cancels.append(letter)
            return
        execution = self._execution
        reason = json.loads(letter.value)
        execution.record_cancel([FIRST_ROOT], reason)
        # No node of a session is this root, so nothing else records its end.
        execution.append(FIRST_ROOT, "over", find=True)
        execution.roots.stop(reason)
        # Last: if the process dies before this, the next execution gets the letter again.
        record_taken(execution, letter)

    async def _suspend(self) -> None:
        execution = self._execution
        if execution.suspended or is_commander_ending(self._parent):
            await self.suspend()
        elif not execution.roots.running:  # the call was cancelled before it was put, so it is over
            execution.append(self._job.call.ident, "over", find=True)
        if execution.roots.running:
            await wait_shielded(observe(self._job))


class _SessionCallNode(Node[T], Generic[T], internal=True, name="_Call"):
    """One call of a session, in this execution."""

    _node_is_durable = True

    def __init__(
        self, call: SessionCall, work: Callable[[], Awaitable[T]], written: ResultCodec[T]
    ) -> None:
        super().__init__("call")
        self.call = call
        self._work = work
        self._written = written

    async def task(self) -> T:
        """Do the work of the call."""
        return await self._work()

    def _node_codec(self) -> ResultCodec[T]:
        return self._written


@asynccontextmanager
async def open_session(
    file: JournalFile, run_id: str, *, grace: float, max_recoveries: int
) -> AsyncGenerator[Session]:
    """Acquire a session for the block; create it if there is none of this name."""
    try:
        run = await file.run(
            run_id
        )  # without a commit: its owner may have been stopped in the middle of one
    except RunNotFound:
        run = None
    if run is None or run.class_name != SESSION_CLASS:
        run = await file.start(run_id, SESSION_CLASS, 1, b"{}")
    if run.state in ENDED_STATES:
        raise JournalError(
            file.name,
            f"has the session {run_id!r}, which is over ({run.state})",
            "use another session_id=, or remove it by anabranch runs purge",
        )
    make = partial(Session, grace=grace)
    async with acquired(file, run_id, {}, make, max_recoveries=max_recoveries) as session:
        yield session
