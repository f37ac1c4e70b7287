"""The process of `in_process`: it runs one function and sends its outcome to the parent."""

from __future__ import annotations

import asyncio
import io
import os
import pickle
import signal
import sys
import threading
import traceback
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from multiprocessing.spawn import prepare
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from . import _blocking
from ._report import describe
from .context import receive_context


def main() -> None:
    """Read the call from standard input, run it, write the pickled outcome to standard output.

    SIGTERM raises `CancelledError` in the function, and in `check_cancelled` from then on. The
    process ends when its parent does. The function's output goes to standard error, and its input
    is empty.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        first, _blocking.process_is_stopping = not _blocking.process_is_stopping, True
        if first:
            raise asyncio.CancelledError

    def leave_with_parent() -> None:
        _read(parent, 1)
        if not _blocking.process_is_stopping:
            if hasattr(os, "killpg"):
                os.killpg(0, signal.SIGKILL)  # with all that the function has started
            os._exit(1)

    def close_pipes() -> None:
        # In a fork of this process. Otherwise the parent would wait for the fork too.
        channel.close()
        os.close(parent)

    signal.signal(signal.SIGTERM, stop)
    _blocking.process_is_stopping = False
    parent, channel = os.dup(0), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=close_pipes)
    work = _read(parent, int.from_bytes(_read(parent, 8), "big"))
    threading.Thread(target=leave_with_parent, daemon=True).start()
    outcome = _run(work)
    with suppress(BrokenPipeError), channel:  # the parent has ended
        channel.write(len(outcome).to_bytes(8, "big") + outcome)


def _read(parent: int, size: int) -> bytes:
    # Unbuffered: the thread that waits for the parent's end would hold the buffer's lock, and the
    # interpreter needs that lock at exit.
    parts: list[bytes] = []
    while size and (part := os.read(parent, min(size, 1 << 20))):
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _run(work: bytes) -> bytes:
    main = None
    try:
        preparation, call, context = pickle.loads(work)  # noqa: S301 - the parent wrote it
        main = _Main(preparation.pop(BY_NAME, None), preparation.pop(BY_PATH, None))
        prepare(preparation)
        receive_context(context, partial(_load, main))
        function, args, kwargs = _load(main, call)
        return pickle.dumps((True, function(*args, **kwargs), ""))
    except (SystemExit, KeyboardInterrupt):
        raise  # they end this process, not the parent
    except BaseException as error:  # noqa: BLE001 - the parent raises it
        trace = f"in the process:\n{traceback.format_exc()}"
        if main is not None and isinstance(error, (NameError, AttributeError)):
            trace += main.stopped  # the missing name may be defined below that line
        try:
            pickled = pickle.dumps((False, error, trace))
            pickle.loads(pickled)  # noqa: S301 - some exceptions can be pickled, but not unpickled
        except Exception:  # noqa: BLE001 - pickling runs the exception's own code
            stand_in: Any = RuntimeError(describe(error))
            return pickle.dumps((False, stand_in, trace))
        return pickled


# The keys of multiprocessing's preparation data for the parent's main file.
BY_NAME, BY_PATH = "init_main_from_name", "init_main_from_path"


class _Main:
    """The parent's main file. It is run at the first use of a definition, up to its own tree."""

    def __init__(self, name: str | None, path: str | None) -> None:
        self._name = name
        self._path = path
        self._loaded = False
        # Why it was not run to its end, for error messages.
        self.stopped = ""

    def load(self) -> None:
        if self._loaded:
            return
        self._loaded = True
        module = ModuleType("__mp_main__")
        sys.modules["__main__"] = sys.modules["__mp_main__"] = module
        if self._name is not None:
            spec: Any = find_spec(self._name)
            module.__spec__, module.__package__ = spec, spec.parent
            module.__file__ = spec.origin
            code = spec.loader.get_code(self._name)
        elif self._path is not None and Path(self._path).is_file():
            module.__file__ = self._path
            code = compile(Path(self._path).read_bytes(), self._path, "exec", dont_inherit=True)
        else:
            raise RuntimeError(
                "in_process cannot send functions and classes of a program without a file "
                "(python -c, a notebook): define them in a module"
            )
        _blocking.process_imports_main = True
        try:
            exec(code, vars(module))  # noqa: S102 - the program itself
        except BaseException as error:  # noqa: BLE001 - the needed name may be defined already
            what = "it started a tree" if isinstance(error, _blocking.TreeInMain) else repr(error)
            self.stopped = (
                f"{module.__file__} ran only as far as {what}: start the program at its end, under "
                "`if __name__ == '__main__':`"
            )
        finally:
            _blocking.process_imports_main = False


def _load(main: _Main, packed: bytes) -> Any:
    return _Reader(packed, main).load()


class _Reader(pickle.Unpickler):
    def __init__(self, call: bytes, main: _Main) -> None:
        super().__init__(io.BytesIO(call))
        self._main = main

    def find_class(self, module_name: str, global_name: str) -> Any:
        if module_name not in ("__main__", "__mp_main__"):
            return super().find_class(module_name, global_name)
        self._main.load()
        try:
            return super().find_class("__mp_main__", global_name)
        except AttributeError:
            raise RuntimeError(
                f"in_process did not find {global_name!r} in the program's main file. "
                + self._main.stopped
            ) from None
