"""The folders of the project and of its tests."""

from pathlib import Path

__all__ = ["DATA", "PROGRAMS", "ROOT", "TESTS"]

TESTS = Path(__file__).parents[1]
PROGRAMS = TESTS / "programs"
DATA = TESTS / "data"
ROOT = TESTS.parent
