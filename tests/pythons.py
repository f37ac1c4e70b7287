"""Run the core tests on every CPython that this project supports and this machine has.

    python tests/pythons.py [--but-own | --only-own] [--lowest] [pytest arguments]

It searches PATH, ~/.pyenv/versions and the folder of uv's interpreters. It starts each interpreter
that it finds, because a shim of pyenv may not work. Each minor version gets a virtual environment
such as `.venv-3.12` with the newest dependencies. The core is the engine, messages, dispatch,
handlers, jobs, store, tools and the HTTP backends, without a local model.

The run fails if fewer than three minor versions were found, unless ANABRANCH_PYTHONS=any is set.
`--but-own` leaves out the version of the running Python, for which `make test` runs everything.
`--only-own` runs that version alone. `--lowest` runs the tests that need only anyio and pydantic,
on the oldest version found, with the lowest versions of these two that pyproject.toml allows.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
OLDEST = (3, 11)
ENOUGH = 3
EXTRAS = "openai,http,cli,python,web,mcp,otel"
# Almost all of these need no extra.
BARE = "commander dispatch handlers jobs messages store testing"
CORE = f"{BARE} backends tools project/test_pickle.py project/test_private_names.py"
# These need a local model or an engine.
LEFT_OUT = "backends/test_local* backends/test_vllm* backends/test_warm.py backends/test_weights.py"
NOT_BARE = """
    commander/test_t01_holders.py commander/test_t12_slow.py dispatch/test_repeats.py
    dispatch/test_wire.py handlers/test_formats.py handlers/test_output_types.py
    messages/test_options.py store/test_canonical.py
    store/test_failure.py store/test_keys.py store/test_kernel.py store/test_processes.py
