"""`anabranch run`: a job runs in this process, and a person sees how it goes on."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable
from contextlib import AsyncExitStack, nullcontext
from dataclasses import dataclass
from inspect import isawaitable
from shlex import quote
from typing import Any, NamedTuple, cast

from pydantic_core import to_json

from ..commander import AnabranchError, Commander, ConfigurationError, Node
from ..handlers.legible import legible
from ..messages.mask import mask
from ..store import Durable, Journal
from ..tracing import live, record
from ._display import TreeDisplay, Watcher
from ._exit import FAILED, INTERRUPTED, KILLED, TERMINATING, handle_signals
from ._fields import Work, find_work
from ._named import users_codec
from ._runs_resume import bring
from ._runs_view import print_json
from ._terminal import LegibleLog, complain, in_line, show_traceback

__all__ = ["RunOptions", "run_job"]

MOST = 2000  # characters of an error


@dataclass(frozen=True, slots=True)
class RunOptions:
    """How a job is to run, and what is to be seen of it."""

    watch: bool = False
    record: str | None = None
    append: bool = False
    content: bool = False
    journal: str | None = None
    run_id: str | None = None
    live: tuple[str, ...] = ()
    timeout: float | None = None
    as_json: bool = False
    debug: bool = False

    def check(self) -> None:
        """Refuse what does not go together."""
        for given, needed, ok in (
            ("--journal", "--run-id", not self.journal or self.run_id),
            ("--run-id", "--journal", not self.run_id or self.journal),
            ("--live", "--journal", not self.live or self.journal),
            ("--append", "--record", not self.append or self.record),
            ("--content", "--record or --watch", not self.content or self.record or self.watch),
        ):
            if not ok:
                raise ConfigurationError(f"{given} needs {needed}")


class _Outcome(NamedTuple):
    """How it ended: what it gave, its failure, or the signal that has ended it."""

    result: Any = None
    error: Exception | None = None
    killed: int = 0


def run_job(place: str, fields: list[str], options: RunOptions) -> int:
    """Run what is named, print its result, and return the exit status.

    Raises `ConfigurationError` before anything has run.
    """
    options.check()
    display = TreeDisplay(place) if options.watch else None
    interrupted = False
    # What a module prints at its import stands above the display too.
    with nullcontext() if display is None else display:
        logging.getLogger().addHandler(LegibleLog())
        work = find_work(place, fields)
        try:
            outcome = asyncio.run(_run(place, work, options, display))
        except KeyboardInterrupt:
            outcome, interrupted = _Outcome(), True
    if not (interrupted or outcome.killed):
        return _print_outcome(outcome, options)
    if options.as_json:
        _print_json("cancelled", None, None)
    if options.run_id and options.journal:
        again = f"--journal {quote(options.journal)} {quote(options.run_id)}"
        complain(legible(f"suspended: anabranch runs resume {again} goes on"))
    return INTERRUPTED if interrupted else KILLED + outcome.killed


async def _run(
    place: str, work: Work, options: RunOptions, display: TreeDisplay | None
) -> _Outcome:
    """Run it in a tree of its own, until a signal says otherwise."""
    killed = 0
    task = cast("asyncio.Task[Any]", asyncio.current_task())

    def stop(number: int) -> None:
        nonlocal killed
        killed = killed or number
        task.cancel()

    # The first Ctrl-C cancels the tree, the second is immediate: so asyncio has it.
    with handle_signals(stop, TERMINATING):
        try:
            return await _run_in_tree(place, work, options, display)
        except asyncio.CancelledError:
            if not killed:
                raise
            return _Outcome(killed=killed)


async def _run_in_tree(
    place: str, work: Work, options: RunOptions, display: TreeDisplay | None
) -> _Outcome:
    # What is in the stack outlives the tree: its end is drawn too.
    async with AsyncExitStack() as stack:
        journal = None
        if options.journal is not None:
            journal = Journal(options.journal, codec=users_codec())
            await stack.enter_async_context(journal)
        given = dict([await bring(each, stack) for each in options.live])
        async with Commander() as commander:
            if options.record is not None:
                record(commander, options.record, content=options.content, append=options.append)
            if display is not None:
                seen = live(commander, content=options.content)
                stack.enter_context(Watcher(display, seen.trace))
            try:
                made: Any = work()
                if not isinstance(made, Node) and isawaitable(made):
                    async with asyncio.timeout(options.timeout):
                        made = await made
                    if not isinstance(made, Node):  # it was the work itself
                        return _Outcome(made)
            except Exception as error:  # noqa: BLE001 - a user's function
                return _Outcome(error=error)
            if not isinstance(made, Node):
                raise ConfigurationError(
                    f"{place} gives a {type(made).__name__}, no job or handler, and is not async"
                )
            job = cast("Node[Any]", made)
            if journal is not None and not isinstance(made, Durable):
                raise ConfigurationError(f"--journal is for Durable jobs, which {place} is not")
            try:
                return _Outcome(await _await(job, commander, journal, given, options))
            except Exception as error:  # noqa: BLE001 - it is the job's, and is told as such
                return _Outcome(error=error)


def _await(
    job: Node[Any],
    commander: Commander,
    journal: Journal | None,
    given: dict[str, Any],
    options: RunOptions,
) -> Awaitable[Any]:
    if journal is None:
        return commander.run(job, timeout=options.timeout)
    durable = cast("Durable[Any]", job)
    return asyncio.wait_for(
        journal.run(durable, run_id=options.run_id or "", live=given), options.timeout
    )


def _print_outcome(outcome: _Outcome, options: RunOptions) -> int:
    """Print what it gave: a text as it is, nothing for nothing, anything else as JSON."""
    error = outcome.error
    if error is not None:
        if options.debug:
            show_traceback(error)
        known = isinstance(error, AnabranchError)
        what = str(error) if known else f"{type(error).__name__}: {error}"
        what = in_line(mask(what), MOST)
        if options.as_json:
            _print_json("failed", None, f"{type(error).__name__}: {error}")
        complain(what if known or options.debug else f"{what} (--debug shows where)")
        return FAILED
    if isinstance(outcome.result, str) and not options.as_json:
        print(legible(outcome.result))
    elif options.as_json:
        _print_json("completed", _plain(outcome.result), None)
    elif outcome.result is not None:
        print_json(_plain(outcome.result))
    return 0


def _print_json(state: str, result: Any, error: str | None) -> None:
    print_json({"state": state, "result": result, "error": error})


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; what it has no form for is shown as Python does."""
    try:
        text = to_json(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        return json.loads(text)
    except Exception:  # noqa: BLE001 - a circle, or a user's repr
        return f"a {type(value).__name__}, which is no JSON"
