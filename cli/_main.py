"""The entry point: runs the command line, or names the extra to install if it is missing."""

from __future__ import annotations

import os
import sys
import threading

from ._keyboard import disable_echo

__all__ = ["main"]

CTRL_C_STATUS = 130  # the same as `_exit.INTERRUPTED`; importing `_exit` here would be slow
THREAD_GRACE_SECONDS = 1.0  # for threads that tools still run at the end


def main() -> None:
    """Run the command line in `sys.argv`. Ends the process with the command's exit status."""
    open_missing_streams()
    # The user may begin to type while the imports run.
    with disable_echo(sys.argv[1:2] == ["chat"] and "--plain" not in sys.argv):
        ended = _run()
    # The interpreter waits at its exit for threads of tools, and some never end.
    main_thread = threading.main_thread()
    running = [each for each in threading.enumerate() if not (each.daemon or each is main_thread)]
    for thread in running:
        thread.join(THREAD_GRACE_SECONDS / len(running))
    if any(thread.is_alive() for thread in running):
        sys.stdout.flush()
        sys.stderr.flush()
        status = ended.code or 0
        os._exit(status if isinstance(status, int) else 1)
    raise ended


def _run() -> SystemExit:
    try:
        from ._app import app
    except KeyboardInterrupt:
        return SystemExit(CTRL_C_STATUS)
    except ImportError as error:
        if error.name is None or error.name.startswith("anabranch"):
            raise
        needed = "anabranch: the command line is not installed: pip install 'anabranch[cli]'"
        print(needed, file=sys.stderr)
        return SystemExit(2)
    try:
        app()
    except SystemExit as ended:
        return ended
    return SystemExit(0)


def open_missing_streams() -> None:
    """Open each closed standard stream on the null device.

    Otherwise the next opened file could get its descriptor, and output would be written into it.
    """
    for name, mode in ("stdin", "r"), ("stdout", "w"), ("stderr", "w"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115
