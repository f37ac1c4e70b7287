"""The page of contracts names every test of the tree, the fork and durable runs, in their words."""

import re

from support.contracts import PAGE, ROOT, TABLE, docstrings, with_rows

TEXT = PAGE.read_text()


def test_the_rows_are_those_of_the_tests():
    """If this fails, `make contracts` writes them anew."""
    assert with_rows(TEXT) == TEXT


def test_a_new_test_gets_a_row_and_one_that_is_gone_loses_it():
    """The row of a test that was moved to another table stays there."""
    path = "tests/dispatch/test_to_user.py"
    first, second, *_ = docstrings(path)
    empty = f"| `{path}` | |\n|---|---|\n"
    old = f"{empty}| `{second}` | old |\n\n{empty}| `test_gone` | |\n"
    one, two = TABLE.finditer(with_rows(old))
    assert one[2] == f"| `{second}` | {docstrings(path)[second]} |\n"
    assert f"| `{first}` |" in two[2]
    assert second not in two[2]
    assert "test_gone" not in two[2]


def test_each_contract_of_the_tree_has_a_table_of_its_own():
    """T1 to T13, each with all the files that bear its number, and no other's."""
    for number in range(1, 14):
        section = TEXT.split(f"### T{number}:")[1].split("###")[0]
        named = {*re.findall(r"tests/commander/(test_t\d\d_\w+\.py)", section)}
        files = {path.name for path in (ROOT / "tests/commander").glob(f"test_t{number:02}_*.py")}
        assert named == files != set()


def test_each_contract_of_the_fork_has_a_table():
    """F1 to F6."""
    for number in range(1, 7):
        section = TEXT.split(f"### F{number}:")[1].split("###")[0]
        assert "| `tests/dispatch/" in section


def test_each_contract_of_durable_runs_is_there():
    """D1 to D21; and each of their files has a table."""
    assert re.findall(r"### (D\d+):", TEXT) == [f"D{number}" for number in range(1, 22)]
    files = {path.name for path in (ROOT / "tests/store").glob("test_*.py")}
    assert {*re.findall(r"^\| `tests/store/(test_\w+\.py)`", TEXT, re.MULTILINE)} == files


def test_each_contract_of_seeing_a_run_is_there():
    """S1 to S8."""
    assert re.findall(r"### (S\d+):", TEXT) == [f"S{number}" for number in range(1, 9)]
