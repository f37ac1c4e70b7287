"""Skip test suites whose requirements a machine lacks, and report each skipped suite."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

__all__ = ["report_skipped", "skip_suite", "tests_in"]


def skip_suite(items: list[pytest.Item], folder: Path, name: str) -> None:
    """Skip all tests of a folder."""
    for item in tests_in(items, folder):
        item.add_marker(pytest.mark.skip(reason=f"{name}: not run"))


def tests_in(items: list[pytest.Item], folder: Path) -> list[pytest.Item]:
    """Return the tests of a folder. It compares strings, which is ten times as fast as paths."""
    return [item for item in items if str(item.path).startswith(f"{folder}/")]


def report_skipped(reporter: Any, name: str, what: str) -> None:
    """Print the number of a suite's skipped tests, followed by `what`."""
    skipped = reporter.stats.get("skipped", [])
    if count := sum(f"{name}: not run" in str(report.longrepr) for report in skipped):
        reporter.section(f"{name}: NOT RUN")
        reporter.line(f"{count} tests {what}")
