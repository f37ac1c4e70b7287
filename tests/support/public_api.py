"""Collect the public API: names, signatures with defaults, members of classes, bases.

    make api            # writes tests/data/public_api.txt

Public are the names that a package exports, and those of its module `errors`. The modules are
parsed and not imported, so every Python writes the same text.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from support.paths import DATA, ROOT

__all__ = ["SNAPSHOT", "public_api"]

SNAPSHOT = DATA / "public_api.txt"
PACKAGE = ROOT / "anabranch"
# Special methods that a user calls by syntax.
SPECIAL = {
    *("__init__", "__new__", "__call__", "__await__", "__bool__", "__len__", "__getitem__"),
    *("__contains__", "__iter__", "__aiter__", "__next__", "__anext__", "__get__", "__add__"),
    *("__enter__", "__exit__", "__aenter__", "__aexit__", "__eq__", "__or__", "__reversed__"),
}
# Decorators that change how a function is called or a class is built.
SHOWN = {
    *("abstractmethod", "asynccontextmanager", "classmethod", "contextmanager", "dataclass"),
    *("final", "handler", "overload", "property", "setter", "staticmethod", "tool"),
}
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Module:
    """The names that a module defines and imports."""

    name: str
    defined: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imported: dict[str, tuple[str, str]] = field(default_factory=dict)


@dataclass
class Members:
    """The public members of a class, as lines by name."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    methods: dict[str, list[str]] = field(default_factory=dict)


def public_api() -> list[str]:
    """Return the lines of the snapshot: names in order, each with its members below it."""
    homes: dict[tuple[str, str], str] = {}
    aliases: list[str] = []
    # Longer paths first: a class belongs to the package that defines it, others export it again.
    for package in sorted(packages(), key=lambda name: (-name.count("."), name)):
        for name in exports(package):
            home = find(package, name)
            if home is None:
                continue
            if home in homes:
                aliases.append(f"{package}.{name} = {homes[home]}")
            else:
                homes[home] = f"{package}.{name}"
    names = sorted(homes.items(), key=lambda item: item[1])
    blocks = [describe(home, public, set(homes)) for home, public in names]
    return [*sorted(aliases), *(line for block in blocks for line in block)]


def packages() -> Iterator[str]:
    """Yield each package, and each module `errors`."""
    yield "anabranch"
    for room in sorted(link for link in PACKAGE.iterdir() if link.is_symlink()):
        for path in sorted([*room.rglob("__init__.py"), *room.rglob("errors.py")]):
            parts = path.relative_to(PACKAGE).with_suffix("").parts
            if not any(part.startswith("_") for part in parts if part != "__init__"):
                yield ".".join(("anabranch", *(p for p in parts if p != "__init__")))


def path_of(module: str) -> Path | None:
    """Return the file of a module of the project, or None."""
    path = ROOT.joinpath("anabranch", *module.split(".")[1:])
    if not module.startswith("anabranch"):
        return None
    found = [path / "__init__.py", path.with_suffix(".py")]
    return next((each for each in found if each.exists()), None)


@cache
def parse(name: str) -> Module:
    """Parse a module, with the blocks under `if TYPE_CHECKING` and `try`."""
    path = path_of(name)
    assert path is not None
    parent = name if path.name == "__init__.py" else name.rpartition(".")[0]
    module = Module(name)

    def read(body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.If):
                read(node.body)
                read(node.orelse)
            elif isinstance(node, ast.Try):
                read(node.body)
            elif isinstance(node, ast.ImportFrom):
                base = parent.split(".")[: len(parent.split(".")) - node.level + 1]
                source = ".".join([*base, *filter(None, [node.module])] if node.level else [])
                for each in node.names:
                    imported = (source or node.module or "", each.name)
                    module.imported[each.asname or each.name] = imported
            elif isinstance(node, Function | ast.ClassDef):
                module.defined.setdefault(node.name, []).append(node)
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        module.defined.setdefault(target.id, []).append(node)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                module.defined.setdefault(node.target.id, []).append(node)

    read(ast.parse(path.read_text(encoding="utf-8")).body)
    return module


def exports(package: str) -> list[str]:
    """Return the public names of a package: those it imports from the project and defines."""
    module = parse(package)
    imported = [name for name, (source, _) in module.imported.items() if path_of(source)]
    if not path_is_package(package):
        imported = []  # a module's imports are for itself
    return sorted(
        name for name in {*imported, *module.defined} if not name.startswith("_") and name.strip()
    )


def path_is_package(name: str) -> bool:
    """Return whether a module is the `__init__` of a package."""
    path = path_of(name)
    return path is not None and path.name == "__init__.py"


def find(module: str, name: str) -> tuple[str, str] | None:
    """Return the module that defines a name, and its name there; None outside the project."""
    if path_of(module) is None:
        return None
    parsed = parse(module)
    if name in parsed.defined:
        return module, name
    if name in parsed.imported:
        return find(*parsed.imported[name])
    return None


