"""Places that installed packages add through entry points."""

import re
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from anabranch.commander import Commander, ConfigurationError
from anabranch.commander.plugins import plugin_names
from anabranch.jobs import Job

PAGE = (ROOT / "docs/engine-limits.md").read_text(encoding="utf-8")


class Ask(Job[str]):
    async def task(self) -> str:
        return "done"


class AskThere(Ask):
    on = "here"


@pytest.fixture
def _installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    section = PAGE.partition("## A place of your own")[2]
    module, table = re.findall(r"```(?:python|toml)\n(.*?)```", section, re.DOTALL)
    points = (
        table.partition("[project.entry-points.")[2].replace('"', "").replace("here = ", "here=")
    )
    points += "nowhere = here:Missing\nnothing = json:dumps\n"
    info = tmp_path / "here-1.0.dist-info"
    info.mkdir()
    (tmp_path / "here.py").write_text(module)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: here\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[" + points)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "here", raising=False)


@pytest.mark.usefixtures("_installed")
async def test_an_installed_package_brings_a_place() -> None:
    """The example of the docs page works by name, in the call and in the job's class."""
    async with Commander() as commander:
        assert "here" not in sys.modules
        assert await commander.run(Ask(), on="here") == "done"
        assert await commander.run(AskThere()) == "done"
    assert "here" in sys.modules


@pytest.mark.usefixtures("_installed")
async def test_a_name_that_is_no_place_is_refused_at_once() -> None:
    """The error lists the known places or the broken package. No node is put."""
    assert {"here", "ray"} <= {*plugin_names("anabranch.places")}
    async with Commander() as commander:
        for name, words in {
            "mars": "unknown place 'mars'.*'here'.*'ray'",
            "nowhere": "of the package here cannot be loaded",
            "nothing": "on= must be a name or a place",
        }.items():
            with pytest.raises((ValueError, ConfigurationError), match=words):
                commander.put_job(Ask(), on=name)
        assert commander.children == ()
