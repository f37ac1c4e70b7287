"""`anabranch runs`: list the runs of a journal, and show, resume, cancel, answer or remove them."""

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
from ._output import allow_unencodable, format_count, print_json, print_line
from ._runs_view import (
    STATE_STYLES,
    describe_question,
    describe_run,
    describe_view,
    format_age,
    show_run,
    show_runs,
)
from ._user_code import load_codec

__all__ = ["runs"]

runs = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Show and resume the runs of a journal, and answer their questions. Exit status: 0; 1 if"
    " the command or the run failed, or if the run has ended; 2 for wrong usage, such as an unknown"
    " run; 128 plus its number after a signal. For a journal with a codec, set"
    " ANABRANCH_CODEC=module:name.",
)

ENDED_STATES = ("completed", "failed", "cancelled")
RUN_STATES = tuple(state for state in STATE_STYLES if state != "abandoned")
TIME_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|w)")
SPAN_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
VIEWS_PER_BATCH = 500  # read from the journal at the same time
MAX_COMPARED_NAMES = 10_000  # with a misspelled name

RunArgument: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="The name of the run.")]
JournalOption: TypeAlias = Annotated[
    str,
    typer.Option("--journal", "-j", envvar="ANABRANCH_JOURNAL", help="The journal file."),
]
DEFAULT_JOURNAL = "runs.db"


Outcome: TypeAlias = int | tuple[object, str] | None
"""An exit status, or an outcome as JSON and as a line of text."""


def _run_command(
    file: str, debug: bool, as_json: bool, work: Callable[[Journal], Awaitable[Outcome]]
) -> None:
    """Run `work` with an existing journal, and print its outcome or exit with its status."""

    async def opened() -> Outcome:
        async with Journal(file, codec=load_codec()) as journal:
            return await work(journal)

    allow_unencodable()
    wrong = (ConfigurationError, RunNotFound, RunExists)
    with report_errors(FAILED, debug, wrong):
        try:
            if not os.path.exists(file):
                raise ConfigurationError(
                    f"there is no journal {file!r}. Name another with --journal or"
                    " ANABRANCH_JOURNAL, or create one: anabranch run MODULE:JOB --journal FILE"
                    " --run-id NAME"
                )
            if os.path.isfile(file) and not os.path.getsize(file):
                raise ConfigurationError(f"the file {file!r} is empty, not a journal")
            outcome = asyncio.run(opened())
            if isinstance(outcome, tuple):
                print_json(outcome[0]) if as_json else print_line(legible(outcome[1]))
            elif outcome:
                raise SystemExit(outcome)
        except Exception as error:
            if as_json and not isinstance(error, BrokenPipeError):  # programs read standard output
                print_json({"error": f"{type(error).__name__}: {error}"})
            raise


async def _view_run(journal: Journal, run_id: str) -> RunView:
    """Return a run; suggest similar names for an unknown one."""
    try:
        return await journal.look(run_id)
    except RunNotFound as error:
        names = [run.run_id for run in await journal.runs(limit=MAX_COMPARED_NAMES)]
        close = get_close_matches(run_id, names, n=3)
        hint = f"Did you mean {' or '.join(map(repr, close))}? " if close else ""
        raise ConfigurationError(f"{error}. {hint}List all: anabranch runs list") from None


