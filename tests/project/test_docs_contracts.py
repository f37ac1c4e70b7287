"""Each promise of docs/contracts.md has tests, and each mark of a test names a promise."""

import ast
import re
from itertools import groupby

import pytest
from support.contracts import PAGE, MarkedTest, marked_tests, promises, table
from support.paths import ROOT, TESTS

TEXT = PAGE.read_text(encoding="utf-8")
FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef


def test_each_promise_has_tests() -> None:
    """A promise without a test may be broken unnoticed."""
    assert promises(TEXT).keys() - {test.contract for test in marked_tests()} == set()


def test_each_mark_names_a_promise() -> None:
    """A mark with a mistyped number would not be counted."""
    assert {test.contract for test in marked_tests()} - promises(TEXT).keys() == set()


def test_each_mark_was_read() -> None:
    """Including marks in a form that the reader does not parse."""
    for path in TESTS.rglob("test_*.py"):
        if path.name == "test_docs_contracts.py":
            continue
        text = path.read_text(encoding="utf-8")
        file = str(path.relative_to(ROOT))
        written = {*re.findall(r"mark\.contract\(\W*(\w+)", text)}
        assert written == {test.contract for test in marked_tests() if test.file == file}, file


def test_a_marked_test_is_found_by_its_number(request: pytest.FixtureRequest) -> None:
    """The reader of the files finds the same marks as pytest."""
    path = TESTS / "dispatch/test_fork_end.py"
    read = {(test.name, test.contract) for test in marked_tests() if test.file.endswith(path.name)}
    module = pytest.Module.from_parent(request.session, path=path)
    collected = {
        (item.name.partition("[")[0], mark.args[0])
        for item in request.session.genitems(module)
        for mark in item.iter_markers("contract")
    }
    assert read == collected != set()


def test_the_numbers_have_no_gap() -> None:
    """T1 to T17, F1 to F6, B1 to B3, D1 to D22 and S1 to S9, in this order."""
    runs = [(letter, len(list(run))) for letter, run in groupby(promises(TEXT), lambda n: n[0])]
    assert runs == [("T", 17), ("F", 6), ("B", 3), ("D", 22), ("S", 9)]
    assert list(promises(TEXT)) == [
        f"{letter}{n + 1}" for letter, last in runs for n in range(last)
    ]


def test_files_with_a_number_in_their_name_hold_that_promise() -> None:
    """For example tests/commander/test_t05_cancel_block.py."""
    for path in (TESTS / "commander").glob("test_t[0-9]*.py"):
        number = f"T{int(path.name[6:8])}"
        file = str(path.relative_to(ROOT))
        assert {test.contract for test in marked_tests() if test.file == file} == {number}, file


def test_each_file_about_durable_runs_holds_a_promise() -> None:
    """A new test file must name its promise."""
    files = {str(path.relative_to(ROOT)) for path in (TESTS / "store").glob("test_*.py")}
    assert files - {test.file for test in marked_tests()} == set()


@pytest.mark.parametrize("folder", ["commander", "dispatch", "store", "tracing"])
def test_where_one_test_holds_a_promise_all_of_the_file_do(folder: str) -> None:
    """So a new test in the file gets its mark too."""
    marked = {(test.file, test.name) for test in marked_tests()}
    for file in {test.file for test in marked_tests() if test.file.startswith(f"tests/{folder}/")}:
        body = ast.parse((ROOT / file).read_text(encoding="utf-8")).body
        functions = [each for each in body if isinstance(each, FUNCTION)]
        names = {each.name for each in functions if each.name.startswith("test_")}
        assert {name for name in names if (file, name) not in marked} == set(), file


def test_each_file_that_the_page_names_is_there() -> None:
    """The page has its path, or its name after a path of the same folder."""
    folder = ""
    for path in re.findall(r"`((?:tests/[\w/]*)?\w+\.py)`", TEXT):
        folder = path.rpartition("/")[0] or folder
        assert (ROOT / folder / path.rpartition("/")[2]).exists(), path


def test_the_table_has_each_promise_with_its_tests() -> None:
    """The table is the output of `make contracts`."""
    page = "## The tree (T)\n\n### T1: Parents\n\nText.\n\n### T2: States\n"
    tests = [
        MarkedTest("T1", "tests/a.py", "test_one", "It holds."),
        MarkedTest("T2", "tests/a.py", "test_two", "It holds too."),
        MarkedTest("T1", "tests/a.py", "test_three", "It holds again."),
    ]
    assert table(page, tests).splitlines() == [
        "T1: Parents",
        "  tests/a.py",
        "    test_one: It holds.",
        "    test_three: It holds again.",
        "T2: States",
        "  tests/a.py",
        "    test_two: It holds too.",
    ]
    whole = table(TEXT, marked_tests())
    assert all(f"    {test.name}: {test.claim}" in whole for test in marked_tests())
