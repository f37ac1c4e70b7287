"""The entry point: checks that the terminal's packages are installed, and runs the command."""

from __future__ import annotations

import os
import sys
import threading

from ._keyboard import unechoed

__all__ = ["main"]

INTERRUPTED = 130  # as in `_exit`, whose import is slow
GRACE_SECONDS = 1.0  # for threads that tools still run


def main() -> None:
    """Run the command line in `sys.argv`; ends the process with its exit status."""
    open_missing_streams()
    # The imports take a while, in which a person may begin to type.
    with unechoed(sys.argv[1:2] == ["chat"] and "--plain" not in sys.argv):
        ended = _run()
    # The interpreter would wait for a thread of a tool, perhaps for ever.
    main_thread = threading.main_thread()
    kept = [each for each in threading.enumerate() if not (each.daemon or each is main_thread)]
    for thread in kept:
        thread.join(GRACE_SECONDS / len(kept))
    if any(thread.is_alive() for thread in kept):
        sys.stdout.flush()
        sys.stderr.flush()
        status = ended.code or 0
        os._exit(status if isinstance(status, int) else 1)
    raise ended


def _run() -> SystemExit:
    try:
        from ._app import app
    except KeyboardInterrupt:
        return SystemExit(INTERRUPTED)
    except ImportError as error:
        if error.name is None or error.name.startswith("anabranch"):
            raise
        needed = "anabranch: the terminal needs an extra: pip install 'anabranch[cli]'"
        print(needed, file=sys.stderr)
        return SystemExit(2)
    try:
        app()
    except SystemExit as ended:
        return ended
    return SystemExit(0)


def open_missing_streams() -> None:
    """Open each closed standard stream as an empty one: else a file could get its descriptor."""
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
