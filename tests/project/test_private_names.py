"""Private names of Python and of libraries: each is listed, and the package works without it."""

from __future__ import annotations

import ast
import asyncio
import gc
import os
import re
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest
from support.paths import ROOT

from anabranch.cluster import _cluster, _payload
from anabranch.commander import _cancel
from anabranch.commander.errors import ConfigurationError
from anabranch.commander.private import silence_unfinished
from anabranch.knowledge._read_main import read_table
from anabranch.testing import SeededLoop, _loop, _threads

ROOMS = sorted(link.name for link in (ROOT / "anabranch").iterdir() if link.is_symlink())

# Python documents these, though they begin with an underscore.
DOCUMENTED = {
    "_asdict", "_current_frames", "_exit", "_fields", "_make", "_name_", "_replace", "_value_",
}  # fmt: skip
# It inspects suspended tasks. tests/commander/test_t09_waits.py covers it.
APART = ROOT / "commander" / "_task_waits.py"


# --- with each name, and without it

TREE = """
import asyncio
if not {present}:
    del asyncio._get_running_loop
from anabranch import Commander, Job, handler, run
from anabranch.testing import run_seeded

class Shout(Job[str]):
    text: str
    async def task(self):
        return await self.in_thread(self.text.upper)

class Both(Job[list[str]]):
    async def task(self):
        return [await self.put_job(Shout("a")), await self.put_job(Shout("b"))]

async def main():
    try:
        run(Both(), slow_after=None)
    except RuntimeError:
        async with Commander(max_concurrency=1, slow_after=None) as commander:
            return await commander.run(Both())

print(run(Both(), slow_after=None), asyncio.run(main()), run_seeded(main, 1))
"""


def running_loop(*, present: bool) -> None:
    program = [sys.executable, "-W", "error", "-c", TREE.format(present=present)]
    ended = subprocess.run(program, capture_output=True, text=True, check=False, timeout=60)
    assert (ended.stdout, ended.stderr) == ("['A', 'B'] " * 2 + "['A', 'B']\n", "")


def destroy_pending_present() -> None:
    logged: list[dict[str, Any]] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: logged.append(context))
    for silent in (True, False):
        task = loop.create_task(asyncio.Event().wait())
        loop.run_until_complete(asyncio.sleep(0))
        if silent:
            silence_unfinished(task)
        del task
        gc.collect()
    loop.close()
    assert len(logged) == 1


def destroy_pending_absent(_: pytest.MonkeyPatch) -> None:
    silence_unfinished(object())  # type: ignore[arg-type]


class Stubborn(asyncio.Future[None]):
    """A future whose `cancel` raises."""

    def cancel(self, msg: object = None) -> bool:
        raise ValueError


def cancelled_wait(kind: type[asyncio.Task[Any]]) -> bool:
    """Cancel a task that waits for such a future; return whether the task ended."""

    async def main() -> bool:
        waited = Stubborn()

        async def wait() -> None:
            await waited

        task = kind(wait())
        await asyncio.sleep(0)
        record: Any = SimpleNamespace(path="a node")
        _cancel._cancel_task(record, task)
        if not waited.done():
            waited.set_result(None)
        await asyncio.wait([task])
        return task.cancelled()

    return asyncio.run(main())


def wait_present() -> None:
    assert cancelled_wait(asyncio.Task)


def wait_absent(_: pytest.MonkeyPatch) -> None:
    assert not cancelled_wait(Opaque)


class Opaque(asyncio.Task[Any]):
    """A task that does not reveal its awaited object."""

    @property
    def _fut_waiter(self) -> Any:
        raise AttributeError


async def in_a_thread() -> tuple[int, float]:
    loop = asyncio.get_running_loop()
    return await asyncio.to_thread(threading.get_ident) != threading.get_ident(), loop.time()


def threads_of(kind: type[SeededLoop]) -> None:
    loop = kind(1)
    try:
        assert loop.run_until_complete(in_a_thread()) == (True, 0)
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()


