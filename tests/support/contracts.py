"""The rows of docs/contracts.md: the tests with their docstrings, as `make contracts` writes them.

The prose is written by hand, and so is which test stands in which table. A row's text is the
test's docstring; a test that is gone loses its row; a new test of the tree, the fork or durable
runs is added to the last table of its file, from where it may be moved.
"""

import ast
import re

from support.paths import ROOT

PAGE = ROOT / "docs/contracts.md"
# Each test of these files belongs to a contract; other files hold other tests as well.
WHOLE = ("tests/commander/", "tests/dispatch/", "tests/store/", "tests/tracing/")
TABLE = re.compile(r"^\| `(tests/\S+\.py)` \| \|\n\|---\|---\|\n((?:\| .*\n)*)", re.MULTILINE)
ROW = re.compile(r"^\| `(test_\w+)` \|", re.MULTILINE)


def docstrings(path: str) -> dict[str, str]:
    """Return the docstring, in one line, of each test in a file, in their order."""
    if not (ROOT / path).exists():
        return {}
    return {
        node.name: " ".join((ast.get_docstring(node) or "").split())
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.name.startswith("test_")
    }


def with_rows(page: str) -> str:
    """Return the page with the rows of all its tables made anew."""
    tables = [(match[1], ROW.findall(match[2])) for match in TABLE.finditer(page)]
    last = {path: number for number, (path, _) in enumerate(tables)}
    placed = {(path, name) for path, names in tables for name in names}
    numbers = iter(range(len(tables)))

    def table(match: re.Match[str]) -> str:
        path, number, texts = match[1], next(numbers), docstrings(match[1])
        names = [
            name
            for name in texts
            if name in tables[number][1]
            or (number == last[path] and path.startswith(WHOLE) and (path, name) not in placed)
        ]
        rows = "".join(f"| `{name}` | {texts[name]} |\n" for name in names)
        return f"| `{path}` | |\n|---|---|\n{rows}" if rows else ""

    return TABLE.sub(table, page)


if __name__ == "__main__":
    PAGE.write_text(with_rows(PAGE.read_text()))
