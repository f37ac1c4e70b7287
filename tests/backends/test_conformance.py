"""One suite for every backend (contract B1).

The small model shows the cases in `test_local_conformance.py`, vLLM in `vllm_engine`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.conformance import CASES, EXCUSED, SUBJECTS, cases, show

pytestmark = pytest.mark.contract("B1")


@pytest.mark.parametrize(("kind", "case"), cases(*SUBJECTS))
async def test_a_backend_shows(kind: str, case: str, tmp_path: Path) -> None:
    """It passes each case, or declares why it cannot."""
    await show(SUBJECTS[kind](tmp_path), case, seconds=60)


def test_what_is_declared_is_a_case() -> None:
    """Otherwise the table could hide a misspelt name."""
    assert set().union(*EXCUSED.values()) <= set(CASES)
