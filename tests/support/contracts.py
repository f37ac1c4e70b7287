"""The promises of docs/contracts.md, and the tests that are marked with their numbers.

make contracts      # prints the tests of each promise, with their claims
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT, TESTS

__all__ = ["PAGE", "MarkedTest", "marked_tests", "promises", "table"]

PAGE = ROOT / "docs/contracts.md"


class MarkedTest(NamedTuple):
    """A test that holds the package to a promise."""

    contract: str
    file: str
    name: str
    claim: str


def promises(page: str) -> dict[str, str]:
    """Return the title of each promise of the page by its number."""
    return dict(re.findall(r"^### ([A-Z]\d+): (.+)$", page, re.MULTILINE))


@cache
def marked_tests() -> list[MarkedTest]:
    """Return all tests with a number, in the order of their files."""
    return [test for path in sorted(TESTS.rglob("test_*.py")) for test in tests_in(path)]


def tests_in(path: Path) -> Iterator[MarkedTest]:
    """Yield the marked tests of a file; the marks of `pytestmark` belong to all its tests."""
    source = path.read_text(encoding="utf-8")
    if "mark.contract(" not in source:
        return  # skips parsing, which takes most of the time
    body = ast.parse(source).body
    of_all = [
        number
        for node in body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pytestmark"
        for number in numbers(node.value)
    ]
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            claim = " ".join((ast.get_docstring(node) or "").split())
            own = [number for each in node.decorator_list for number in numbers(each)]
            for number in [*of_all, *own]:
                yield MarkedTest(number, str(path.relative_to(ROOT)), node.name, claim)


def numbers(marks: ast.expr) -> list[str]:
    """Return the numbers in `pytest.mark.contract("T1")`, or in a list of marks."""
    return [
        ast.literal_eval(node.args[0])
        for node in ast.walk(marks)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.contract"
    ]


def table(page: str, tests: list[MarkedTest]) -> str:
    """Return the promises as text, each with its tests and their claims."""
    lines: list[str] = []
    for number, title in promises(page).items():
        lines.append(f"{number}: {title}")
        file = ""
        for test in tests:
            if test.contract == number:
                if test.file != file:
                    lines.append(f"  {(file := test.file)}")
                lines.append(f"    {test.name}: {test.claim}")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(PAGE.read_text(encoding="utf-8"), marked_tests()))
