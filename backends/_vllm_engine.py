"""The vLLM engine, in an event loop of its own.

vLLM binds an engine to the loop that starts it. In a loop of its own it outlives the program's
loops (a `run` after a `run`, `stream_sync`), is never held up by a job that blocks, and serves
all of them with one copy of the weights.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import os
import signal
from collections.abc import AsyncGenerator, Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from typing import Any, ClassVar, TypeAlias

from ..commander.errors import (
    AnabranchError,
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ModelNotFound,
)
from ..messages import Delta
from ._engine import SharedEngine, Ticket

__all__ = ["Loaded", "VLLMEngine", "vllm_module"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A running AsyncLLM, and what its model brings: sampling defaults and chat template."""

    llm: Any
    sampling: Mapping[str, Any]
    chat_template: str


Work: TypeAlias = Callable[[Loaded], AsyncGenerator[Delta, None]]
"""Runs in the engine's loop."""


def vllm_module(name: str = "vllm") -> Any:
    """Import a module of vLLM, which takes seconds the first time.

    Unless the user has said otherwise, vLLM's own log is left to errors and goes to stderr: it
    would write over a chat. Its processes are spawned: ours has threads, which a fork breaks.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    return importlib.import_module(name)


class VLLMEngine(SharedEngine[Mapping[str, Any], Work]):
    """Loads the model as soon as it is opened, and works on all requests at once.

    `dead` says that it failed for good; whoever asks next is given a new one.
    """

    thread_name: ClassVar = "anabranch-vllm"

    def __init__(self, key: Hashable, arguments: Mapping[str, Any]) -> None:
        super().__init__(key, arguments)
        self.dead = False
        self.model: Loaded | None = None  # while it is loaded
        self._loop = asyncio.new_event_loop()
        self._loaded: Future[None] = Future()
        self._loaded.set_running_or_notify_cancel()  # so that no waiter can cancel it for all
        # Of the engine's loop, and touched only there.
        self._stopping = asyncio.Event()
        self._tasks: dict[Ticket[Work], asyncio.Task[None]] = {}

    async def loaded(self) -> None:
        """Wait until the model is loaded; cancelling stops the wait, not the loading.

        Raises `ConfigurationError` or `ModelNotFound`.
        """
        await asyncio.wrap_future(self._loaded)

    def begin(self, ticket: Ticket[Work]) -> None:
        """Start a task for it."""

        def start() -> None:
            self._tasks[ticket] = task = self._loop.create_task(self._answer(ticket))
            task.add_done_callback(end)

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[ticket]
            if task.cancelled():  # also where it had not begun
                ticket.put(BackendUnavailable("the vLLM engine was closed while it answered"))

        self._call(start)

    async def leave(self, ticket: Ticket[Work]) -> None:
        """Cancel its task, which aborts the request in vLLM, and wait until that is done."""

        def cancel() -> None:
            if ticket in self._tasks:
                self._tasks[ticket].cancel()

        self._call(cancel)
        await ticket.ended()

    def stop(self) -> None:
        """Break off every reply and shut vLLM down. Loading cannot be interrupted."""
        self._call(self._stopping.set)

    def _call(self, fn: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed: the engine has ended, and all tickets
            self._loop.call_soon_threadsafe(fn)

    def serve(self) -> None:
        """Load the model and run the loop until `stop`."""
        try:
            asyncio.set_event_loop(self._loop)
            self._loop.run_until_complete(self._serve())
        finally:
            self._loop.close()

    async def _serve(self) -> None:
        try:
            self.model = model = _load(self.arguments)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the waiters get it
            self.dead = True
            self.retire()
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(None)
        await self._stopping.wait()
        await _cancel(self._tasks.values())
        model.llm.shutdown()
        del model
        self.model = None
        gc.collect()  # vLLM leaves cycles, which would be taken apart as the interpreter ends
        await _cancel(asyncio.all_tasks() - {asyncio.current_task()})

    async def _answer(self, ticket: Ticket[Work]) -> None:
        end: BaseException | None = None
        try:
            if self._stopping.is_set() or self.model is None:
                raise asyncio.CancelledError
            async with aclosing(ticket.work(self.model)) as deltas:
                async for delta in deltas:
                    ticket.put(delta)
                    if ticket.left:
                        break
        except AnabranchError as error:
            end = error
        except Exception as error:  # noqa: BLE001 - it is raised where the reply is read
            if isinstance(error, vllm_module("vllm.v1.engine.exceptions").EngineDeadError):
                self.dead = True
                self.retire()
                end = BackendUnavailable("the vLLM engine died; the next request starts a new one")
            else:  # a chat template, a schema: these may raise anything
                end = BackendError(f"vLLM failed: {type(error).__name__}: {error}")
            end.__cause__ = error
        ticket.put(end)


async def _cancel(tasks: Iterable[asyncio.Task[Any]]) -> None:
    tasks = [*tasks]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _load(arguments: Mapping[str, Any]) -> Loaded:
    """Start the engine and wait for it."""
    vllm = vllm_module()
    if unknown := arguments.keys() - vllm.AsyncEngineArgs.__dataclass_fields__.keys():
        raise ConfigurationError(f"vLLM has no engine argument {', '.join(sorted(unknown))}")
    # Let Ctrl-C reach this process alone. A terminal sends it to the engine's processes as well,
    # and they would end with it. They inherit this thread's mask; Python's own threads do not need
    # the signal.
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it would unblock the signal if it started later
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
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
