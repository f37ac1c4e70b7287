"""A job's slot under a limit: held while its body runs, lent while it waits for the tree (T9)."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import TYPE_CHECKING, Any, cast

from ._frames import is_sleeping, mark_driver
from ._record import Record
from ._task_waits import LocalFuture, Wait, ends_here, reach

if TYPE_CHECKING:
    from ._node import Node
    from ._queue import Queue

__all__ = ["LentWait", "Slot"]


class Slot:
    """A slot under a limit, from the start of one attempt's body to its end.

    Whenever the body is stepped it is held. It is lent while the body is suspended and what it
    awaits leads, by itself or through other tasks, to a `Wait`; so what other tasks of the job do
    while the body runs, or waits for something else, does not count. A `Wait` for the job's own
    work, as a step is, leads on to what that waits for.
    """

    __slots__ = (
        "_body",
        "_calls",
        "_job",
        "_on",
        "_reached",
        "_rests",
        "_side",
        "_since",
        "is_held",
        "queue",
    )

    def __init__(self, queue: Queue, job: Record) -> None:
        self.queue = queue
        self.is_held = True
        self._job = job
        # What the suspended body awaits; None while it runs, and before and after that.
        self._on: asyncio.Future[Any] | None = None
        self._since = 0.0  # when it was suspended
        self._body: Coroutine[Any, Any, Any] | None = None
        # The tasks for which the suspended body waits, as far as they can be seen.
        self._reached: dict[asyncio.Task[Any], None] = {}
        # What it waits for in the tree; the slot is lent while there is any of it.
        self._rests: set[asyncio.Future[Any]] = set()
        # The waits of the job's own tasks, whether the body waits for them or not.
        self._side: set[asyncio.Future[Any]] = set()
        # Woken when the slot is held again.
        self._calls: list[asyncio.Future[None]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop of its commander; a job's context may be carried to others."""
        return self.queue.loop

    @property
    def wanted(self) -> bool:
        """Whether the body could go on, but for a slot."""
        return self in self.queue.resuming

    @mark_driver
    @coroutine
    def drive(self, body: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run `body`, which is stepped only while the slot is held.

        A job that is being cancelled gets it at once, above the limit if need be: a clean-up must
        not wait for others.
        """
        step: Any = body.send
        argument: Any = None
        try:
            while True:
                try:
                    on = step(argument)
                except StopIteration as end:
                    return end.value
                if isinstance(on, asyncio.Future):  # a bare yield goes on in the next turn
                    self._body, self._on, self._since = body, on, self.loop.time()
                    if isinstance(on, Wait) and self._work_of(on) is None:
                        self._rest_on(on)
                    else:
                        self.look()
                try:
                    yield on
                    step, argument = body.send, None
                except GeneratorExit:
                    raise
                except BaseException as error:  # noqa: BLE001 - it is for the body
                    step, argument = body.throw, error
                self._on = None
                self._reached = {}
                self._rests.clear()
                self.queue.stir()
                self.queue.forget(self)
                if not self.is_held:
                    self.queue.ask(self)
                while not self.is_held:
                    if self._job.is_ending:
                        self.queue.take(self)
                        break
                    try:
                        yield from self._call()
                    except asyncio.CancelledError as error:
                        step, argument = body.throw, error
        finally:
            body.close()

    def look(self) -> None:
        """Lend the slot if what the suspended body awaits leads to the tree."""
        if self._on is None:
            return
        self._reached, waits, _ = reach(self._body, self._on, self._work_of)
        for wait in waits:
            self._rest_on(wait)
        self.doubt()

    def _work_of(self, wait: Wait) -> list[asyncio.Task[Any]] | None:
        """Return the tasks of the job's own work for which `wait` waits; None if of anything else.

        Work that has ended and waits for its children is done by those of them that are work too.
        """
        node: Node[Any] | None = getattr(wait, "node", None)  # gone once its coroutine was closed
        if node is None or not node._node_is_work:
            return None
        tasks: list[asyncio.Task[Any]] = []
        records = [node._node_record]
        while records:
            if (record := records.pop()) is None or not self._is_work(record):
                return None
            if record.task is not None:
                tasks.append(record.task)
            else:
                records += record.unfinished_children
        return tasks

    def _is_work(self, record: Record) -> bool:
        if record.waits_for_others or (
            record.scope is not None and record.scope.cancel_reason is not None
        ):
            return False  # it waits for others
        above: Record | None = record
        while above is not None and above.node._node_is_work:
            above = above.parent
        return above is self._job

    def doubt(self) -> None:
        """Have the slot looked at again, if it is held while the body is suspended."""
        if self.is_held and self._on is not None:
            self.queue.suspect(self)

    def lend_unseen(self) -> bool:
        """Lend the slot if the body may wait for what its own tasks or threads wait for."""
        if self._on is None or not self.is_held or not self._side or is_sleeping(self._body):
            return False
        self._rest_on(self._on)
        return True

    def lend_stuck(self, patience: float) -> bool:
        """Lend the slot if the body has long stood where only other code here can wake it."""
        if self._on is None or not self.is_held or self.loop.time() - self._since < patience:
            return False
        ends = reach(self._body, self._on, self._work_of)[2]
        if not ends or not all(map(ends_here, ends)):
            return False
        self._rest_on(self._on)
        return True

    def _rest_on(self, wait: asyncio.Future[Any]) -> None:
        if not self._rests:
            self.queue.lend(self)
        self._rests.add(wait)
        wait.add_done_callback(self.over)

    def over(self, wait: asyncio.Future[Any]) -> None:
        """Ask for the slot again if `wait` was the last for which it was lent."""
        self._side.discard(wait)
        self._rests.discard(wait)
        if not self._rests and not self.is_held:
            self.look()
            if not self._rests:
                self.queue.ask(self)

    def resume(self) -> None:
        """Ask for the slot again if work of this job that has waited for others goes on."""
        self._rests.clear()
        self.look()
        if not self._rests and not self.is_held:
            self.queue.ask(self)

    def lent_wait(self, node: Node[Any]) -> Wait:
        """Return a `Wait` for `node`, for the current task, which belongs to this job."""
        lent_wait = LentWait(self)
        lent_wait.node = node
        if not node._node_is_work or self._work_of(lent_wait) is None:
            self.note(lent_wait)
        else:
            self.queue.loop.call_soon(self.look)  # this work may wait for the tree from now on
        return lent_wait

    def note(self, wait: asyncio.Future[Any]) -> None:
        """Note that a task or a thread of this job waits for the tree until `wait` is done."""
        self._side.add(wait)
        wait.add_done_callback(self.over)
        if self._on is None:
            return
        if asyncio.current_task() in self._reached:
            self._rest_on(wait)
        elif self.is_held:
            self.doubt()
            self.queue.loop.call_soon(self.look)

    def wake(self) -> None:
        """Wake whoever waits for the slot."""
        calls, self._calls = self._calls, []
        for call in calls:
            if not call.done():
                call.set_result(None)

    def _call(self) -> Generator[Any, None, None]:
        call = LocalFuture(loop=self.queue.loop)
        self._calls.append(call)
        yield from call

    @coroutine
    def hold_back(self) -> Generator[Any, None, None]:
        """Wait, in another task of the job than the body's, while the slot is wanted again."""
        while self.wanted:
            yield from self._call()

    def release(self) -> None:
        """Give the slot up: the body is over."""
        self._job.slot = None
        self._body = self._on = None
        self._rests.clear()
        self.queue.forget(self)
        self.queue.leave(self)
        self.wake()


class LentWait(Wait):
    """The wait of a task of a job that has a slot.

    The slot is asked for in the moment in which the wait ends and not when the task next runs: a
    new start could come between the two. The task goes on when the job has it.
    """

    __slots__ = ("_seat",)

    def __init__(self, slot: Slot) -> None:
        super().__init__(loop=slot.loop)
        self._seat = slot

    def set_result(self, result: None) -> None:
        """End the wait."""
        super().set_result(result)
        self._seat.over(self)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait, and say so."""
        if not self.done():
            try:
                yield from super().__await__()
            finally:
                self._seat.over(self)
            yield from cast("Generator[Any, None, None]", self._seat.hold_back())

    __iter__ = __await__
