"""Sources of tools from installed packages."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

import pytest
from support.paths import ROOT

from anabranch.commander import ConfigurationError
from anabranch.tools import open_tools

PAGE = (ROOT / "docs" / "tools.md").read_text(encoding="utf-8")
GROUP = "anabranch.tools"


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Install a package on the path."""

    def install(package: str, module: str, points: str) -> None:
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (tmp_path / f"{package}.py").write_text(module)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{points}\n")

    monkeypatch.syspath_prepend(tmp_path)
    yield install
    for name in "library", "burrow", "magpie", "den":
        sys.modules.pop(name, None)


async def test_an_installed_package_brings_tools(install):
    """The page's example is imported at its first use, and closed with the block."""
    section = PAGE.partition("A toolkit is a class")[2]
    module, table = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    points = tomllib.loads(table)["project"]["entry-points"][GROUP]
    install("library", module, "\n".join(f"{name} = {value}" for name, value in points.items()))
    async with open_tools("anabranch.tools.examples:calculate"):
        assert "library" not in sys.modules

    async with open_tools("shelf:novels, anabranch.tools.examples:calculate,get_time") as tools:
        assert [tool.name for tool in tools] == ["put", "calculate", "get_time"]
        shelf = tools[0].function.__self__
        assert shelf.label == "novels"
        assert await tools[0].run({"title": "Emma"}) == "1"
    assert shelf.books.get() == []

    async with open_tools("anabranch.tools.examples:calculate,shelf") as tools:
        assert [tool.name for tool in tools] == ["calculate", "put"]


@pytest.mark.parametrize(
    ("module", "spec", "said"),
    [
        ("1 / 0", "burrow", "package burrow cannot be loaded from 'burrow:make'"),
        ("def make(text): return text", "burrow:x", "'burrow:x' must return a Toolkit, not str"),
        ("make = 5", "burrow:x", "the entry point 'burrow:x' must be a function, not int"),
    ],
)
async def test_a_package_at_fault_is_a_clear_error(install, module: str, spec: str, said: str):
    """The error names the package, or the requested name."""
    install("burrow", module, "burrow = burrow:make")

    with pytest.raises(ConfigurationError, match=said):
        async with open_tools(spec):
            pass


async def test_a_package_cannot_take_a_name_of_this_one(install):
    """Otherwise the documentation would be wrong."""
    install("magpie", "1 / 0", "web = magpie:make")

    async with open_tools("web:arxiv") as tools:
        assert [tool.name for tool in tools] == ["web_search", "web_read"]


async def test_a_name_that_two_packages_bring_is_neither(install):
    """The order of the path must not decide."""
    install("magpie", "", "nest = magpie:make")
    install("den", "", "nest = den:make")

    with pytest.raises(ConfigurationError, match="den and magpie"):
        async with open_tools("nest"):
            pass


async def test_what_a_source_does_not_take_is_refused():
    """Nothing is ignored silently."""
    with pytest.raises(ConfigurationError, match="'fast'"):
        async with open_tools("python:fast"):
            pass