@runs.command("list")
def list_runs(
    state: Annotated[
        str | None, typer.Option(help=f"Only runs in this state: {', '.join(RUN_STATES)}.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Only runs whose names start with this.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="The maximum number of runs.")
    ] = 20,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List runs, newest first, with their state and what they wait for."""

    async def work(file: Journal) -> None:
        if state is not None and state not in RUN_STATES:
            raise ConfigurationError(
                f"unknown state {state!r}. Use one of: {', '.join(RUN_STATES)}"
            )
        found = await file.runs(state, prefix, limit + 1)
        views: list[RunView] = []
        for start in range(0, min(len(found), limit), VIEWS_PER_BATCH):
            some = found[start : min(start + VIEWS_PER_BATCH, limit)]
            views += await asyncio.gather(*(file.look(run.run_id) for run in some))
        if as_json:
            print_json([describe_view(view, rows=False) for view in views])
        elif views:
            show_runs(views)
            if len(found) > limit:
                print_line(f"there are more runs. Show them: --limit {limit * 5}")
        elif state or prefix:
            print_line("no run matches. Leave out --state and --prefix to list all")
        else:
            print_line(f"the journal {legible(journal)} has no runs yet")
            print_line("Start one: anabranch run MODULE:JOB --journal FILE --run-id NAME")

    _run_command(journal, debug, as_json, work)


@runs.command()
def show(
    run: RunArgument,
    rows: Annotated[bool, typer.Option("--rows", help="Show all rows of the history.")] = False,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Show a run: inputs, state, questions and history."""

    async def work(file: Journal) -> None:
        view = await _view_run(file, run)
        questions = await _questions(file, run)
        if not as_json:
            show_run(view, questions, every=rows)
            return
        questions = list(map(describe_question, questions))
        print_json(describe_view(view, rows=True) | {"questions": questions})

    _run_command(journal, debug, as_json, work)


async def _questions(file: Journal, run_id: str) -> list[PendingApproval | PendingDoubt]:
    questions = [*await file.approvals(run_id), *await file.doubts(run_id)]
    return sorted(questions, key=lambda each: each.number)


@runs.command()
def resume(
    run: RunArgument,
    live: Annotated[
        list[str] | None,
        typer.Option(
            help="The value of a live field, as FIELD=module:name of an object, a function without "
            "arguments, or an async context manager. Repeatable."
        ),
    ] = None,
    app: Annotated[
        list[str] | None, typer.Option(help="A module to import first. Repeatable.")
    ] = None,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Resume a run in this process and print its result.

    Imports the class of the run, also from the current folder. In a failed run, only the failed
    parts run again. Ctrl-C suspends the run; it can be resumed later.
    """
    from ._runs_resume import resume_run

    async def work(file: Journal) -> int:
        return await resume_run(
            file, await _view_run(file, run), live or [], app or [], as_json, debug
        )

    _run_command(journal, debug, as_json, work)


@runs.command()
def cancel(
    run: RunArgument,
    reason: Annotated[str, typer.Option(help="The reason, which the journal stores.")] = "",
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Cancel a run permanently, even if another process executes it."""

    async def work(file: Journal) -> Outcome:
        view = await _view_run(file, run)
        await file.cancel(run, reason)
        after = (await file.look(run)).run.state
        by = f" ({view.run.owner})" if view.run.owner else ""
        text = f"{run} is being cancelled by the process that executes it{by}"
        if after == "cancelled":
            text = f"{run} is cancelled"
        return {"run_id": run, "state": after, "reason": reason}, text

    _run_command(journal, debug, as_json, work)


@runs.command()
def approve(
    run: RunArgument,
    number: Annotated[
        int, typer.Argument(metavar="NUMBER", help="The number of the question, from list or show.")
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Deny the call.")] = False,
    reason: Annotated[
        str, typer.Option(help="The reason for --deny, which the model receives.")
    ] = "",
    arguments: Annotated[
        str | None, typer.Option(help="Run the call with these arguments, a JSON object.")
    ] = None,
    done: Annotated[
        str | None,
        typer.Option(metavar="RESULT", help="For a call in doubt: it happened, with this result."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="For a call in doubt: it did not happen; run it now.")
    ] = False,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Approve or deny a tool call, or settle a call in doubt.

    Works also while another process executes the run. A call in doubt started before a crash, and
    its outcome is unknown.
    """

    async def work(file: Journal) -> Outcome:
        await _view_run(file, run)
        questions = await _questions(file, run)
        question = next((each for each in questions if each.number == number), None)
        if question is None:
            others = ", ".join(f"{each.number} ({each.tool})" for each in questions)
            raise ConfigurationError(
                f"the run {run!r} has no open question {number}. "
                + (f"Open questions: {others}" if others else "It has no open questions")
            )
        answer = await _answer(question, deny, reason, arguments, done, not_done)
        answered = {"run_id": run, "number": number, "tool": question.tool, "answer": answer}
        return answered, f"{question.tool} (question {number} of {run}): {answer}"

    _run_command(journal, debug, as_json, work)


async def _answer(
    question: PendingApproval | PendingDoubt,
    deny: bool,
    reason: str,
    arguments: str | None,
    done: str | None,
    not_done: bool,
) -> str:
    """Send the answer from the options and return a word for it; refuse options that do not fit."""
    about = f"question {question.number}"
    if isinstance(question, PendingDoubt):
        if deny or reason or arguments is not None or (done is None) == (not not_done):
            raise ConfigurationError(
                f"{about} asks whether {question.tool} happened. Use --done RESULT,"
                " or --not-done to run it now"
            )
        if done is not None:
            await question.done(done)
            return "done"
        await question.not_done()
        return "not done"
    if done is not None or not_done:
        raise ConfigurationError(
            f"{about} asks whether {question.tool} may run. Approve without options, or --deny"
        )
    if deny:
        if arguments is not None:
            raise ConfigurationError("--deny and --arguments cannot be combined")
        await question.deny(reason)
        return "denied"
    if reason:
        raise ConfigurationError("--reason requires --deny")
    try:
        changed: Any = None if arguments is None else json.loads(arguments)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"--arguments must be JSON: {error}") from None
    if not isinstance(changed, dict | None):
        raise ConfigurationError('--arguments must be a JSON object: {"name": value, ...}')
    await question.approve(cast("dict[str, Any] | None", changed))
    return "approved"


@runs.command()
def signal(
    run: RunArgument,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the signal.")],
    value: Annotated[
        str, typer.Argument(metavar="VALUE", help="The value: JSON, otherwise text.")
    ] = "null",
    text: Annotated[
        bool, typer.Option("--text", help="Send VALUE as text, even if it is JSON.")
    ] = False,
    key: Annotated[
        str | None, typer.Option(help="An idempotency key. A second signal with it is ignored.")
    ] = None,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Send a signal to a run. The journal stores it until the run receives it."""

    async def work(file: Journal) -> Outcome:
        sent: Any = value
        if not text:
            with suppress(ValueError, RecursionError):
                found = json.loads(value)
                json.dumps(found, allow_nan=False)  # Python reads NaN, which JSON does not have
                sent = found
        try:
            await file.signal(run, name, sent, key=key)
        except RunNotFound:
            await _view_run(file, run)
            raise
        return {"run_id": run, "signal": name, "value": sent}, f"{name} is sent to {run}"

    _run_command(journal, debug, as_json, work)


@runs.command()
def fork(
    run: RunArgument,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new run.")],
    at: Annotated[int, typer.Option(min=0, help="The number of the last history entry to copy.")],
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Copy a run up to an entry of its history. Start the copy with resume.

    The copy repeats the effects that the run had after that entry.
    """

    async def work(file: Journal) -> Outcome:
        view = await _view_run(file, run)
        if at > view.run.rows:
            raise ConfigurationError(
                f"--at must be from 0 to {view.run.rows}, the last row of the run {run!r}"
            )
        copy = await file.fork(run, new, at=at)
        rows = f"{format_count(copy.rows, 'row')} of {run}"
        return describe_run(copy), f"{new} has {rows}. Start it: anabranch runs resume {quote(new)}"

    _run_command(journal, debug, as_json, work)


@runs.command()
def purge(
    before: Annotated[
        str, typer.Option(help="Runs that ended this long ago (30d, 12h) or before this date.")
    ],
    state: Annotated[
        str | None, typer.Option(help=f"Only runs in this state: {', '.join(ENDED_STATES)}.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    journal: JournalOption = DEFAULT_JOURNAL,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Delete runs that have ended, with their history."""

    now, found = time.time(), list[RunRow]()

    async def look(file: Journal) -> Outcome:
        if state is not None and state not in ENDED_STATES:
            raise ConfigurationError(f"--state must be one of: {', '.join(ENDED_STATES)}")
        moment = _parse_moment(before, now)
        for each in ENDED_STATES if state is None else (state,):
            found.extend(run for run in await file.runs(each) if run.updated < moment)
        if found and not yes and not (sys.stdin and sys.stdin.isatty()):
            raise ConfigurationError(
                f"{format_count(len(found), 'run')} would be deleted. Confirm with --yes"
            )

    async def remove(file: Journal) -> Outcome:
        removed = await file.purge(_parse_moment(before, now), state=state) if found else 0
        return {"removed": removed}, f"{format_count(removed, 'run')} deleted"

    _run_command(journal, debug, as_json, look)
    if found and not yes:  # not inside the event loop, where Ctrl-C would wait for the answer
        oldest = format_age(now - min(run.updated for run in found))
        question = (
            f"delete {format_count(len(found), 'run')}, the oldest from {oldest} ago? [y/N]: "
        )
        with report_errors(FAILED, debug):
            print(question, end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print_line("nothing was deleted")
                raise SystemExit(FAILED)
    _run_command(journal, debug, as_json, remove)


def _parse_moment(text: str, now: float) -> float:
    try:
        if (span := TIME_SPAN.fullmatch(text.strip())) is not None:
            return now - timedelta(seconds=float(span[1]) * SPAN_SECONDS[span[2]]).total_seconds()
        return datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError):
        raise ConfigurationError(
            f"--before must be a time span (30d, 12h, 2w) or a date (2026-01-31), not {text!r}"
        ) from None
