"""The table of contracts names every test of the files that it points to, and no others."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs/contracts.md").read_text()


def tables():
    """Return the test names in the document, by the file in whose tables they stand."""
    named, file = {}, None
    for line in TEXT.splitlines():
        if match := re.match(r"\| `(tests/\S+\.py)` \|", line):
            file = match[1]
            named.setdefault(file, [])
        elif match := re.match(r"\| `(test_\w+)` \|", line):
            named[file].append(match[1])
    return named


def names_in(path):
    nodes = ast.parse((ROOT / path).read_text()).body
    functions = [n for n in nodes if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    return {each.name for each in functions if each.name.startswith("test_")}


def test_every_test_that_is_named_exists_and_none_is_missing():
    """Both ways for the tree and the fork; the backends' files hold other tests as well."""
    for path, names in tables().items():
        assert len(names) == len({*names}), path
        assert {*names} <= names_in(path), path
        if path.startswith(("tests/test_tree", "tests/test_dispatch")):
            assert {*names} == names_in(path), path


def test_each_contract_of_the_tree_has_a_table_of_its_own():
    """T1 to T13, each with all the files that bear its number, and no other's."""
    for number in range(1, 14):
        section = TEXT.split(f"### T{number}:")[1].split("###")[0]
        named = {*re.findall(r"tests/(test_tree_t\d\d_\w+\.py)", section)}
        files = {path.name for path in (ROOT / "tests").glob(f"test_tree_t{number:02}_*.py")}
        assert named == files != set()


def test_each_contract_of_the_fork_has_a_table():
    """F1 to F6."""
    for number in range(1, 7):
        section = TEXT.split(f"### F{number}:")[1].split("###")[0]
        assert "| `tests/test_dispatch_" in section
