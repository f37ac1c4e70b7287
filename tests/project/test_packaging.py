"""The package as built and imported: packages, exports, import cost."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipFile

import pytest
from support.paths import ROOT

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())


def rooms() -> list[str]:
    return sorted(path.name for path in (ROOT / "anabranch").iterdir() if path.is_symlink())


def python(code: str, *options: str, cwd: str | Path = "/") -> str:
    done = subprocess.run(
        [sys.executable, *options, "-c", code], capture_output=True, text=True, check=True, cwd=cwd
    )
    return done.stdout


def test_every_package_is_checked_and_linked() -> None:
    """pyright's folders and the links name the same packages."""
    assert set(rooms()) <= set(SETTINGS["tool"]["pyright"]["include"])
    for room in rooms():
        assert (ROOT / room / "__init__.py").is_file()


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the tracked files, in a folder with another name than the package."""
    folder = tmp_path_factory.mktemp("layout") / "x"
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in listed.stdout.split("\0"):
        if name and not name.startswith(("tests/", "docs/", "benchmarks/", "examples/")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name, follow_symlinks=False)
    return folder


@pytest.fixture(scope="module")
def build(clone: Path) -> Callable[[str], subprocess.CompletedProcess[str]]:
    """Build a wheel as pip does, `wheel` or `editable`, with the setuptools of this environment."""

    def build(kind: str) -> subprocess.CompletedProcess[str]:
        code = f"from setuptools import build_meta; print(build_meta.build_{kind}('dist-{kind}'))"
        return subprocess.run(
            [sys.executable, "-W", "ignore", "-c", code],
            capture_output=True, text=True, check=False, cwd=clone,
        )  # fmt: skip

    return build


def names_in(clone: Path, kind: str) -> set[str]:
    (wheel,) = (clone / f"dist-{kind}").glob("*.whl")
    return set(ZipFile(wheel).namelist())


def test_the_wheel_has_each_module_and_data_file_once(
    clone: Path, build: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    """The wheel contains all files of the packages, and no others."""
    assert build("wheel").returncode == 0
    kinds = {".py", ".md", ".html", ".js", ".css", ".typed"}
    expected = {
        f"anabranch/{path.relative_to(clone).as_posix()}"
        for room in rooms()
        for path in (clone / room).rglob("*")
        if path.suffix in kinds
    } | {f"anabranch/{name}" for name in ("__init__.py", "__main__.py", "py.typed")}
    found = {name for name in names_in(clone, "wheel") if ".dist-info/" not in name}
    assert found == expected


def test_an_editable_install_shows_the_package_to_type_checkers(
    clone: Path, build: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    """Type checkers read a path file but no import hook. New files need no new install."""
    assert build("editable").returncode == 0
    (wheel,) = (clone / "dist-editable").glob("*.whl")
    (path_file,) = (name for name in names_in(clone, "editable") if name.endswith(".pth"))
    assert ZipFile(wheel).read(path_file).decode().strip() == str(clone)


@pytest.mark.checkers
def test_a_program_elsewhere_has_the_package_and_its_types(tmp_path: Path) -> None:
    """In the environment of the tests, which `make` has installed."""
    program = tmp_path / "program.py"
    program.write_text(
        "from anabranch import Job, run\n"
        "class Shout(Job[str]):\n"
        "    text: str\n"
        "    async def task(self) -> str:\n"
        "        return self.text.upper()\n"
        "reveal_type(run(Shout('hi')))\n"
    )
    for tool, option in ("pyright", "--pythonpath"), ("mypy", "--python-executable"):
        command = [sys.executable, "-m", tool, option, sys.executable, program.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        assert re.search(r'(Type of .* is|Revealed type is) "(builtins\.)?str"', done.stdout)


def test_a_clone_without_symbolic_links_says_what_to_do(
    clone: Path, build: Callable[[str], subprocess.CompletedProcess[str]]
) -> None:
    """On Windows, git replaces links with text files."""
    links = [path for path in (clone / "anabranch").iterdir() if path.is_symlink()]
    targets = {path: path.readlink() for path in links}
    for path, target in targets.items():
        path.unlink()
        path.write_text(str(target))
    try:
        built = build("wheel")
        imported = subprocess.run(
            [sys.executable, "-S", "-c", "import anabranch"],
            capture_output=True, text=True, check=False, cwd=clone,
        )  # fmt: skip
    finally:
        for path, target in targets.items():
            path.unlink()
            path.symlink_to(target)
    for done in built, imported:
        assert done.returncode != 0
        assert "git config core.symlinks true" in done.stderr.splitlines()[-1]


def test_only_the_agents_and_the_terminal_have_rooms_inside() -> None:
    """All other folders are flat."""
    nested = {
        path.parent.parent for room in rooms() for path in (ROOT / room).glob("*/__init__.py")
    }
    assert nested == {ROOT / "agents", ROOT / "cli"}


def test_importing_the_package_imports_no_extra_and_no_bare_room() -> None:
    """Extras are imported on use. Names such as `jobs` stay free for users."""
    extras = """openai aiohttp mistralrs vllm typer rich prompt_toolkit platformdirs ray mcp zmq
    jupyter_client trafilatura lxml httpx2"""
    code = "import sys, anabranch; print(*sys.modules)"
    loaded = set(python(code).split())
    assert loaded & set(extras.split()) == set()
    assert loaded & set(rooms()) == set()


def test_importing_every_room_makes_no_second_copy() -> None:
    """Each class exists once, for every order of imports."""
    code = "import sys, anabranch, " + ", ".join(f"anabranch.{room}" for room in rooms())
    assert set(python(code + "; print(*sys.modules)").split()) & set(rooms()) == set()


def test_the_package_imports_from_the_parent_folder_of_a_clone(tmp_path: Path) -> None:
    """There a clone named `anabranch` precedes the installed package."""
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
    """The exports equal the intended ones."""
    import anabranch
    from anabranch.commander import errors

    assert {*EVERYDAY.split(), *errors.__all__} <= set(anabranch.__all__)
    assert all(hasattr(anabranch, name) for name in anabranch.__all__)
