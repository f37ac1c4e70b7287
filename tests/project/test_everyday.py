"""The everyday programs work, and docs/everyday.md shows them as they are."""

from __future__ import annotations

import runpy
from collections.abc import Iterator

import pytest
from support.everyday import (
    EXPECTED,
    FRAMEWORKS,
    PAGE,
    environment,
    everyday_model,
    inferred_type,
    make_page,
    program,
    python_of,
    types_on_page,
)
from support.paths import ROOT


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with everyday_model() as url:
        yield url


@pytest.mark.parametrize("task", EXPECTED)
def test_a_program_prints_the_expected_answer(
    task: str, model: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each against the model that tests/clients gives to the programs for other frameworks."""
    for name, value in environment(model).items():
        monkeypatch.setenv(name, value)
    found = runpy.run_path(str(program(task, "Anabranch")))
    if task == "fake_model":
        found["test_answer"]()
    assert capsys.readouterr().out.strip() == EXPECTED[task]


def test_the_page_is_up_to_date() -> None:
    """`make everyday` writes it."""
    programs = {program(task, each).name for task in EXPECTED for each in FRAMEWORKS}
    folders = (ROOT / "examples/everyday", ROOT / "tests/clients/everyday")
    assert {path.name for folder in folders for path in folder.glob("*.py")} == programs
    assert PAGE.read_text(encoding="utf-8") == make_page(types_on_page())


@pytest.mark.checkers
def test_the_page_shows_the_inferred_types() -> None:
    """tests/clients checks those of the other frameworks."""
    for task, types in types_on_page().items():
        path = program(task, "Anabranch")
        assert inferred_type(path, python_of("Anabranch", ROOT)) == types["Anabranch"]
