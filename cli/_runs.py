"""`anabranch runs`: show the runs of a journal, and resume, cancel, answer or remove them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime, timedelta
from difflib import get_close_matches
from shlex import quote
from typing import Annotated, Any, TypeAlias, cast

import typer

from ..commander import ConfigurationError
from ..handlers.legible import legible
from ..store import (
    Journal,
    PendingApproval,
    PendingDoubt,
    RunExists,
    RunNotFound,
    RunRow,
    RunView,
)
from ._exit import FAILED, AsJson, Debug, report_errors
from ._named import users_codec
from ._runs_view import (
    COLOURS,
    age,
    describe_question,
    describe_run,
    describe_view,
    say,
    show_run,
    show_runs,
)
from ._terminal import allow_unencodable, count, print_json

__all__ = ["runs"]

runs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="See the runs of a journal, resume them, answer their questions. Ends with status 0; 1 if"
    " it failed, or the run failed or has ended; 2 for wrong usage, as an unknown name; 128"
    " and its number after a signal. A journal with a codec needs"
    " ANABRANCH_CODEC=module:attribute.",
)

ENDED = ("completed", "failed", "cancelled")
STATES = tuple(state for state in COLOURS if state != "abandoned")
SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")
UNITS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
BATCH = 500  # runs that are read at once
MAX_NAMES = 10_000  # among which a misspelt one is looked for

RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")]
File: TypeAlias = Annotated[
    str,
    typer.Option("--journal", "-j", envvar="ANABRANCH_JOURNAL", help="The journal's file."),
]
DEFAULT = "runs.db"


Outcome: TypeAlias = int | tuple[object, str] | None
"""An exit status, or an answer: as JSON for programs, and as a line."""


def _do(
    file: str, debug: bool, as_json: bool, work: Callable[[Journal], Awaitable[Outcome]]
) -> None:
    """Do something with an existing journal, and print the answer or end with the exit status."""

    async def opened() -> Outcome:
        async with Journal(file, codec=users_codec()) as journal:
            return await work(journal)

    allow_unencodable()
    wrong = (ConfigurationError, RunNotFound, RunExists)
    with report_errors(FAILED, debug, wrong):
        try:
            if not os.path.exists(file):
                raise ConfigurationError(
                    f"there is no journal {file!r}: --journal FILE or ANABRANCH_JOURNAL names"
                    " another; run(..., journal=FILE, run_id=...) makes one"
                )
            if os.path.isfile(file) and not os.path.getsize(file):
                raise ConfigurationError(f"the file {file!r} is empty, and no journal")
            outcome = asyncio.run(opened())
            if isinstance(outcome, tuple):
                print_json(outcome[0]) if as_json else say(legible(outcome[1]))
            elif outcome:
                raise SystemExit(outcome)
        except Exception as error:
            if as_json and not isinstance(error, BrokenPipeError):  # on standard output too
                print_json({"error": f"{type(error).__name__}: {error}"})
            raise


async def _look(journal: Journal, run_id: str) -> RunView:
    """Return a run; for an unknown one, suggest similar names."""
    try:
        return await journal.look(run_id)
    except RunNotFound as error:
        names = [run.run_id for run in await journal.runs(limit=MAX_NAMES)]
        close = get_close_matches(run_id, names, n=3)
        hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ConfigurationError(f"{error}: {hint}anabranch runs list shows all") from None


@runs.command("list")
def list_runs(
    state: Annotated[str | None, typer.Option(help=f"Only {', '.join(STATES)}.")] = None,
    prefix: Annotated[str | None, typer.Option(help="Only names that begin so.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="At most so many.")] = 20,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List runs, the newest first, and what each waits for."""

    async def work(file: Journal) -> None:
        if state is not None and state not in STATES:
            raise ConfigurationError(f"there is no state {state!r}: one of {', '.join(STATES)}")
        found = await file.runs(state, prefix, limit + 1)
        views: list[RunView] = []
        for start in range(0, min(len(found), limit), BATCH):
            some = found[start : min(start + BATCH, limit)]
            views += await asyncio.gather(*(file.look(run.run_id) for run in some))
        if as_json:
            print_json([describe_view(view, rows=False) for view in views])
        elif views:
            show_runs(views)
            if len(found) > limit:
                say(f"there are more: --limit {limit * 5} shows some of them")
        elif state or prefix:
            say("no run is like that; without --state and --prefix all are listed")
        else:
            say(f"the journal {legible(journal)} has no runs yet")
            say('run(Order("A-17"), journal=FILE, run_id="order-A-17") starts one')

    _do(journal, debug, as_json, work)


