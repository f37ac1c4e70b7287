"""Tools are found by `module:name`."""

import subprocess
import sys
from pathlib import Path

import pytest

from anabranch.commander.errors import ConfigurationError
from anabranch.tools import load_tools

MODULE = """
from anabranch.tools import tool

@tool
def one() -> int: "One."; return 1

@tool(name="second")
def two() -> int: "Two."; return 2

def plain(x: int) -> int: "Plain."; return x

both = [one, two]
number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"tools_of_{tmp_path.name}".replace("-", "_")
    (tmp_path / f"{name}.py").write_text(MODULE)
    (tmp_path / f"{name}_broken.py").write_text("import nothing_of_this_name")
    (tmp_path / f"{name}_empty.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return name


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (":one", ["one"]),
        (":one,two", ["one", "second"]),
        (":both", ["one", "second"]),
        (":plain", ["plain"]),
        ("", ["one", "second"]),
    ],
)
def test_tools_functions_and_lists_are_found(module: str, names: str, found: list[str]):
    """In a module of the working directory."""
    assert [tool.name for tool in load_tools(module + names)] == found


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("{}:three", "has no 'three'; its tools are one, two"),
        ("{}:number", "number cannot be a tool"),
        ("{}_broken:x", "_broken': ModuleNotFoundError: No module named 'nothing_of"),
        ("{}_empty", "has no tools"),
        ("no_such_module:x", "import the tools module 'no_such_module'"),
        (":x", "cannot import the tools module ''"),
    ],
)
def test_a_wrong_name_says_what_is_wrong(module: str, spec: str, said: str):
    """The error is one line with the reason."""
    with pytest.raises(ConfigurationError) as raised:
        load_tools(spec.format(module))

    assert said in str(raised.value)
    assert "\n" not in str(raised.value)


def test_importing_the_room_imports_no_toolkit_and_no_extra():
    """A program with only its own tools does not import the built-in ones."""
    code = "import sys, anabranch.tools; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd="/")
    loaded = set(done.stdout.split())

    assert "anabranch.tools._tool" in loaded
    toolkits = {
        f"anabranch.tools.{name}" for name in ("_load", "_mcp", "_python", "_search", "_web")
    }
    extras = {"aiohttp", "mcp", "jupyter_client", "zmq", "ipykernel", "trafilatura", "lxml"}
    assert not loaded & (toolkits | extras)
