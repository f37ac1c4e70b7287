"""The names of the package's classes and functions that stored data can contain.

    PYTHONPATH=tests python -m support.stored_names     # adds new names to its file

The file only grows, since journals may contain every name in it. Remove a name by hand only if no
release contained its class.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import pkgutil
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import anabranch
from anabranch.commander import Commander, Node
from anabranch.commander.stored_names import stored_name
from anabranch.handlers import HandlerFunction
from anabranch.serve._run import Run
from anabranch.tools import Tool
from support.paths import DATA

__all__ = ["FILE", "frozen", "modules", "names", "nodes"]

FILE = DATA / "stored_names.json"
# Calls that pass a function to a node. The stored inputs of that node contain the function's name.
GIVEN = {"in_thread", "in_process", "step", "Step"} | {
    f"at_{moment}" for moment in ("start", "retry", "end", "exception", "terminate", "done")
}


@cache
def modules() -> list[ModuleType]:
    """Import all modules of the package, except `__main__`, which would run a program."""
    found = pkgutil.walk_packages(anabranch.__path__, "anabranch.")
    return [import_module(each.name) for each in found if not each.name.endswith("__main__")]


@cache
def names() -> set[str]:
    """Return every name that stored data can contain.

    These are all classes, because a node's identity contains the class of each input that is not
    data, and the tools, handlers and functions that the package passes to nodes.
    """
    found: set[str] = set()
    for module in modules():
        own = [each for each in vars(module).values() if is_own(each, module)]
        found.update(stored_name(each) for each in own)
        for kind in filter(inspect.isclass, own):
            inner = [each for each in vars(kind).values() if is_own(each, module)]
            found.update(stored_name(each) for each in inner)
        found.update(stored_name(each) for each in given(module))
    return found


def is_own(thing: Any, module: ModuleType) -> bool:
    if not (inspect.isclass(thing) or isinstance(thing, Tool | HandlerFunction)):
        return False
    # pydantic creates classes such as `Model[str]`, which are stored as `Model`.
    return thing.__module__ == module.__name__ and "[" not in thing.__qualname__


def given(module: ModuleType) -> Iterator[Any]:
    """Yield the package's functions that a module passes to nodes."""
    source = Path(module.__file__ or "").read_text()
    if not any(f"{each}(" in source for each in GIVEN):
        return
    for call in ast.walk(ast.parse(source)):
        if not isinstance(call, ast.Call):
            continue
        called = getattr(call.func, "attr", getattr(call.func, "id", ""))
        for each in call.args[:1] if called in GIVEN else ():
            found = vars(module).get(each.id) if isinstance(each, ast.Name) else None
            if isinstance(found, FunctionType) and found.__module__.startswith("anabranch."):
                yield found


def nodes() -> dict[str, dict[str, Any]]:
    """Return the parts of each node class that identities contain, by its stored name.

    These are the default name of a node and the names of its attributes.
    """
    modules()
    found: dict[str, dict[str, Any]] = {}
    left: list[Any] = [Node]
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if kind.__module__.startswith("anabranch.") and "[" not in kind.__qualname__:
            attributes: list[str] = []
            if not issubclass(kind, Commander | Run):  # journals do not store them
                attributes = sorted({each for base in kind.__mro__ for each in made_in(base)})
            found[stored_name(kind)] = {"name": kind._node_name, "attributes": attributes}
    return found


@cache
def made_in(kind: type) -> set[str]:
    """Return the attributes that the `__init__` of a class sets."""
    if "__dataclass_fields__" in vars(kind) and issubclass(kind, Node):
        return {each.name for each in dataclasses.fields(kind)}  # type: ignore[arg-type]
    init = vars(kind).get("__init__")
    if not isinstance(init, FunctionType) or not init.__module__.startswith("anabranch."):
        return set()
    return {
        each.attr
        for each in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(init))))
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
        and not each.attr.startswith("_node_")
    }


def frozen() -> dict[str, Any]:
    return json.loads(FILE.read_text())


def main() -> None:
    before = frozen() if FILE.exists() else {"names": [], "nodes": {}}
    written = {
        "names": sorted({*before["names"], *names()}),
        "nodes": dict(sorted({**nodes(), **before["nodes"]}.items())),
    }
    FILE.write_text(json.dumps(written, indent=0) + "\n")
    print(f"{FILE}: {len(written['names'])} names", file=sys.stderr)


if __name__ == "__main__":
    main()
