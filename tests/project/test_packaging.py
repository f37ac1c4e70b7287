"""The package as it is built and imported: rooms, exports, cost."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

from support.paths import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def rooms() -> list[str]:
    return sorted(path.name for path in (ROOT / "anabranch").iterdir() if path.is_symlink())


def python(code: str, *options: str, cwd: str | Path = "/") -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True, cwd=cwd
    )
    return done.stdout


def test_every_room_is_packaged() -> None:
    """A room left out of the list, or one inside a room, would be absent from the wheel."""
    packages = SETTINGS["tool"]["setuptools"]["packages"]
    inner = [path.parent for room in rooms() for path in (ROOT / room).glob("*/**/__init__.py")]
    names = [*rooms(), *(".".join(path.relative_to(ROOT).parts) for path in inner)]
    assert sorted(packages) == sorted(["anabranch", *(f"anabranch.{name}" for name in names)])


def test_every_room_is_mapped_checked_and_linked() -> None:
    """The mapping, pyright's folders and the links name the same rooms."""
    mapping = SETTINGS["tool"]["setuptools"]["package-dir"]
    assert {f"anabranch.{room}": room for room in rooms()}.items() <= mapping.items()
    assert set(rooms()) <= set(SETTINGS["tool"]["pyright"]["include"])
    for room in rooms():
        assert (ROOT / room / "__init__.py").is_file()


def test_only_the_agents_and_the_terminal_have_rooms_inside() -> None:
    """Folders are flat but there."""
    nested = {
        path.parent.parent for room in rooms() for path in (ROOT / room).glob("*/__init__.py")
    }
    assert nested == {ROOT / "agents", ROOT / "cli"}


def test_importing_the_package_imports_no_extra_and_no_bare_room() -> None:
    """Extras are imported where they are used; `jobs` and the like stay free for users."""
    extras = """openai aiohttp mistralrs vllm typer rich prompt_toolkit platformdirs ray mcp zmq
    jupyter_client trafilatura lxml httpx2"""
    code = "import sys, anabranch; print(*sys.modules)"
    loaded = set(python(code).split())
    assert loaded & set(extras.split()) == set()
    assert loaded & set(rooms()) == set()


def test_importing_every_room_makes_no_second_copy() -> None:
    """Each class exists once, whatever is imported in which order."""
    code = "import sys, anabranch, " + ", ".join(f"anabranch.{room}" for room in rooms())
    assert set(python(code + "; print(*sys.modules)").split()) & set(rooms()) == set()


def test_the_package_imports_from_the_parent_folder_of_a_clone(tmp_path: Path) -> None:
    """There a clone named `anabranch` comes before the installed package."""
    (tmp_path / "anabranch").symlink_to(ROOT)
    code = (
        "from anabranch import Job, run\n"
        "import anabranch, anabranch.cli.chat\n"
        "class Shout(Job[str]):\n"
        "    async def task(self) -> str:\n"
        "        return anabranch.__file__\n"
        "print(run(Shout()))"
    )
    found = python(code, cwd=tmp_path).strip()
    assert found == str(tmp_path / "anabranch" / "__init__.py")


def test_the_name_of_a_clone_hides_no_package_from_its_tests(tmp_path: Path) -> None:
    """pytest imports the `__init__.py` of the clone's folder under the folder's name."""
    clone = tmp_path / "colorsys"
    (clone / "tests").mkdir(parents=True)
    (clone / "anabranch").symlink_to(ROOT / "anabranch")
    (clone / "__init__.py").write_text((ROOT / "__init__.py").read_text())
    test = "def test_it():\n    import colorsys\n    assert colorsys.rgb_to_hsv\n"
    (clone / "tests" / "test_it.py").write_text(test)
    run = "import sys, pytest; sys.exit(pytest.main(sys.argv[1:]))"
    options = ("-q", "-p", "no:cacheprovider", "--import-mode=importlib", "--rootdir=.", "tests")

    done = subprocess.run([sys.executable, "-c", run, *options], capture_output=True, cwd=clone)

    assert done.returncode == 0, done.stdout.decode()


EVERYDAY = """Commander Job Handler handler Node run fork connect tool Tool Conversation Message
Part ToolCall Retry current_node"""


def test_the_everyday_names_and_all_errors_are_exported() -> None:
    """What the package exports is what is meant to be exported."""
    import anabranch
    from anabranch.commander import errors

    assert {*EVERYDAY.split(), *errors.__all__} <= set(anabranch.__all__)
    assert all(hasattr(anabranch, name) for name in anabranch.__all__)