def pools(patch: pytest.MonkeyPatch, name: str, without: object) -> None:
    patch.setattr(_threads._Call, "run", _threads._run)
    patch.setattr(_threads, name, without)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()
        assert all(map(_threads.is_at_work, pool._threads))
    threads_of(SeededLoop)


class Unwoken(SeededLoop):
    """A loop that other threads cannot wake."""

    def __getattribute__(self, name: str) -> Any:
        if name == "_write_to_self" and threading.current_thread() is not threading.main_thread():
            raise AttributeError(name)
        return super().__getattribute__(name)


def refused(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a check that a seeded loop refuses a Python without this name."""

    def absent(patch: pytest.MonkeyPatch) -> None:
        loop = asyncio.new_event_loop()
        shown = {each: [] for each in ("_ready", "_scheduled") if each != name}
        stub: Any = SimpleNamespace(get_debug=loop.get_debug, **shown)
        loop.close()
        if name == "_callback":
            patch.setattr(asyncio, "Handle", lambda *_: object())
        with pytest.raises(NotImplementedError, match=f"no {name} on this Python"):
            _loop._require_private(stub)

    return absent


def environment(patch: pytest.MonkeyPatch, kept: Any) -> None:
    patch.setattr(os, "environ", kept)
    for _ in range(2):
        os.environ["A_TOKEN"] = "planted-before"
        _payload.refuse_secrets(b"planted-after")
        os.environ["A_TOKEN"] = "planted-after"
        with pytest.raises(ConfigurationError, match="A_TOKEN"):
            _payload.refuse_secrets(b"it is planted-after here")
    del os.environ["A_TOKEN"]


def environment_present() -> None:
    with pytest.MonkeyPatch.context() as patch:
        environment(patch, os.environ)


def merged_cells(wrap: Callable[[Any], Any]) -> str:
    docx = pytest.importorskip("docx")
    table = docx.Document().add_table(2, 3)
    table.cell(0, 0).merge(table.cell(0, 1)).text = "wide"
    table.cell(0, 2).merge(table.cell(1, 2)).text = "tall"
    rows = [SimpleNamespace(cells=[wrap(cell) for cell in row.cells]) for row in table.rows]
    return read_table(SimpleNamespace(rows=rows))


def merged_cells_present() -> None:
    assert merged_cells(lambda cell: cell) == "wide | tall\n | "


def merged_cells_absent(_: pytest.MonkeyPatch) -> None:
    @cache
    class Without:
        def __init__(self, cell: Any) -> None:
            self.iter_inner_content = cell.iter_inner_content

    assert merged_cells(Without) == "wide | tall\n |  | tall"


def joined_ray(patch: pytest.MonkeyPatch, last: str | None) -> str | None:
    """Join a cluster. Ray remembers `last`, and no head node answers."""
    joined: list[str | None] = []
    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda address, **_: joined.append(address),
        get_runtime_context=lambda: SimpleNamespace(gcs_address="here"),
    )
    private = ModuleType("ray._private.utils")
    if last is not None:
        private.read_ray_address = lambda: last  # type: ignore[attr-defined]
    for name, module in (("ray", ModuleType("ray")), ("ray._private", ModuleType("ray._private"))):
        patch.setitem(sys.modules, name, module)
    patch.setitem(sys.modules, "ray._private.utils", private)
    patch.delenv("RAY_ADDRESS", raising=False)
    patch.setattr(_cluster, "import_ray", lambda: ray)
    patch.setattr(_cluster, "_is_answering", lambda *_, **__: False)
    patch.setattr(_cluster, "Cluster", lambda *_, **__: None)
    _cluster._connect(None)
    return joined[0]


def ray_present() -> None:
    with pytest.MonkeyPatch.context() as patch:
        assert joined_ray(patch, "10.0.0.1:6379") == "local"


def ray_absent(patch: pytest.MonkeyPatch) -> None:
    assert joined_ray(patch, None) is None


class Private(NamedTuple):
    """The behavior without a private name, with a check of both cases."""

    without: str
    present: Callable[[], object]
    absent: Callable[[pytest.MonkeyPatch], object]


def on(kind: type[SeededLoop]) -> Callable[..., None]:
    return lambda *_: threads_of(kind)


# The key has the package and the name.
PRIVATE = {
    "commander _get_running_loop": Private(
        "the public function, which is slower where no loop runs",
        lambda: running_loop(present=True),
        lambda _: running_loop(present=False),
    ),
    "commander _log_destroy_pending": Private(
        "asyncio logs each task that is abandoned",
        destroy_pending_present,
        destroy_pending_absent,
    ),
    "commander _fut_waiter": Private(
        "a body that awaits a future that refuses a cancel ends only when that future does",
        wait_present,
        wait_absent,
    ),
    "testing _ready": Private("refused", on(SeededLoop), refused("_ready")),
    "testing _scheduled": Private("refused", on(SeededLoop), refused("_scheduled")),
    "testing _callback": Private("refused", on(SeededLoop), refused("_callback")),
    "testing _write_to_self": Private(
        "an idle loop looks for what threads hand in every 20 ms", on(SeededLoop), on(Unwoken)
    ),
    "testing _WorkItem": Private(
        "threads of a pool hold the clock for `patience`",
        on(SeededLoop),
        lambda patch: pools(patch, "_run", None),
    ),
    "testing _threads_queues": Private(
        "threads of a pool hold the clock for `patience`",
        on(SeededLoop),
        lambda patch: pools(patch, "_queues", {}),
    ),
    "cluster _data": Private(
        "the environment is decoded for each job",
        environment_present,
        lambda patch: environment(patch, dict(os.environ)),
    ),
    "knowledge _tc": Private(
        "a cell merged over several rows is repeated in each",
        merged_cells_present,
        merged_cells_absent,
    ),
    "cluster ray._private.utils": Private(
        "Ray waits a minute for a cluster that has gone", ray_present, ray_absent
    ),
    # The name of a logger. One of its warnings is suppressed.
    "cluster ray._private.worker": Private("Ray's warning is shown", ray_present, ray_absent),
}


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_is_used_where_it_exists(name: str) -> None:
    PRIVATE[name].present()


@pytest.mark.parametrize("name", PRIVATE)
def test_a_private_name_that_is_missing_has_a_substitute(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    PRIVATE[name].absent(monkeypatch)


# --- the list is complete


def test_every_private_name_is_listed() -> None:
    """A new one needs a substitute, and a row in PRIVATE with a check of both cases."""
    own: defaultdict[str, set[str]] = defaultdict(set)
    used: set[tuple[str, str]] = set()
    for room in ROOMS:
        for path in (ROOT / room).rglob("*.py"):
            if path == APART:
                continue
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                own[room].update(_defined(node))
                used.update((room, name) for name in _used(node))
    found = {
        f"{room} {name}"
        for room, name in used
        if re.fullmatch(r"(\w+\.)*_[a-z]\w*(\.\w+)*", name, re.IGNORECASE)
        and not name.startswith(("__", "_node_"))  # `_node_` names are ours
        and name not in own[room] | DOCUMENTED
    }
    # Our loop replaces the queue that asyncio's loop takes callbacks from.
    assert found | {"testing _ready"} == PRIVATE.keys()


def _defined(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Name(id=name, ctx=ast.Store()):
            yield name
        case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
            yield name
        case ast.Assign(targets=[ast.Name(id="__slots__")], value=slots):
            yield from (each.value for each in ast.walk(slots) if isinstance(each, ast.Constant))
        case _:
            pass


def _used(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(attr=name):
            yield name
        case ast.Call(func=ast.Name(id="getattr" | "hasattr" | "setattr"), args=[_, name, *_]):
            if isinstance(name, ast.Constant):
                yield str(name.value)
        case ast.ImportFrom(level=0, module=str(module), names=names):
            yield from (*module.split("."), *(each.name for each in names))
        case ast.Import(names=names):
            yield from (part for each in names for part in each.name.split("."))
        case ast.Constant(value=str(text)) if re.fullmatch(r"\w+(\.\w+)*\._\w+(\.\w+)*", text):
            if not text.startswith("anabranch."):
                yield text
        case _:
            pass
