"""Names in stored data: each class and function keeps its stored name when it moves."""

from __future__ import annotations

import pathlib
import re
import shutil
import sqlite3
import subprocess
import sys
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeVar

import pytest
from _killed_runs import FOLDER
from pydantic import BaseModel
from support.paths import DATA, ROOT, TESTS
from support.stored_names import FILE, frozen, names, nodes

from anabranch import Node
from anabranch.commander import stored_names
from anabranch.commander.stored_names import find_loaded, find_stored, place_of, stored_name
from anabranch.store._failure import decode_failure, encode_failure
from anabranch.store._json import canonical

T = TypeVar("T")


def test_each_stored_name_is_found_and_stays() -> None:
    """If this fails after a move or a rename: add the printed entry to `stored_names.MOVED`."""
    current, missing = names(), dict[str, str]()
    for name in frozen()["names"]:
        try:
            found = find_stored(name)
        except (ImportError, AttributeError):
            missing[name] = " or ".join(
                each for each in current if each.partition(":")[2] == name.partition(":")[2]
            )
        else:
            assert stored_name(found) == name
    assert missing == {}, f"name: place, for MOVED in {stored_names.__file__}"


def test_no_class_gets_a_new_stored_name() -> None:
    """A new class is added to the list: run `PYTHONPATH=tests python -m support.stored_names`."""
    assert names() - {*frozen()["names"]} == set(), f"not in {FILE.name}"


def test_nodes_keep_what_their_identities_have() -> None:
    """A renamed node class sets `name=`, and its attributes keep their names."""
    assert nodes() == frozen()["nodes"]


# --- the table


class Before:
    class Inner:
        pass

    def method(self) -> None: ...


class Generic(BaseModel, typing.Generic[T]):
    value: T


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`old.module:Old` is now `Before`."""
    for name, kind in {"Old": Before, "OldGeneric": Generic}.items():
        monkeypatch.setitem(stored_names.MOVED, f"old.module:{name}", f"{__name__}:{kind.__name__}")
    stored_names._fill()
    yield
    monkeypatch.undo()
    stored_names._fill()


@pytest.mark.usefixtures("moved")
@pytest.mark.parametrize(
    ("thing", "name"),
    [
        (Before, "old.module:Old"),
        (Before.Inner, "old.module:Old.Inner"),
        (Before.method, "old.module:Old.method"),
        (Node, "anabranch.commander._node:Node"),
    ],
)
def test_a_moved_name_is_written_and_found_as_before(thing: Any, name: str) -> None:
    """Including the names inside of it."""
    assert stored_name(thing) == name
    assert find_stored(name) is find_loaded(name) is thing
    assert place_of(name) == f"{thing.__module__}:{thing.__qualname__}"
    if thing is not Node:
        assert canonical(thing) == (f'{{"$name":"{name}"}}', True)


@pytest.mark.usefixtures("moved")
def test_a_moved_generic_model_has_its_name() -> None:
    """pydantic makes its class, which is in no module."""
    text, complete = canonical(Generic[int](value=1))
    assert text.startswith('{"$object":["old.module:OldGeneric[int]"')
    assert complete


def test_what_python_moves_has_one_name() -> None:
    """A failure written by one version of Python can be read by the others."""
    assert stored_name(type(Path())) == f"pathlib:{type(Path()).__name__}"
    assert stored_name(re.error) == "re:error"
    for name in ("re:PatternError", "pathlib._local:PosixPath"):  # as earlier releases wrote them
        assert find_stored(name) in (re.error, pathlib.PosixPath)
    error = decode_failure(encode_failure(OSError(5, "no", Path("a"))))
    assert isinstance(error, OSError)
    assert error.filename == Path("a")


# --- a real move

# For each module: its new name, and the new names of its classes.
MOVES = {
    "store._durable": ("_steps", {"Step": "CalledFunction"}),
    "handlers._handler": ("_functions", {"Handler": "FunctionNode"}),
}
MOVED = "MOVED: dict[str, str] = {"
RESUME = """
import asyncio, sys
sys.path[:0] = sys.argv[1:4]
from anabranch.store import Journal
from anabranch.store._steps import CalledFunction
from anabranch.handlers._functions import FunctionNode
from _killed_runs import DID, MODEL

async def main(folder):
    for name, live in ("step", {}), ("respond", {"backend": MODEL}):
        async with Journal(f"{folder}/{name}.db") as journal:
            await journal.take_up(name, live=live)
    print(DID)

asyncio.run(main(sys.argv[1]))
"""


def move_in(package: Path) -> dict[str, str]:
    """Move modules and rename classes in this copy of the package; return the table for them."""
    table = dict[str, str]()
    for module, (new, renamed) in MOVES.items():
        folder, old = module.split(".")
        for file in (package / folder).rglob("*.py"):
            before_move = file.read_text()
            text = re.sub(rf"from \.{old} import", f"from .{new} import", before_move)
            for before, after in renamed.items():
                text = re.sub(rf"(\.{new} import) {before}\b", rf"\1 {after}", text)
                if file.stem == old:
                    text = re.sub(rf"\b{before}\b", after, text)
            if text != before_move:
                file.write_text(text)
        (package / folder / f"{old}.py").rename(package / folder / f"{new}.py")
        for name in frozen()["names"]:
            place, _, kind = name.partition(":")
            if place == f"anabranch.{module}":
                table[name] = f"anabranch.{folder}.{new}:{renamed.get(kind, kind)}"
    return table


def resume(folder: Path) -> subprocess.CompletedProcess[str]:
    """Resume killed runs with the package in this folder."""
    for name in ("step", "respond"):
        (folder / f"{name}.db").unlink(missing_ok=True)
        with closing(sqlite3.connect(folder / f"{name}.db")) as sql:
            sql.executescript((FOLDER / f"{name}.sql").read_text())
    command = [sys.executable, "-c", RESUME, str(folder), str(TESTS), str(DATA)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_run_is_resumed_after_classes_have_moved(tmp_path: Path) -> None:
    """With the table nothing runs again. Without it, the runs do not find their entries."""
    shutil.copytree(ROOT / "anabranch", tmp_path / "anabranch")  # compiled modules too
    table = move_in(tmp_path / "anabranch")
    lost = resume(tmp_path)
    assert "did not replay these recorded entries below Commander/Steps#1" in lost.stderr
    assert "JournalMismatch: Commander/Responds#1/respond#2" in lost.stderr
    file = tmp_path / "anabranch" / "commander" / "stored_names.py"
    text = file.read_text()
    assert text.count(MOVED) == 1
    file.write_text(text.replace(MOVED, f"{MOVED}\n    **{table},\n"))
    found = resume(tmp_path)
    assert found.stdout == "['load second', 'asked with 4']\n", found.stderr
    assert "goes on without" not in found.stderr  # a slow machine may add a warning here


def test_no_other_module_makes_names() -> None:
    """Code that joins a module's and a class's name would bypass the table."""
    both = {
        str(path.relative_to(ROOT))
        for room in (each.resolve() for each in (ROOT / "anabranch").iterdir() if each.is_dir())
        for path in room.rglob("*.py")
        if all(f"__{each}__" in path.read_text() for each in ("module", "qualname"))
    }
    assert both == {
        "commander/stored_names.py",
        "commander/_task_waits.py",  # the timers of other libraries
        "cluster/_payload.py",  # a repr
        "handlers/_handler.py",  # for pickles, which exist no longer than a process
        "store/_codec.py",  # the module for resolving an annotation
        "tracing/_genai.py",  # an attribute of a span
    }
