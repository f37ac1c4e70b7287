"""`anabranch runs resume`: resume a run in this process and show its progress."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from contextlib import AsyncExitStack, nullcontext
from shlex import quote
from typing import Any

from rich.console import Console
from rich.text import Text

from ..commander import ConfigurationError
from ..commander.stored_names import place_of
from ..handlers.legible import legible
from ..store import Journal, JournalError, RunView, RunWait
from ._display import LiveRegion, can_draw
from ._exit import FAILED, KilledBySignal, run_until_signal
from ._output import (
    LegibleLog,
    error_text,
    format_count,
    one_line,
    print_error,
    print_json,
    print_result,
    show_traceback,
)
from ._runs_view import describe_wait, read_json
from ._user_code import import_module_named, import_named, open_live

__all__ = ["resume_run"]

REPORT_POLL_SECONDS = 0.5


async def resume_run(
    journal: Journal, view: RunView, live: list[str], app: list[str], as_json: bool, debug: bool
) -> int:
    """Resume a run, wait for its end, and print its result; return the exit status."""
    run_id, state = view.run.run_id, view.run.state
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if state == "completed":
        notes.print(Text(legible(f"{run_id} had already completed"), "dim"))
        return _print_result(view, as_json)
    if state == "cancelled":
        raise JournalError(
            journal.name,
            f"cannot resume the run {run_id!r}, since it was cancelled",
            f"continue in a copy: anabranch runs fork {quote(run_id)} NEW --at N",
        )
    logging.getLogger().addHandler(LegibleLog())
    if state in ("failed", "parked") and view.run.class_name.startswith("__main__:"):
        # Otherwise its script, run again, would only repeat the recorded failure.
        await journal.resume(run_id)
    _import_class(view.run.class_name, app)
    killed, failure = 0, None
    async with AsyncExitStack() as stack:
        live_values = await open_live(live, stack)
        if state in ("failed", "parked"):
            await journal.resume(run_id)
        try:
            await run_until_signal(_resume(journal, run_id, live_values, notes))
        except KilledBySignal as signal:
            killed, failure = signal.status, signal.error
        except Exception as error:  # noqa: BLE001 - the run's own
            failure = error
    view = await journal.look(run_id)
    if failure is None and not killed:
        return _print_result(view, as_json)
    if debug and failure is not None:
        show_traceback(failure)
    if as_json:
        error = None if failure is None else f"{type(failure).__name__}: {failure}"
        print_json({"run_id": run_id, "state": view.run.state, "result": None, "error": error})
    again = f"anabranch runs resume {quote(run_id)}"
    if failure is None or killed:
        rows = format_count(view.run.rows, "row")
        notes.print(legible(f"{run_id} is {view.run.state} after {rows}. Continue: {again}"))
        return killed
    hint = f". Try again: {again}" if view.run.state == "failed" else ""
    print_error(f"the run {run_id!r} is {view.run.state}: {error_text(failure)}{hint}")
    return FAILED


def _print_result(view: RunView, as_json: bool) -> int:
    result = None if view.result is None else read_json(view.result)
    if as_json:
        found = {"run_id": view.run.run_id, "state": view.run.state, "result": result}
        print_json(found | {"error": view.error})
    else:
        print_result(result)
    return 0


async def _resume(journal: Journal, run_id: str, live: dict[str, Any], notes: Console) -> None:
    """Execute a run to its end, and report its waits."""
    region = LiveRegion() if can_draw(sys.stderr) else None
    with nullcontext() if region is None else region:
        reporting = asyncio.create_task(_report(journal, run_id, notes, region))
        try:
            await journal.take_up(run_id, live=live)
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)
            if region is not None:
                region.draw([])


async def _report(journal: Journal, run_id: str, notes: Console, region: LiveRegion | None) -> None:
    """Draw the number of journal entries; print each wait of the run once."""
    rows, printed = -1, set[int]()
    waits: list[RunWait] = []
    while True:
        (run,) = [each for each in await journal.runs(prefix=run_id) if each.run_id == run_id]
        here = run.owner.endswith(f":{os.getpid()}")  # otherwise another process executes it
        if here and (run.rows != rows or waits):
            rows, waits = run.rows, (await journal.look(run_id)).waits
        for wait in waits:
            if wait.number not in printed:
                printed.add(wait.number)
                hint = _hint(quote(run_id), wait)
                notes.print(Text(f"waits for {describe_wait(wait)}{hint}", "dim"))
        if region is not None:
            now = f", waits for {'; '.join(map(describe_wait, waits))}" if waits else ""
            line = one_line(
                f"{run_id}: {format_count(run.rows, 'row')}{now}", max(notes.width - 2, 20)
            )
            region.draw([Text(line)])
        await asyncio.sleep(REPORT_POLL_SECONDS)


def _hint(run_id: str, wait: RunWait) -> str:
    """Return the command that ends a wait."""
    commands = {
        "approval": f"approve {run_id} {wait.number}",
        "doubt": f"approve {run_id} {wait.number} --done or --not-done",
        "signal": f"signal {run_id} {quote(wait.name)} VALUE",
    }
    command = commands.get(wait.kind)
    return legible(f" (anabranch runs {command})") if command else ""


def _import_class(class_name: str, app: list[str]) -> None:
    """Import the modules of `--app` and the class of a run."""
    for module in app:
        import_module_named(module, f"--app {module}")
    place = place_of(class_name)
    module, _, qualname = place.partition(":")
    if module == "__main__":
        raise ConfigurationError(
            f"the class {qualname} of the run is defined in a script, so it cannot be imported. Run"
            " the script again to resume the run"
        )
    import_named(place, f"the class {class_name} of the run")
