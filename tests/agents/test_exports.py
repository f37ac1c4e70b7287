"""The exports of the packages inside agents."""

from __future__ import annotations

import ast
from pathlib import Path

import anabranch.agents

ROOM = Path(anabranch.agents.__file__).resolve().parent
INNER = ("layers", "conversation", "orchestration")


def exports(file: Path) -> list[str]:
    found = [
        each for each in ast.walk(ast.parse(file.read_text())) if isinstance(each, ast.ImportFrom)
    ]
    return [alias.asname or alias.name for each in found for alias in each.names]


def test_the_everyday_names_are_few_and_stand_in_the_rooms_too() -> None:
    """At most 45 at the top; each name is exported by one package."""
    everyday = exports(ROOM / "__init__.py")
    inner = [name for room in INNER for name in exports(ROOM / room / "__init__.py")]

    assert len(everyday) <= 45
    assert len(set(inner)) == len(inner)
    assert set(everyday) <= set(inner)


def test_what_agents_elsewhere_need_stands_in_no_room_beside() -> None:
    """The modules `integration` and `errors` export no name of a package."""
    inner = {name for room in INNER for name in exports(ROOM / room / "__init__.py")}
    assert not inner & set(exports(ROOM / "integration.py"))
    assert not inner & set(anabranch.agents.errors.__all__)
