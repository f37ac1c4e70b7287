"""Sessions: runs that stay open, and whose roots are calls, made one after the other."""

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
from ._file import ENDED
from ._json import digest
from ._run import SESSION, OwnedRun, acquired, note_taken
from ._scope import NodeScope
from ._state import FIRST, JournalState
from ._view import RunView, view
from .errors import JournalError, RunNotFound

if TYPE_CHECKING:
    from ._file import JournalFile, Letter

__all__ = ["Session", "SessionCall", "open_session"]

T = TypeVar("T")


class Written(Protocol[T]):
    """How the result of a call is stored."""

    def encode(self, value: T) -> bytes:
        """Return the value as JSON, or raise `NotStorable`."""
        ...

    def decode(self, data: bytes) -> T:
        """Return the value."""
        ...


class SessionCall:
    """A recorded call of a session, with its `inputs` as `Session.begin` got them."""

    def __init__(self, ledger: JournalState, ident: bytes, inputs: Any) -> None:
        self._ledger = ledger
        self.ident = ident
        self.inputs = inputs

    @property
    def over(self) -> bool:
        """Whether the call is over, with all that it has put."""
        return self._ledger.is_over(self.ident)

    @property
    def ended(self) -> bool:
        """Whether its result, failure or cancel is recorded."""
        ledger = self._ledger
        cut = self.cancelled or ledger.find(self.ident, "aborted") is not None
        return cut or self.over or ledger.outcome(self.ident) is not None

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return self.ident in self._ledger.cancelled

    @property
    def result(self) -> Any:
        """Its result as JSON data, or None."""
        row = self._ledger.outcome(self.ident)
        return json.loads(row.value) if row is not None and row.kind == "result" else None

    @property
    def usage(self) -> dict[str, Usage]:
        """Its usage by model, as recorded when it ended."""
        row = self._ledger.find(self.ident, "usage")
        taken: dict[str, Any] = {} if row is None else json.loads(row.value)
        return {model: Usage(**each) for model, each in taken.items()}

    @property
    def kept(self) -> Any:
        """The last value that `Session.keep` has stored for it, or None."""
        row = self._ledger.find(self.ident, "kept")
        return None if row is None else json.loads(row.value)


class Session(OwnedRun):
    """A run that never ends by itself, acquired by `Journal.session`.

    Its calls are made one after the other. A call that was interrupted, by a crash or the end of
    its tree, is the last in `calls` and not `over`: it is resumed before the next call begins.
    """

    def __init__(self, ledger: JournalState, *, grace: float) -> None:
        super().__init__(None, ledger, ended=False, grace=grace)
        self.is_calling = False
        self.calls = [
            SessionCall(ledger, row.ident, json.loads(row.value)["inputs"])
            for row in ledger.of_kind("root")
        ]

    def begin(self, inputs: Any) -> SessionCall:
        """Record a new call with these inputs, plain JSON; `make` then runs it."""
        ledger, number = self._ledger, len(self.calls) + 1
        text = Codec(Any, f"what {ledger.run_id} is called with").encode(inputs)
        ident, name = digest("call", number), json.dumps(f"call {number}").encode()
        data = ledger.append(ident, "root", b'{"name":%b,"inputs":%b}' % (name, text), find=True)
        self.calls.append(SessionCall(ledger, ident, json.loads(data)["inputs"]))
        return self.calls[-1]

    async def make(
        self,
        call: SessionCall,
        parent: Node[Any],
        work: Callable[[], Awaitable[T]],
        written: Written[T],
    ) -> T:
        """Run a call, or resume it, in a node below `parent`.

        Its result is durable when this returns. A call that has ended returns its recorded result.
        """
        self._early = []
        self._began = asyncio.get_running_loop().create_future()
        self._job, self._parent, self.error = _Call(call, work, written), parent, None
        self.is_calling = True
        try:
            await self.drive(parent)
        finally:
            self.is_calling = False
        return self.outcome()

    def keep(self, call: SessionCall, value: Any) -> None:
        """Store plain JSON beside the result of a call, in place of an earlier value."""
        if not self._ledger.suspended:
            self._ledger.record(call.ident, "kept", value, find=True)

    async def end(self, call: SessionCall) -> None:
        """End a call without a result, durably.

        For one that was begun only to store a value beside it, and for an interrupted one.
        """
        if not call.over:
            self._ledger.append(call.ident, "over", find=True)
        await self._ledger.barrier()

    async def look(self) -> RunView:
        """Return the view of this run."""
        return view(*await self._ledger.file.look(self.run_id))

    async def suspend(self) -> None:
        """Wait up to `grace` seconds for effects in progress, then stop the session."""
        if not self._ledger.suspended:
            await super()._suspend()

    def learn_keys(self, *owners: object) -> None:
        """Remove the keys of these backends from all that is written from now on."""
        self._ledger.keys.learn(*owners)

    def without_keys(self, value: Any) -> Any:
        """Return plain JSON data without keys."""
        return self._ledger.keys.cut(value)

    @property
    def run_id(self) -> str:
        """The run's name."""
        return self._ledger.run_id

    @property
    def rows(self) -> int:
        """The number of its last row."""
        return self._ledger.last

    # --- differences from other runs

    def ending(self) -> tuple[str, str | None]:
        return ("cancelled" if FIRST in self._ledger.cancelled else "suspended"), None

    def _put_roots(self, commander: Node[Any]) -> None:
        ledger, ident = self._ledger, self._job.call.ident
        ledger.roots.add(ident, self._job)
        attach_scope(self._job, NodeScope(ledger, ident, ident, None, ident), commander)
        commander.call_handler(self._job, claim=True)

    def _put_rounds(self, *_: object, **__: object) -> None:
        """Put none: rounds end with their call."""

    def _take_cancel(self, letter: Letter) -> None:
        if self._early is not None:
            self._early.append(letter)
            return
        ledger = self._ledger
        reason = json.loads(letter.value)
        ledger.keep_cancel([FIRST], reason)
        ledger.append(FIRST, "over", find=True)
        ledger.roots.stop(reason)
        note_taken(ledger, letter)

    async def _suspend(self) -> None:
        ledger = self._ledger
        if ledger.suspended or is_commander_ending(self._parent):
            await self.suspend()
        elif not ledger.roots.running:  # the call was cancelled, and so is over, before it was put
            ledger.append(self._job.call.ident, "over", find=True)
        if ledger.roots.running:
            await wait_shielded(observe(self._job))


class _Call(Node[T], Generic[T], internal=True):
    """One call of a session, in this execution."""

    _node_is_durable = True

    def __init__(
        self, call: SessionCall, work: Callable[[], Awaitable[T]], written: Written[T]
    ) -> None:
        super().__init__("call")
        self.call = call
        self._work = work
        self._written = written

    async def task(self) -> T:
        """Do the work of the call."""
        return await self._work()

    def _node_codec(self) -> Written[T]:
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
    if run is None or run.class_name != SESSION:
        run = await file.start(run_id, SESSION, 1, b"{}")
    if run.state in ENDED:
        raise JournalError(
            file.name,
            f"has ended the session {run_id!r} ({run.state})",
            "give another session_id=, or remove it: anabranch runs purge",
        )
    made = partial(Session, grace=grace)
    async with acquired(file, run_id, {}, made, max_recoveries=max_recoveries) as session:
        yield session
