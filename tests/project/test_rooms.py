"""Packages import only public names of each other, and each begins with a map of its files."""

import ast
import re
from fnmatch import fnmatch
from pathlib import Path

import pytest
from support.paths import ROOT

ROOMS = sorted(link.name for link in (ROOT / "anabranch").iterdir() if link.is_symlink())


def imported(path: Path) -> list[str]:
    """Return the modules of this project that a file imports, with paths that begin at its root."""
    here = path.relative_to(ROOT).parent.parts
    found = list[str]()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = list(here[: len(here) - node.level + 1]) if node.level else []
            found += [
                ".".join([*base, *filter(None, [node.module]), name.name]) for name in node.names
            ]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names]
    return [name.removeprefix("anabranch.") for name in found]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_takes_nothing_private_of_another(room):
    """Neither a private module nor a private name, also in imports for type checkers only."""
    reached = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (ROOT / room).rglob("*.py")
        for name in imported(path)
        if name.split(".")[0] in ROOMS and name.split(".")[0] != room
        if any(part.startswith("_") for part in name.split("."))
    }
    assert not reached


@pytest.mark.parametrize(
    "room", [init.parent for r in ROOMS for init in (ROOT / r).rglob("__init__.py")]
)
def test_a_room_begins_with_a_map_of_its_files(room):
    """The docstring of its `__init__` names each module, or several at once as `_local*`."""
    text = ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or ""
    patterns = re.findall(r"\w[\w*]+", text)
    modules = [path.stem for path in room.glob("*.py") if not path.stem.startswith("__")]
    assert not [m for m in modules if not any(fnmatch(m, each) for each in patterns)]
