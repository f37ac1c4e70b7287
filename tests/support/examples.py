"""The programs of examples/, as modules and as programs in this process."""

import importlib.util
import runpy
import sys
from types import ModuleType

import pytest

from support.paths import ROOT

EXAMPLES = ROOT / "examples"


def load_example(name: str) -> ModuleType:
    """Import a fresh copy of an example."""
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # annotations and pickles are resolved there
    spec.loader.exec_module(module)
    return module


def run_example(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str) -> None:
    """Run an example as a program of this process, with these arguments."""
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *arguments])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
