"""Refuse to build from a clone without symbolic links; pyproject.toml holds everything else."""

from pathlib import Path

from setuptools import setup

if not Path(__file__).with_name("anabranch").joinpath("commander").is_dir():
    raise SystemExit(
        "anabranch/ needs symbolic links, and this clone has text files instead. Run"
        " `git config core.symlinks true` and `git checkout -- anabranch` (on Windows with"
        " Developer Mode on), then install again."
    )

setup()
