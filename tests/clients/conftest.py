"""Tests with clients of other projects, which `run.sh` installs. Others report "not run"."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from support.optional_suites import report_skipped, skip_suite


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if "ANABRANCH_CLIENTS" not in os.environ:
        skip_suite(items, Path(__file__).parent, "clients")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    report_skipped(terminalreporter, "clients", "of others' clients did not run: make test-clients")
    for report in terminalreporter.stats.get("passed", []):
        if "version " in report.capstdout:
            terminalreporter.line(f"{report.nodeid}: {report.capstdout.strip()}")
