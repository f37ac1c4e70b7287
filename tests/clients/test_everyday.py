"""The everyday programs for other frameworks do what those for Anabranch do."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.everyday import (
    EXPECTED,
    FRAMEWORKS,
    environment,
    everyday_model,
    inferred_type,
    program,
    python_of,
    types_on_page,
)

CLIENTS = Path(os.environ.get("ANABRANCH_CLIENTS", "none")).absolute()
OTHERS = [name for name, (suffix, _) in FRAMEWORKS.items() if suffix]
CALL_TESTS = "import runpy, sys; runpy.run_path(sys.argv[1])['test_answer']()"


@pytest.fixture(scope="module")
def model() -> Iterator[str]:
    with everyday_model() as url:
        yield url


@pytest.mark.parametrize("framework", OTHERS)
def test_the_programs_print_the_expected_answers(framework: str, model: str) -> None:
    """Each as its own process."""
    python = python_of(framework, CLIENTS)
    if not python.exists():
        pytest.skip("the client could not be installed")

    def run(task: str) -> str:
        start = ["-P", "-c", CALL_TESTS] if task == "fake_model" else []
        done = subprocess.run(
            [python, *start, program(task, framework)],
            env={**os.environ, **environment(model), "PYTHONPATH": ""},
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout.strip() if done.returncode == 0 else done.stderr[-3000:]

    with ThreadPoolExecutor(2) as pool:
        assert dict(zip(EXPECTED, pool.map(run, EXPECTED), strict=True)) == EXPECTED


@pytest.mark.parametrize("framework", OTHERS)
def test_the_page_shows_the_inferred_types(framework: str) -> None:
    """`make everyday` writes them."""
    python = python_of(framework, CLIENTS)
    if not python.exists():
        pytest.skip("the client could not be installed")
    for task, types in types_on_page().items():
        assert inferred_type(program(task, framework), python) == types[framework]
