"""The vLLM engine: a thread and loop of its own, shared by all who ask for the same settings.

vLLM binds an engine to the loop that starts it. In a loop of its own it outlives the program's
loops (a `run` after a `run`, `stream_sync`), is never held up by a job that blocks, and serves
all of them with one copy of the weights.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import os
import signal
import threading
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any

from ..commander.errors import (
    AnabranchError,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ModelNotFound,
)
from ..messages import Delta
from ._wire import PerLoop

__all__ = ["Engine", "Loaded", "Work", "vllm_module"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A running AsyncLLM, and what its model brings: sampling defaults and chat template."""

    llm: Any
    sampling: Mapping[str, Any]
    chat_template: str


Work = Callable[[Loaded], AsyncGenerator[Delta, None]]
_Item = Delta | BaseException | None  # None: the end


def vllm_module(name: str = "vllm") -> Any:
    """Import a module of vLLM, which takes seconds the first time.

    Unless the user has said otherwise, vLLM's own log is left to errors and goes to stderr: it
    would write over a chat. Its processes are spawned: ours has threads, which a fork breaks.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    return importlib.import_module(name)


class _Mailbox:
    """The way from the engine's thread to one loop.

    A wake-up is sent only if none is under way, so that what the engine makes in one step for
    many requests crosses together.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._items: deque[tuple[_Ticket, _Item]] = deque()
        self._waking = False

    def put(self, ticket: _Ticket, item: _Item) -> None:
        """Hand an item to the loop; called in the engine's thread. Raises if the loop is closed."""
        self._items.append((ticket, item))
        if not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._deliver)

    def _deliver(self) -> None:
        # Before the items are read: one that is appended after this sends a wake-up of its own.
        self._waking = False
        while self._items:
            ticket, item = self._items.popleft()
            ticket.items.append(item)
            ticket.over = not isinstance(item, Delta)
            ticket.ready.set()


class _Ticket:
    """One request: what came for it and was not yet read, and the task that works on it."""

    __slots__ = ("items", "over", "ready", "task")

    def __init__(self) -> None:
        self.items: deque[_Item] = deque()
        self.ready = asyncio.Event()
        self.over = False  # nothing more will come
        self.task: asyncio.Task[None] | None = None  # of the engine's loop, touched only there

    async def take(self) -> Delta | None:
        """Wait for the next delta; None is the end. Raises the failure that ended it."""
        while not self.items:
            self.ready.clear()
            await self.ready.wait()
        item = self.items.popleft()
        if isinstance(item, BaseException):
            raise item
        return item

    async def ended(self) -> None:
        """Wait until nothing more will come."""
        while not self.over:
            self.ready.clear()
            await self.ready.wait()


