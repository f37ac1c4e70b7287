"""One suite for every backend (contract B1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from _conformance import CASES, SUBJECTS


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", SUBJECTS)
async def test_a_backend_shows(
    kind: str, case: str, tmp_path: Path, record_property: pytest.RecordProperty
) -> None:
    """Each case, or declares why it cannot."""
    subject = SUBJECTS[kind](tmp_path)
    if case in subject.exceptions:
        pytest.skip(f"declared: {kind}: {case}: {subject.exceptions[case]}")
    async with asyncio.timeout(60), subject.stack:
        await CASES[case](subject)


def test_what_is_declared_is_a_case() -> None:
    """Or the table would hide a wrong name."""
    for make in SUBJECTS.values():
        assert set(make(Path()).exceptions) <= set(CASES)