"""

ASK = """
import json, platform, sys, sysconfig
free = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
about = platform.python_implementation(), sys.version_info[:], sys.executable, free
print(json.dumps(about))
"""


class Python(NamedTuple):
    """An interpreter that works."""

    minor: tuple[int, int]
    patch: int
    path: str

    @property
    def version(self) -> str:
        """The complete version, as text."""
        return _dotted((*self.minor, self.patch))


def main() -> int:
    """Run the tests; return the exit status."""
    arguments = sys.argv[1:]
    options = {"--but-own", "--only-own", "--lowest"}.intersection(arguments)
    arguments = [each for each in arguments if each not in options]
    pythons = find()
    if not pythons:
        print(f"no CPython from {_dotted(OLDEST)} up was found: install one")
        return 1
    if "--lowest" in options:
        return run_lowest(pythons[0], arguments)
    found = {python.minor for python in pythons}
    if len(found) < ENOUGH and os.environ.get("ANABRANCH_PYTHONS") != "any":
        names = ", ".join(map(_dotted, sorted(found)))
        print(
            f"only {len(found)} of {ENOUGH} minor versions of CPython were found: {names}. Install"
            " others ('uv python install 3.12 3.13', or pyenv), or set ANABRANCH_PYTHONS=any."
        )
        return 1
    ended: list[tuple[str, int]] = []
    for python in pythons:
        is_own = python.minor == sys.version_info[:2]
        if "--but-own" in options and is_own:
            print(f"== {python.version}: left to `make test`", flush=True)
            continue
        if "--only-own" in options and not is_own:
            continue
        tests = tests_of(CORE, LEFT_OUT)
        venv = ROOT / f".venv-{_dotted(python.minor)}"
        install(python, venv, [f"-e.[{EXTRAS}]", "fastapi", "matplotlib", "pip", "--group", "test"])
        ended.append((python.version, run_tests(python, venv, tests, arguments)))
    for version, status in ended:
        print(f"{version}: {'passed' if not status else f'pytest ended with status {status}'}")
    return max((status for _, status in ended), default=0)


def run_lowest(python: Python, arguments: list[str]) -> int:
    """Run the bare tests with the lowest dependencies."""
    with tempfile.NamedTemporaryFile("w+", suffix=".txt") as pins:
        uv("pip", "compile", "-q", "--resolution", "lowest-direct", "--python-version",
           _dotted(python.minor), "pyproject.toml", "-o", pins.name)  # fmt: skip
        for line in Path(pins.name).read_text().splitlines():
            if "==" in line:
                print(f"  {line}")
        venv = ROOT / ".venv-lowest"
        install(python, venv, ["-e.", "-r", pins.name, "--group", "test"])
    return run_tests(python, venv, tests_of(BARE, NOT_BARE), arguments)


def tests_of(names: str, but: str) -> list[str]:
    """Return the test files of these folders and names."""
    folder = ROOT / "tests"
    left_out = {path for each in but.split() for path in folder.glob(each)}
    found = {path for each in names.split() for path in _files(folder / each)}
    return [str(path.relative_to(ROOT)) for path in sorted(found - left_out)]


def _files(path: Path) -> list[Path]:
    return [path] if path.is_file() else list(path.glob("test_*.py"))


def install(python: Python, venv: Path, packages: list[str]) -> None:
    """Create or update the environment."""
    print(f"== {python.version}: installing into {venv.name}", flush=True)
    uv("venv", "-q", "--allow-existing", "--python", python.path, str(venv))
    uv("pip", "install", "-q", "--upgrade", "--python", str(_python_of(venv)), *packages)


def run_tests(python: Python, venv: Path, tests: list[str], arguments: list[str]) -> int:
    """Run pytest; return its exit status."""
    print(f"== {python.version}: {len(tests)} test files", flush=True)
    parallel = ["--numprocesses", "auto", "--dist", "loadgroup"]
    python_path = _python_of(venv)
    command = [str(python_path), "-m", "pytest", "-q", *parallel, *tests, *arguments]
    path = os.pathsep.join([str(python_path.parent), os.environ["PATH"]])
    return subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PATH": path}, check=False
    ).returncode


def _python_of(venv: Path) -> Path:
    return venv / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def uv(*arguments: str) -> None:
    """Run uv, which is beside the running Python, or on PATH."""
    subprocess.run([_uv(), *arguments], cwd=ROOT, check=True)


def _uv() -> str:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    if (found := shutil.which("uv", path=path)) is None:
        raise SystemExit("uv was not found: run `make test-pythons`, which installs it into .venv")
    return found


# --- finding the interpreters


def find() -> list[Python]:
    """Return the newest interpreter of each minor version, and print all that were tried."""
    found: dict[tuple[int, int], Python] = {}
    seen = set[str]()
    print("looking on PATH, in ~/.pyenv/versions and where uv keeps interpreters:")
    for path in sorted(set(_candidates())):
        python = _start(path)
        if isinstance(python, str):
            print(f"  {path}: not used, {python}")
        elif python.path not in seen:
            seen.add(python.path)
            print(f"  {path}: {python.version}")
            found[python.minor] = max(python, found.get(python.minor, python))
    return [found[minor] for minor in sorted(found)]


def _candidates() -> Iterator[str]:
    folders = [Path(each) for each in os.environ["PATH"].split(os.pathsep) if each]
    folders += Path.home().glob(".pyenv/versions/*/bin")
    for folder in folders:
        for path in [folder / "python3", *folder.glob("python3.[1-9][0-9]")]:
            if path.is_file() and not (folder.parent / "pyvenv.cfg").exists():
                yield str(path)
    listed = subprocess.run(
        [_uv(), "python", "list", "--only-installed", "--output-format", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    for each in json.loads(listed.stdout or "[]"):
        yield each["path"]


def _start(path: str) -> Python | str:
    """Return the interpreter at a path, or the reason to skip it."""
    try:
        asked = subprocess.run(
            [path, "-c", ASK], capture_output=True, text=True, check=False, timeout=30
        )
        name, version, executable, free = json.loads(asked.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"it does not start ({error})"
    except ValueError:
        return f"it does not start: {' '.join(asked.stderr.split())[:80]}"
    if name != "CPython" or free or version[3] != "final":
        kind = "free-threaded" if free else version[3]
        return f"it is {name} {_dotted(version[:3])}, {kind}"
    if tuple(version[:2]) < OLDEST:
        return f"it is {_dotted(version[:3])}"
    return Python((version[0], version[1]), version[2], os.path.realpath(executable))


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


if __name__ == "__main__":
    raise SystemExit(main())
