"""A job's slot under `max_concurrency`. A job lends it while its body waits for the tree (T9).

Bodies do not announce their waits. `Slot.drive` steps the body, so it sees each future that the
body awaits, and `reach` finds the nodes behind it.
"""

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
    """The slot of one attempt, from the start of its body to its end.

    Invariant: the job holds the slot whenever its body is stepped. It lends the slot while the body
    is suspended and the awaited future leads, directly or through other tasks, to a `Wait`. Waits
    of the job's other tasks do not count while the body runs or waits for something else. From a
    `Wait` for the job's own work, such as a step, the search continues at the waits of that work.
    """

    __slots__ = (
        "_body",
        "_calls",
        "_job",
        "_on",
        "_reached",
        "_side_waits",
        "_suspended_at",
        "_tree_waits",
        "is_held",
        "queue",
    )

    def __init__(self, queue: Queue, job: Record) -> None:
        self.queue: Queue = queue
        self.is_held: bool = True
        self._job = job
        # The future that the suspended body awaits; None while it runs, before and after.
        self._on: asyncio.Future[Any] | None = None
        self._suspended_at = 0.0
        self._body: Coroutine[Any, Any, Any] | None = None
        # The tasks that the suspended body waits for, as far as `reach` finds them.
        self._reached: dict[asyncio.Task[Any], None] = {}
        # The suspended body's waits for the tree. The slot is lent until all have ended.
        self._tree_waits: set[asyncio.Future[Any]] = set()
        # The waits of other tasks and threads of the job, whether the body waits for them or not.
        self._side_waits: set[asyncio.Future[Any]] = set()
        # Futures of the code that waits until the job holds the slot again.
        self._calls: list[asyncio.Future[None]] = []

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The commander's loop. Code with the job's context may run on another one."""
        return self.queue.loop

    @property
    def wanted(self) -> bool:
        """Whether the body could continue but waits for a slot."""
        return self in self.queue.resuming

    @mark_driver
    @coroutine
    def drive(self, body: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run `body`; step it only while the slot is held.

        A job that is ending gets the slot at once, also above the limit, because its clean-up must
        not wait for other jobs.
        """
        step: Any = body.send
        argument: Any = None
        try:
            while True:
                try:
                    on = step(argument)
                except StopIteration as end:
                    return end.value
                if isinstance(on, asyncio.Future):  # else a bare yield, which resumes next turn
                    self._body, self._on, self._suspended_at = body, on, self.loop.time()
                    if isinstance(on, Wait) and self._work_of(on) is None:
                        self._lend_until(on)  # the usual case, without a search
                    else:
                        self.lend_if_waiting()
                try:
                    yield on
                    step, argument = body.send, None
                except GeneratorExit:  # not for `body.throw`: `finally` closes the body
                    raise
                except BaseException as error:  # noqa: BLE001 - the body gets it
                    step, argument = body.throw, error
                # The body continues. Forget its waits, also those that a cancel ended early: with a
                # wait left in the set, `_lend_until` would not lend the slot.
                self._on = None
                self._reached = {}
                self._tree_waits.clear()
                self.queue.stir()
                self.queue.forget(self)
                if not self.is_held:
                    self.queue.ask(self)
                while not self.is_held:  # a loop: a cancel ends a call before the slot is held
                    if self._job.is_ending:
                        self.queue.take(self)
                        break
                    try:
                        yield from self._call()
                    except asyncio.CancelledError as error:
                        step, argument = body.throw, error
        finally:
            body.close()

    def lend_if_waiting(self) -> None:
        """Lend the slot if the future of the suspended body leads to the tree."""
        if self._on is None:
            return
        self._reached, waits, _ = reach(self._body, self._on, self._work_of)
        for wait in waits:
            self._lend_until(wait)
        self.suspect()

    def _work_of(self, wait: Wait) -> list[asyncio.Task[Any]] | None:
        """Return the tasks of the job's own work behind `wait`; None if it waits for other nodes.

        A work node that waits for its children continues in those of them that are work too.
        """
        node: Node[Any] | None = getattr(wait, "node", None)  # deleted when the wait was closed
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
            return False  # it waits for other nodes
        above: Record | None = record
        while above is not None and above.node._node_is_work:
            above = above.parent
        return above is self._job

    def suspect(self) -> None:
        """Let the queue check the slot again, if it is held while the body is suspended."""
        if self.is_held and self._on is not None:
            self.queue.suspect(self)

    def lend_unseen(self) -> bool:
        """Lend the slot if the body perhaps waits for one of the job's other tasks or threads."""
        if self._on is None or not self.is_held or not self._side_waits or is_sleeping(self._body):
            return False
        self._lend_until(self._on)
        return True

    def lend_stuck(self, seconds: float) -> bool:
        """Lend the slot if the body has waited for other code of this process for `seconds`."""
        if self._on is None or not self.is_held or self.loop.time() - self._suspended_at < seconds:
            return False
        ends = reach(self._body, self._on, self._work_of)[2]
        if not ends or not all(map(ends_here, ends)):
            return False
        self._lend_until(self._on)
        return True

    def _lend_until(self, wait: asyncio.Future[Any]) -> None:
        if not self._tree_waits:
            self.queue.lend(self)
        self._tree_waits.add(wait)
        wait.add_done_callback(self.end_wait)

    def end_wait(self, wait: asyncio.Future[Any]) -> None:
        """Note the end of `wait`. After the last wait of a lent slot, ask for the slot again."""
        self._side_waits.discard(wait)
        self._tree_waits.discard(wait)
        if not self._tree_waits and not self.is_held:
            self.lend_if_waiting()  # the body may wait for another task of the tree by now
            if not self._tree_waits:
                self.queue.ask(self)

    def resume(self) -> None:
        """Ask for the slot again after work of this job has left a `lend_slot` block."""
        self._tree_waits.clear()
        self.lend_if_waiting()  # the body may wait for another task of the tree by now
        if not self._tree_waits and not self.is_held:
            self.queue.ask(self)

    def lent_wait(self, node: Node[Any]) -> Wait:
        """Return a `Wait` for `node` for the current task, which runs in this job's context."""
        lent_wait = LentWait(self)
        lent_wait.node = node
        if not node._node_is_work or self._work_of(lent_wait) is None:
            self.note(lent_wait)
        else:
            # On the next turn, when the task awaits it. The work itself may wait for the tree.
            self.queue.loop.call_soon(self.lend_if_waiting)
        return lent_wait

    def note(self, wait: asyncio.Future[Any]) -> None:
        """Note that a task or a thread of this job waits for the tree until `wait` is done."""
        self._side_waits.add(wait)
        wait.add_done_callback(self.end_wait)
        if self._on is None:
            return
        if asyncio.current_task() in self._reached:
            self._lend_until(wait)  # the suspended body waits for this task
        elif self.is_held:
            self.suspect()
            self.queue.loop.call_soon(self.lend_if_waiting)

    def wake(self) -> None:
        """Wake the code that waits until the job holds the slot."""
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
        """Wait while the job waits for its slot. For tasks of the job other than the body."""
        while self.wanted:
            yield from self._call()

    def release(self) -> None:
        """Free the slot after the end of the body."""
        self._job.slot = None
        self._body = self._on = None
        self._tree_waits.clear()
        self.queue.forget(self)
        self.queue.leave(self)
        self.wake()


class LentWait(Wait):
    """A wait of a task of a job with a slot.

    The job asks for its slot when the wait ends, not when the task next runs: a new job could start
    between the two. The task continues when the job has the slot.
    """

    __slots__ = ("_slot",)

    def __init__(self, slot: Slot) -> None:
        super().__init__(loop=slot.loop)
        self._slot = slot

    def set_result(self, result: None) -> None:
        """End the wait."""
        super().set_result(result)
        self._slot.end_wait(self)

    def __await__(self) -> Generator[Any, None, None]:
        """Wait until the result is set and the job has its slot."""
        if not self.done():
            try:
                yield from super().__await__()
            finally:
                self._slot.end_wait(self)  # also after a cancel, which sets no result
            yield from cast("Generator[Any, None, None]", self._slot.hold_back())

    __iter__ = __await__