@runs.command()
def show(
    run: RunId,
    rows: Annotated[bool, typer.Option("--rows", help="All rows of its history.")] = False,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a run: its inputs, state, questions and history."""

    async def work(file: Journal) -> None:
        view = await _look(file, run)
        asked = await _questions(file, run)
        if not as_json:
            show_run(view, asked, every=rows)
            return
        questions = list(map(describe_question, asked))
        print_json(describe_view(view, rows=True) | {"questions": questions})

    _do(journal, debug, as_json, work)


async def _questions(file: Journal, run_id: str) -> list[PendingApproval | PendingDoubt]:
    asked = [*await file.approvals(run_id), *await file.doubts(run_id)]
    return sorted(asked, key=lambda each: each.number)


@runs.command()
def resume(
    run: RunId,
    live: Annotated[
        list[str] | None,
        typer.Option(
            help="Value of a Live field: name=module:attribute, an object, or a function without "
            "arguments or an async context manager that gives it. May be given several times."
        ),
    ] = None,
    app: Annotated[
        list[str] | None, typer.Option(help="A module to import first. May be given several times.")
    ] = None,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Resume a run in this process, and print its result.

    Its class is imported as the journal names it, also from the current folder. Of a failed run
    only the failed parts run again. Ctrl-C suspends the run: nothing is lost.
    """
    from ._runs_resume import resume_run

    async def work(file: Journal) -> int:
        return await resume_run(file, await _look(file, run), live or [], app or [], as_json, debug)

    _do(journal, debug, as_json, work)


@runs.command()
def cancel(
    run: RunId,
    reason: Annotated[str, typer.Option(help="Why; the journal stores it.")] = "",
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Cancel a run for good, also one that another process runs."""

    async def work(file: Journal) -> Outcome:
        view = await _look(file, run)
        await file.cancel(run, reason)
        after = (await file.look(run)).run.state
        by = f" ({view.run.owner})" if view.run.owner else ""
        text = f"{run} is told to cancel: who drives it{by} ends it now"
        if after == "cancelled":
            text = f"{run} is cancelled"
        return {"run_id": run, "state": after, "reason": reason}, text

    _do(journal, debug, as_json, work)


@runs.command()
def approve(
    run: RunId,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The question's, as list and show print it.")
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Refuse the call.")] = False,
    reason: Annotated[str, typer.Option(help="Why it is refused; the model is told.")] = "",
    arguments: Annotated[
        str | None, typer.Option(help="Run the call with these instead: a JSON object.")
    ] = None,
    done: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Of a call in doubt: it was done, and gave this."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="Of a call in doubt: do it now.")
    ] = False,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Answer a run's question: whether a call may run, or was done.

    The run may be running in another process.
    """

    async def work(file: Journal) -> Outcome:
        await _look(file, run)
        asked = await _questions(file, run)
        question = next((each for each in asked if each.number == number), None)
        if question is None:
            others = ", ".join(f"{each.number} ({each.tool})" for each in asked)
            raise ConfigurationError(
                f"the run {run!r} asks no question {number}: "
                + (f"it asks {others}" if others else "it asks none now")
            )
        answer = await _answer(question, deny, reason, arguments, done, not_done)
        answered = {"run_id": run, "number": number, "tool": question.tool, "answer": answer}
        return answered, f"{question.tool} (question {number} of {run}): {answer}"

    _do(journal, debug, as_json, work)


async def _answer(
    question: PendingApproval | PendingDoubt,
    deny: bool,
    reason: str,
    arguments: str | None,
    done: str | None,
    not_done: bool,
) -> str:
    """Send the answer that the options give, and return it in a word; refuse other options."""
    about, number = f"question {question.number}", question.number
    if isinstance(question, PendingDoubt):
        if deny or reason or arguments is not None or (done is None) == (not not_done):
            raise ConfigurationError(
                f"{about} is whether {question.tool} was done: say --done VALUE, what it gave, or"
                " --not-done, and it is done now"
            )
        if done is not None:
            await question.done(done)
            return "done"
        await question.not_done()
        return "not done"
    if done is not None or not_done:
        raise ConfigurationError(
            f"{about} is whether {question.tool} may run: approve {number}, or {number} --deny"
        )
    if deny:
        if arguments is not None:
            raise ConfigurationError("a call that is denied takes no --arguments")
        await question.deny(reason)
        return "denied"
    if reason:
        raise ConfigurationError("--reason is for --deny: it is what the model is told")
    try:
        changed: Any = None if arguments is None else json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--arguments is no JSON: {error}") from None
    if not isinstance(changed, dict | None):
        raise ConfigurationError('--arguments is a JSON object: {"name": value, ...}')
    await question.approve(cast("dict[str, Any] | None", changed))
    return "approved"


@runs.command()
def signal(
    run: RunId,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The signal's name.")],
    value: Annotated[str, typer.Argument(metavar="VALUE", help="JSON, or else a text.")] = "null",
    text: Annotated[bool, typer.Option("--text", help="VALUE is a text, not JSON.")] = False,
    key: Annotated[
        str | None, typer.Option(help="An idempotency key: a repeated one sends nothing.")
    ] = None,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Send a value to a run; the journal stores it until the run asks for it."""

    async def work(file: Journal) -> Outcome:
        sent: Any = value
        if not text:
            with suppress(ValueError, RecursionError):
                found = json.loads(value)
                json.dumps(found, allow_nan=False)  # Python reads NaN, which is no JSON
                sent = found
        try:
            await file.signal(run, name, sent, key=key)
        except RunNotFound:
            await _look(file, run)
            raise
        return {"run_id": run, "signal": name, "value": sent}, f"{name} is sent to {run}"

    _do(journal, debug, as_json, work)


@runs.command()
def fork(
    run: RunId,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new run's name.")],
    at: Annotated[int, typer.Option(min=0, help="The last row that they share.")],
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Make a new run that continues from a row of another one; start it with resume.

    It repeats the effects that the other run had after that row.
    """

    async def work(file: Journal) -> Outcome:
        view = await _look(file, run)
        if at > view.run.rows:
            raise ConfigurationError(
                f"the last row of the run {run!r} is {view.run.rows}: --at is from 0 to that"
            )
        made = await file.fork(run, new, at=at)
        rows = f"{count(made.rows, 'row')} of {run}"
        return describe_run(made), f"{new} has {rows}: anabranch runs resume {quote(new)}"

    _do(journal, debug, as_json, work)


@runs.command()
def purge(
    before: Annotated[
        str, typer.Option(help="Runs that ended so long ago (30d, 12h), or before a date.")
    ],
    state: Annotated[str | None, typer.Option(help=f"Only {', '.join(ENDED)}.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    journal: File = DEFAULT,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Remove runs that have ended, with all their rows."""

    now, found = time.time(), list[RunRow]()

    async def look(file: Journal) -> Outcome:
        if state is not None and state not in ENDED:
            raise ConfigurationError(f"only runs that are over are removed: {', '.join(ENDED)}")
        moment = _moment(before, now)
        for each in ENDED if state is None else (state,):
            found.extend(run for run in await file.runs(each) if run.updated < moment)
        if found and not yes and not (sys.stdin and sys.stdin.isatty()):
            raise ConfigurationError(
                f"{count(len(found), 'run')} would be removed: --yes removes them"
            )

    async def remove(file: Journal) -> Outcome:
        removed = await file.purge(_moment(before, now), state=state) if found else 0
        return {"removed": removed}, f"{count(removed, 'run')} removed"

    _do(journal, debug, as_json, look)
    if found and not yes:  # outside of the event loop, which would delay Ctrl-C
        oldest = age(now - min(run.updated for run in found))
        question = f"remove {count(len(found), 'run')}, the oldest {oldest} old? [y/N]: "
        with report_errors(FAILED, debug):
            print(question, end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                say("nothing is removed")
                raise SystemExit(FAILED)
    _do(journal, debug, as_json, remove)


def _moment(text: str, now: float) -> float:
    try:
        if (span := SPAN.fullmatch(text.strip())) is not None:
            return now - timedelta(seconds=float(span[1]) * UNITS[span[2]]).total_seconds()
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"--before is a time span (30d, 12h, 2w) or a date (2026-01-31), not {text!r}"
        ) from None
