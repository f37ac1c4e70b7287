"""The vLLM engine, in its own event loop.

vLLM binds an engine to the loop that starts it. In its own loop and thread, the engine outlives the
program's loops (a second `run`, `stream_sync`), is not delayed by jobs that block, and serves all
loops with one copy of the weights.
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

__all__ = ["LoadedModel", "VLLMEngine", "vllm_module"]


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """A running AsyncLLM, with its model's sampling defaults and chat template."""

    llm: Any
    sampling: Mapping[str, Any]
    chat_template: str


Work: TypeAlias = Callable[[LoadedModel], AsyncGenerator[Delta, None]]
"""A function that answers a request, in the engine's loop."""


def vllm_module(name: str = "vllm") -> Any:
    """Import a module of vLLM, which takes seconds the first time.

    Unless the user has set it, vLLM logs only errors, to stderr, because more would disturb a chat.
    Its processes are spawned, because a fork breaks in a process with threads.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_LOGGING_STREAM", "ext://sys.stderr")
    os.environ.setdefault("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    return importlib.import_module(name)


class VLLMEngine(SharedEngine[Mapping[str, Any], Work]):
    """Loads the model when it is opened, and works on all requests at once.

    `dead`: it has failed, and the next request must open a new one.
    """

    thread_name: ClassVar = "anabranch-vllm"

    def __init__(self, key: Hashable, arguments: Mapping[str, Any]) -> None:
        super().__init__(key, arguments)
        self.dead = False
        self.model: LoadedModel | None = None  # while loaded
        self._loop = asyncio.new_event_loop()
        self._loaded: Future[None] = Future()
        # so that a cancelled waiter does not cancel it for all
        self._loaded.set_running_or_notify_cancel()
        # Used only in the engine's loop.
        self._stopping = asyncio.Event()
        self._tasks: dict[Ticket[Work], asyncio.Task[None]] = {}

    async def loaded(self) -> None:
        """Wait until the model is loaded. Cancelling ends the wait, not the loading.

        Raises `ConfigurationError` or `ModelNotFound`.
        """
        await asyncio.wrap_future(self._loaded)

    def begin(self, ticket: Ticket[Work]) -> None:
        """Start a task for the ticket."""

        def start() -> None:
            self._tasks[ticket] = task = self._loop.create_task(self._answer(ticket))
            task.add_done_callback(end)

        def end(task: asyncio.Task[None]) -> None:
            del self._tasks[ticket]
            if task.cancelled():  # also if it had not started
                ticket.put(BackendUnavailable("the vLLM engine was closed during the reply"))

        self._call(start)

    async def leave(self, ticket: Ticket[Work]) -> None:
        """Cancel the ticket's task, which aborts the request in vLLM, and wait for its end."""

        def cancel() -> None:
            if ticket in self._tasks:
                self._tasks[ticket].cancel()

        self._call(cancel)
        await ticket.ended()

    def stop(self) -> None:
        """Break off all replies and shut vLLM down. Loading cannot be interrupted."""
        self._call(self._stopping.set)

    def _call(self, fn: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # the loop is closed, so all tickets have ended
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
        gc.collect()  # frees vLLM's reference cycles now, not at the interpreter's end
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


def _load(arguments: Mapping[str, Any]) -> LoadedModel:
    """Start the engine and wait for it."""
    vllm = vllm_module()
    if unknown := arguments.keys() - vllm.AsyncEngineArgs.__dataclass_fields__.keys():
        raise ConfigurationError(f"vLLM has no engine argument {', '.join(sorted(unknown))}")
    # Let Ctrl-C reach only this process. A terminal also sends it to the engine's processes, which
    # would end. They inherit this thread's mask. Python handles the signal in its main thread.
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # it would unblock the signal if it started later
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        args = vllm.AsyncEngineArgs(**arguments)
        make = vllm_module("vllm.v1.engine.async_llm").AsyncLLM.from_engine_args
        # No local variable for it: vLLM keeps this frame, and so would never free it.
        return _loaded(make(args))
    except OSError as error:
        raise ModelNotFound(f"vLLM cannot find {arguments['model']!r}: {error}") from error
    except (RuntimeError, ValueError) as error:
        raise ConfigurationError(
            f"vLLM cannot start {arguments['model']!r}: {error}"
            " (set VLLM_LOGGING_LEVEL=INFO for details)"
        ) from error


def _loaded(llm: Any) -> LoadedModel:
    template = getattr(llm.get_tokenizer(), "chat_template", None)
    return LoadedModel(llm, llm.model_config.get_diff_sampling_param(), str(template or ""))
