"""`anabranch runs resume`: a run is taken up in this process, and a person sees how it goes on."""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    nullcontext,
)
from shlex import quote
from typing import Any, cast

from rich.console import Console
from rich.status import Status
from rich.text import Text

from ..commander import AnabranchError, ConfigurationError
from ..commander.stored_names import place_of
from ..handlers.legible import legible
from ..messages.mask import mask
from ..store import Journal, JournalError, RunView, Wait
from ._exit import FAILED, KILLED, handle_signals
from ._named import import_named, import_users_module
from ._runs_view import count, describe_wait, print_json, read_json
from ._terminal import LegibleLog, complain, in_line, show_traceback

__all__ = ["bring", "resume_run"]

LOOK = 0.5  # seconds between two looks at how far it is
MOST = 2000  # characters of an error


async def resume_run(
    journal: Journal, view: RunView, live: list[str], app: list[str], as_json: bool, debug: bool
) -> int:
    """Take a run up, wait for its end, and print its result; return the exit status."""
    run_id, state = view.run.run_id, view.run.state
    notes = Console(stderr=True, highlight=False, soft_wrap=True)
    if state == "completed":
        notes.print(Text(legible(f"{run_id} has completed before"), "dim"))
        return _print_end(view, as_json)
    if state == "cancelled":
        raise JournalError(
            journal.name,
            f"has nothing to resume in the run {run_id!r}, which was cancelled and stays so",
            f"a new run can go on from one of its rows, anabranch runs fork {quote(run_id)} NEW"
            " --at N",
        )
    logging.getLogger().addHandler(LegibleLog())
    if state in ("failed", "parked") and view.run.class_name.startswith("__main__:"):
        await journal.resume(run_id)  # or to run its script again would fail as it has failed
    _import_class(view.run.class_name, app)
    async with AsyncExitStack() as stack:
        given = dict([await bring(each, stack) for each in live])
        if state in ("failed", "parked"):
            await journal.resume(run_id)
        killed, failure = await _drive(journal, run_id, given, notes)
    view = await journal.look(run_id)
    if failure is None and not killed:
        return _print_end(view, as_json)
    if debug and failure is not None:
        show_traceback(failure)
    if as_json:
        error = None if failure is None else f"{type(failure).__name__}: {failure}"
        print_json({"run_id": run_id, "state": view.run.state, "result": None, "error": error})
    again = f"anabranch runs resume {quote(run_id)}"
    if killed:
        rows = count(view.run.rows, "row")
        notes.print(legible(f"{run_id} is {view.run.state}, with {rows}: {again} goes on"))
        return KILLED + killed
    hint = f"; {again} tries again" if view.run.state == "failed" else ""
    what = f"{failure}"
    if not isinstance(failure, AnabranchError):
        what = f"{type(failure).__name__}: {failure}"
    complain(f"the run {run_id!r} is {view.run.state}: {in_line(mask(what), MOST)}{hint}")
    return FAILED


def _print_end(view: RunView, as_json: bool) -> int:
    """Print what a run has given: a text as it is, anything else as JSON."""
    result: Any = None if view.result is None else read_json(view.result)
    if as_json:
        found = {"run_id": view.run.run_id, "state": view.run.state, "result": result}
        print_json({**found, "error": view.error})
    elif isinstance(result, str):
        print(legible(result))
    else:
        print_json(result)
    return 0


async def _drive(
    journal: Journal, run_id: str, live: dict[str, Any], notes: Console
) -> tuple[int, Exception | None]:
    """Drive a run to its end; return the signal that suspended it, or 0, and its failure."""
    killed = 0
    task = asyncio.create_task(journal.take_up(run_id, live=live))

    def stop(number: int) -> None:
        nonlocal killed
        killed = killed or number
        task.cancel()

    # A line at the foot of a terminal, where there is one.
    foot: AbstractContextManager[Status | None] = nullcontext()
    if notes.is_terminal and not notes.is_dumb_terminal:
        foot = Status(legible(run_id), console=notes)
    with handle_signals(stop), foot as status:
        watching = asyncio.create_task(_watch(journal, run_id, notes, status))
        try:
            await task
        except asyncio.CancelledError:
            if not killed:
                raise
        except Exception as error:  # noqa: BLE001 - it is the run's, and is told as such
            return killed, error
        else:
            killed = 0  # it came too late
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
    return killed, None


async def _watch(journal: Journal, run_id: str, notes: Console, status: Status | None) -> None:
    """Say how many rows there are, and once of each thing that the run begins to wait for."""
    rows, said = -1, set[int]()
    waits: list[Wait] = []
    while True:
        (run,) = [each for each in await journal.runs(prefix=run_id) if each.run_id == run_id]
        here = run.owner.endswith(f":{os.getpid()}")  # else another process may have it
        if here and (run.rows != rows or waits):
            rows, waits = run.rows, (await journal.look(run_id)).waits
        for wait in waits:
            if wait.number not in said:
                said.add(wait.number)
                notes.print(
                    Text(f"waits for {describe_wait(wait)}{_hint(quote(run_id), wait)}", "dim")
                )
        if status is not None:
            now = f", waits for {'; '.join(map(describe_wait, waits))}" if waits else ""
            line = in_line(f"{run_id}: {count(run.rows, 'row')}{now}", max(notes.width - 4, 20))
            status.update(Text(line))
        await asyncio.sleep(LOOK)


def _hint(run_id: str, wait: Wait) -> str:
    match wait.kind:
        case "approval":
            return f" (anabranch runs approve {legible(run_id)} {wait.number})"
        case "doubt":
            return f" (anabranch runs approve {legible(run_id)} {wait.number} --done or --not-done)"
        case "signal":
            return f" (anabranch runs signal {legible(run_id)} {legible(quote(wait.name))} VALUE)"
        case _:
            return ""


def _import_class(class_name: str, app: list[str]) -> None:
    """Import what a run needs, before the run is touched."""
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


async def bring(spec: str, stack: AsyncExitStack) -> tuple[str, Any]:
    """Make what a `--live` names; it is open for as long as the stack."""
    name, equals, place = spec.partition("=")
    if not (equals and name and ":" in place):
        raise ConfigurationError(f"--live is name=module:attribute, not {spec!r}")
    named = import_named(place, f"--live {spec}")
    found = named
    if isinstance(named, type) or not hasattr(named, "__aenter__"):
        found: Any = named() if callable(named) else named
    if inspect.isawaitable(found):
        found = await found
    if isinstance(found, AbstractAsyncContextManager):
        found = await stack.enter_async_context(cast("AbstractAsyncContextManager[Any]", found))
    return name, found