class Engine:
    """A running vLLM engine. Get it with `Engine.open`, give it back with `close`.

    `dead` says that it failed for good; whoever asks next is given a new one.
    """

    _open: dict[str, Engine] = {}  # noqa: RUF012 - process-wide on purpose
    _lock = threading.Lock()

    def __init__(self, key: str, arguments: Mapping[str, Any]) -> None:
        self.dead = False
        self._key = key
        self._arguments = arguments
        self._users = 0
        self._mailboxes = PerLoop(_Mailbox)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()  # of the engine's loop
        self._tasks: set[asyncio.Task[None]] = set()
        self._model: Loaded | None = None
        self._loaded: Future[None] = Future()
        self._ended: Future[None] = Future()
        for future in (self._loaded, self._ended):
            future.set_running_or_notify_cancel()  # so that no waiter can cancel it for all
        # A daemon: a program that ends without closing its backend does not wait for the engine.
        self._thread = threading.Thread(target=self._serve, name="anabranch-vllm", daemon=True)
        self._thread.start()

    @classmethod
    def open(cls, arguments: Mapping[str, Any]) -> Engine:
        """Return the engine with these arguments, made now if there is none, with one user more."""
        key = json.dumps(arguments, sort_keys=True, default=repr)
        with cls._lock:
            engine = cls._open.get(key)
            if engine is None:
                engine = cls._open[key] = cls(key, arguments)
            engine._users += 1
            return engine

    async def loaded(self) -> None:
        """Wait until the model is loaded; cancelling stops the wait, not the loading.

        Raises `ConfigurationError` or `ModelNotFound`.
        """
        await asyncio.wrap_future(self._loaded)

    async def close(self) -> None:
        """Give the engine back; the last user's call waits until it is shut down.

        A reply that is still being given there breaks off. Loading cannot be interrupted: it is
        waited for.
        """
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._retire()
        await asyncio.wrap_future(self._ended)
        self._thread.join()  # it has nothing left to do

    async def run(self, work: Work) -> AsyncGenerator[Delta, None]:
        """Do `work` in the engine's loop and yield what it makes.

        Closing the generator cancels the work and waits until it has ended. Raises
        `BackendUnavailable` if the engine dies or is closed meanwhile.
        """
        ticket = _Ticket()
        self._call(self._begin, ticket, self._mailboxes.get(), work)
        try:
            while (delta := await ticket.take()) is not None:
                yield delta
        finally:
            if not ticket.over:
                self._call(self._cancel, ticket)
                await ticket.ended()

    def _call(self, fn: Callable[..., None], *arguments: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(fn, *arguments)
        except RuntimeError:  # its loop is closed
            raise BackendUnavailable("the vLLM engine was closed") from None

    def _retire(self) -> None:
        """Serve nobody new, and end."""
        with self._lock:
            if self._open.get(self._key) is self:
                del self._open[self._key]
        try:
            self._loop.call_soon_threadsafe(self._stop.set)
        except RuntimeError:
            return  # it has ended already

    # What follows runs in the engine's thread.

    def _serve(self) -> None:
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._live())
        finally:
            self._loop.close()
            self._ended.set_result(None)

    async def _live(self) -> None:
        try:
            self._model = model = _load(self._arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiters get it
            self.dead = True
            self._retire()
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(None)
        await self._stop.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks)
        model.llm.shutdown()
        del model
        self._model = None
        gc.collect()  # vLLM leaves cycles, which would be taken apart as the interpreter ends
        await _cancel_all_others()

    def _begin(self, ticket: _Ticket, mailbox: _Mailbox, work: Work) -> None:
        ticket.task = asyncio.ensure_future(self._work(ticket, mailbox, work))
        self._tasks.add(ticket.task)
        ticket.task.add_done_callback(self._tasks.discard)

    def _cancel(self, ticket: _Ticket) -> None:
        assert ticket.task is not None
        ticket.task.cancel()

    async def _work(self, ticket: _Ticket, mailbox: _Mailbox, work: Work) -> None:
        end: BaseException | None = None
        try:
            if self._stop.is_set() or self._model is None:
                raise asyncio.CancelledError
            async with aclosing(work(self._model)) as deltas:
                async for delta in deltas:
                    mailbox.put(ticket, delta)
        except asyncio.CancelledError:
            end = BackendUnavailable("the vLLM engine was closed while it answered")
        except Exception as error:  # noqa: BLE001 - it is raised where the reply is read
            end = self._failure(error)
        try:
            mailbox.put(ticket, end)
        except RuntimeError:
            return  # the reader's loop is closed: nobody can be waiting

    def _failure(self, error: Exception) -> Exception:
        failure: BackendError
        if isinstance(error, AnabranchError):
            return error
        if isinstance(error, vllm_module("vllm.v1.engine.exceptions").EngineDeadError):
            self.dead = True
            self._retire()
            failure = BackendUnavailable("the vLLM engine died; the next request starts a new one")
        else:  # a chat template, a schema: these may raise anything
            failure = BackendError(f"vLLM failed: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return failure


def _load(arguments: Mapping[str, Any]) -> Loaded:
    """Start the engine and wait for it."""
    vllm = vllm_module()
    _check_arguments(vllm.AsyncEngineArgs, arguments)
    _keep_interrupts_from_children()
    try:
        args = vllm.AsyncEngineArgs(**arguments)
        make = vllm_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args
        # No name for it here: vLLM keeps this frame, and with it all that is named.
        return _loaded(make(args))
    except OSError as error:
        raise ModelNotFound(f"no model {arguments['model']!r}: {error}") from error
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"vLLM does not start with {arguments['model']!r}: {error}"
            " (VLLM_LOGGING_LEVEL=INFO makes it tell more)"
        ) from error


def _loaded(llm: Any) -> Loaded:
    template = getattr(llm.get_tokenizer(), "chat_template", None)
    return Loaded(llm, llm.model_config.get_diff_sampling_param(), str(template or ""))


def _check_arguments(made_of: Any, arguments: Mapping[str, Any]) -> None:
    if unknown := arguments.keys() - made_of.__dataclass_fields__.keys():
        raise ConfigurationError(f"vLLM has no engine argument {', '.join(sorted(unknown))}")


def _keep_interrupts_from_children() -> None:
    """Let Ctrl-C reach this process alone.

    A terminal sends it to the engine's processes as well, and they would end with it. They
    inherit this thread's mask; Python's own threads do not need the signal.
    """
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it would unblock the signal if it started later
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


async def _cancel_all_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
