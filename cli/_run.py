"""`anabranch run`: run a job in this process, and show its progress."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import AsyncExitStack, nullcontext
from inspect import isawaitable
from shlex import quote
from typing import Annotated, Any, cast

import typer
from pydantic_core import to_json

from .. import tracing
from ..commander import AnabranchError, Commander, ConfigurationError, Node
from ..store import Durable, Journal
from ._display import TreeDisplay, Watcher
from ._exit import (
    FAILED,
    INTERRUPTED,
    TERMINATING,
    AsJson,
    Debug,
    Killed,
    report_errors,
    run_until_signal,
)
from ._fields import find_work
from ._named import open_live, users_codec
from ._terminal import (
    LegibleLog,
    allow_unencodable,
    complain,
    error_text,
    print_json,
    print_result,
    show_traceback,
)

__all__ = ["run"]


def run(
    job: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:JOB",
            help="A class of jobs, a @handler or async function, an agent, a job, or a function"
            " that makes one.",
        ),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD=VALUE]...", help="Its inputs; lists and the like as JSON."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw the tree while it runs.")
    ] = False,
    record: Annotated[
        str | None, typer.Option("--record", "-r", metavar="FILE", help="Record the run.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Go on with the recording, as for a resumed run.")
    ] = False,
    content: Annotated[
        bool, typer.Option("--content", help="Also prompts, replies, arguments and messages.")
    ] = False,
    journal: Annotated[
        str | None,
        typer.Option("--journal", "-j", metavar="FILE", help="Keep a Durable job's run in it."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="NAME", help="The run's name there.")
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option("--live", metavar="NAME=MODULE:ATTRIBUTE", help="What is never written."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="The longest it may take.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a job and print what it gives: a text as it is, anything else as JSON.

    Ctrl-C cancels its tree, and once more ends at once. Ends with status 0; 1 if it failed; 2 for
    wrong usage; 128 and its number after a signal.
    """

    async def run_in_tree() -> tuple[Any, Exception | None]:
        """Return the result, or the error of the job or of the function that makes it."""
        # The stack ends after the tree: the display shows the tree's end.
        async with AsyncExitStack() as stack:
            file = None
            if journal is not None:
                file = await stack.enter_async_context(Journal(journal, codec=users_codec()))
            given = await open_live(live or [], stack)
            async with Commander() as commander:
                if record is not None:
                    tracing.record(commander, record, content=content, append=append)
                if display is not None:
                    seen = tracing.live(commander, content=content)
                    stack.enter_context(Watcher(display, seen.trace))
                try:
                    made: Any = work()
                    if not isinstance(made, Node) and isawaitable(made):
                        async with asyncio.timeout(timeout):
                            made = await made
                        if not isinstance(made, Node):  # the function was the work itself
                            return made, None
                except Exception as error:  # noqa: BLE001 - a user's function
                    return None, error
                if not isinstance(made, Node):
                    raise ConfigurationError(
                        f"{job} gives a {type(made).__name__}, no job or handler, and is not async"
                    )
                if file is not None and not isinstance(made, Durable):
                    raise ConfigurationError(f"--journal is for Durable jobs, which {job} is not")
                node = cast("Durable[Any]", made)
                try:
                    if file is None:
                        return await commander.run(node, timeout=timeout), None
                    running = file.run(node, run_id=run_id or "", live=given)
                    return await asyncio.wait_for(running, timeout), None
                except Exception as error:  # noqa: BLE001 - the job's own
                    return None, error

    allow_unencodable()
    with report_errors(FAILED, debug, (ConfigurationError,)):
        for option, needed, ok in (
            ("--journal", "--run-id", not journal or run_id),
            ("--run-id", "--journal", not run_id or journal),
            ("--live", "--journal", not live or journal),
            ("--append", "--record", not append or record),
            ("--content", "--record or --watch", not content or record or watch),
        ):
            if not ok:
                raise ConfigurationError(f"{option} needs {needed}")
        display = TreeDisplay(job) if watch else None
        result, error, killed = None, None, 0
        # Text that a module prints at its import appears above the display too.
        with nullcontext() if display is None else display:
            logging.getLogger().addHandler(LegibleLog())
            work = find_work(job, fields or [])
            try:
                # asyncio handles Ctrl-C: the first cancels the tree, the second ends at once.
                result, error = asyncio.run(run_until_signal(run_in_tree(), TERMINATING))
            except KeyboardInterrupt:
                killed = INTERRUPTED
            except Killed as signal:
                killed = signal.status
        state = "cancelled" if killed else "completed" if error is None else "failed"
        if error is not None and debug:
            show_traceback(error)
        if as_json:
            text = None if error is None else f"{type(error).__name__}: {error}"
            print_json({"state": state, "result": _as_json(result), "error": text})
        elif result is not None:
            print_result(result if isinstance(result, str) else _as_json(result))
        if killed and run_id and journal:
            resume = f"anabranch runs resume --journal {quote(journal)} {quote(run_id)}"
            complain(f"suspended: {resume} goes on")
        if error is not None:
            known = debug or isinstance(error, AnabranchError)
            complain(error_text(error) + ("" if known else " (--debug shows where)"))
        if status := killed or (FAILED if error is not None else 0):
            raise SystemExit(status)


def _as_json(value: Any) -> Any:
    """Return a value as JSON has it; other values as Python's `repr`."""
    try:
        text = to_json(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        return json.loads(text)
    except Exception:  # noqa: BLE001 - a circle, or a user's `repr`
        return f"a {type(value).__name__}, which is no JSON"
