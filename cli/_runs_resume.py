"""`anabranch runs resume`: resume a run in this process, and show its progress."""

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
from ..store import Journal, JournalError, RunView, Wait
from ._display import LiveRegion, can_draw
from ._exit import FAILED, Killed, run_until_signal
from ._named import import_named, import_users_module, open_live
from ._runs_view import describe_wait, read_json
from ._terminal import (
    LegibleLog,
    complain,
    count,
    error_text,
    in_line,
    print_json,
    print_result,
    show_traceback,
)

__all__ = ["resume_run"]

POLL_SECONDS = 0.5


async def resume_run(
    journal: Journal, view: RunView, live: list[str], app: list[str], as_json: bool, debug: bool
) -> int:
    """Resume a run, wait for its end, and print its result; return the exit status."""
    run_id, state = view.run.run_id, view.run.state
    notes = Console(stderr=True, highlight=False, markup=False, soft_wrap=True)
    if state == "completed":
        notes.print(Text(legible(f"{run_id} has completed before"), "dim"))
        return _print_result(view, as_json)
    if state == "cancelled":
        raise JournalError(
            journal.name,
            f"has nothing to resume in the run {run_id!r}, which was cancelled and stays so",
            f"a new run can go on from one of its rows, anabranch runs fork {quote(run_id)} NEW"
            " --at N",
        )
    logging.getLogger().addHandler(LegibleLog())
    if state in ("failed", "parked") and view.run.class_name.startswith("__main__:"):
        await journal.resume(run_id)  # else its script would fail again when it runs again
    _import_class(view.run.class_name, app)
    killed, failure = 0, None
    async with AsyncExitStack() as stack:
        given = await open_live(live, stack)
        if state in ("failed", "parked"):
            await journal.resume(run_id)
        try:
            await run_until_signal(_resume(journal, run_id, given, notes))
        except Killed as signal:
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
        rows = count(view.run.rows, "row")
        notes.print(legible(f"{run_id} is {view.run.state}, with {rows}: {again} goes on"))
        return killed
    hint = f"; {again} tries again" if view.run.state == "failed" else ""
    complain(f"the run {run_id!r} is {view.run.state}: {error_text(failure)}{hint}")
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
    """Drive a run to its end, and report what it waits for."""
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
    """Draw the number of journal entries; print once each thing that the run waits for."""
    rows, printed = -1, set[int]()
    waits: list[Wait] = []
    while True:
        (run,) = [each for each in await journal.runs(prefix=run_id) if each.run_id == run_id]
        here = run.owner.endswith(f":{os.getpid()}")  # another process may have the run
        if here and (run.rows != rows or waits):
            rows, waits = run.rows, (await journal.look(run_id)).waits
        for wait in waits:
            if wait.number not in printed:
                printed.add(wait.number)
                hint = _hint(quote(run_id), wait)
                notes.print(Text(f"waits for {describe_wait(wait)}{hint}", "dim"))
        if region is not None:
            now = f", waits for {'; '.join(map(describe_wait, waits))}" if waits else ""
            line = in_line(f"{run_id}: {count(run.rows, 'row')}{now}", max(notes.width - 2, 20))
            region.draw([Text(line)])
        await asyncio.sleep(POLL_SECONDS)


def _hint(run_id: str, wait: Wait) -> str:
    """Return the command that ends a wait."""
    commands = {
        "approval": f"approve {run_id} {wait.number}",
        "doubt": f"approve {run_id} {wait.number} --done or --not-done",
        "signal": f"signal {run_id} {quote(wait.name)} VALUE",
    }
    command = commands.get(wait.kind)
    return legible(f" (anabranch runs {command})") if command else ""


def _import_class(class_name: str, app: list[str]) -> None:
    """Import what a run needs, before it starts."""
    for module in app:
        import_users_module(module, f"--app {module}")
    place = place_of(class_name)
    module, _, qualname = place.partition(":")
    if module == "__main__":
        raise ConfigurationError(
            f"its class {qualname} is in a script, where nobody else finds it: run that script"
            " again, which takes the run up; or move the class to a module, for the next run"
        )
    import_named(place, f"the run's class {class_name}")
