"""The entry point: finds out whether the terminal's packages are there, and hands over."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line in `sys.argv`; ends the process with its exit status."""
    try:
        from ._app import app
    except ImportError as error:
        if error.name is None or error.name.startswith("anabranch"):
            raise
        needed = "anabranch: the terminal needs an extra: pip install 'anabranch[cli]'"
        print(needed, file=sys.stderr)
        raise SystemExit(2) from None
    app()