def describe(home: tuple[str, str], public: str, known: set[tuple[str, str]]) -> list[str]:
    """Return the lines of one name."""
    module, name = home
    nodes = parse(module).defined[name]
    lines = list[str]()
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            bases = [ast.unparse(base) for base in (*node.bases, *node.keywords)]
            lines.append(f"{decorated(node)}class {public}({', '.join(bases)})")
            found = members(module, node, known)
            # Fields first, in their order, which positional arguments follow.
            texts = [*found.fields.values(), *(found.methods[key] for key in sorted(found.methods))]
            lines.extend(f"    {line}" for each in texts for line in each)
        elif isinstance(node, Function):
            if len(nodes) == 1 or is_overload(node):
                lines.append(function(node, public))
        elif isinstance(node, ast.AnnAssign):
            lines.append(f"{public}: {ast.unparse(node.annotation)}{value(node.value)}")
        elif isinstance(node, ast.Assign):
            lines.append(f"{public}{value(node.value)}")
    return lines


def members(module: str, node: ast.ClassDef, known: set[tuple[str, str]]) -> Members:
    """Return the members of a class, with those of bases that are not public themselves."""
    found = Members()
    for base in reversed(node.bases):
        root = base.value if isinstance(base, ast.Subscript) else base
        home = find(module, root.id) if isinstance(root, ast.Name) else None
        if home is not None and home not in known:
            for each in parse(home[0]).defined[home[1]]:
                if isinstance(each, ast.ClassDef):
                    inherited = members(home[0], each, known)
                    found.fields.update(inherited.fields)
                    found.methods.update(inherited.methods)
    own = Members()
    functions = [each for each in node.body if isinstance(each, Function)]
    overloaded = {each.name for each in functions if is_overload(each)}
    for each in node.body:
        if isinstance(each, Function):
            if is_public(each.name) and (each.name not in overloaded or is_overload(each)):
                own.methods.setdefault(each.name, []).append(function(each, each.name))
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            if is_public(each.target.id):
                text = f"{each.target.id}: {ast.unparse(each.annotation)}{value(each.value)}"
                own.fields[each.target.id] = [text]
        elif isinstance(each, ast.Assign):
            for target in each.targets:
                if isinstance(target, ast.Name) and is_public(target.id):
                    own.fields[target.id] = [f"{target.id}{value(each.value)}"]
    for name, text in attributes(functions):
        own.fields.setdefault(name, [text])
    for name in (*own.fields, *own.methods):
        found.fields.pop(name, None)
        found.methods.pop(name, None)
    return Members({**found.fields, **own.fields}, {**found.methods, **own.methods})


def attributes(functions: list[Function]) -> Iterator[tuple[str, str]]:
    """Yield the public attributes that methods assign, with their annotations."""
    first = [each for each in functions if each.name in ("__init__", "__new__")]
    for node in (each for method in first for each in ast.walk(method)):
        targets = [node.target] if isinstance(node, ast.AnnAssign) else []
        if isinstance(node, ast.Assign):
            targets = node.targets
        for target in targets:
            if not isinstance(target, ast.Attribute) or not is_public(target.attr):
                continue
            if isinstance(target.value, ast.Name) and target.value.id == "self":
                kind = (
                    f": {ast.unparse(node.annotation)}" if isinstance(node, ast.AnnAssign) else ""
                )
                yield target.attr, f"{target.attr}{kind}"


def is_public(name: str) -> bool:
    """Return whether users see a member of this name."""
    return not name.startswith("_") or name in SPECIAL


def is_overload(node: Function) -> bool:
    """Return whether a function is one of several signatures."""
    return any(ast.unparse(each).endswith("overload") for each in node.decorator_list)


def decorated(node: ast.ClassDef | Function) -> str:
    """Return the decorators as text before a definition."""
    texts = [ast.unparse(each) for each in node.decorator_list]
    return "".join(f"@{each} " for each in texts if each.split("(")[0].split(".")[-1] in SHOWN)


def function(node: Function, name: str) -> str:
    """Return a function's signature on one line."""
    start = "async def" if isinstance(node, ast.AsyncFunctionDef) else "def"
    returns = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    return f"{decorated(node)}{start} {name}({ast.unparse(node.args)}){returns}"


def value(node: ast.expr | None) -> str:
    """Return a default as text; a long one is cut, because it is rarely a promise."""
    return "" if node is None else f" = {ast.unparse(node)[:80]}"


def main() -> None:
    """Store the lines and print those that are new."""
    stored = SNAPSHOT.read_text(encoding="utf-8").splitlines() if SNAPSHOT.exists() else []
    lines = public_api()
    SNAPSHOT.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print("\n".join(line for line in lines if line not in set(stored)))


if __name__ == "__main__":
    main()
