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
from ..backends import Limits
from ..commander import AnabranchError, Commander, ConfigurationError, Node
from ..store import Durable, Journal
from ._display import DisplayThread, TreeDisplay
from ._exit import (
    FAILED,
    INTERRUPTED,
    TERMINATING_SIGNALS,
    AsJson,
    Debug,
    KilledBySignal,
    report_errors,
    run_until_signal,
)
from ._fields import find_work
from ._output import (
    LegibleLog,
    allow_unencodable,
    error_text,
    print_error,
    print_json,
    print_result,
    show_traceback,
)
from ._user_code import load_codec, open_live

__all__ = ["run"]


def run(
    job: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:JOB",
            help="A job class, a @handler or async function, an agent, a job, or a function that"
            " returns one.",
        ),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FIELD=VALUE]...", help="The inputs. Lists and objects are JSON."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Draw the tree while the job runs.")
    ] = False,
    record: Annotated[
        str | None, typer.Option("--record", "-r", metavar="FILE", help="Record the run.")
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Append to an existing recording, for a resumed run.")
    ] = False,
    content: Annotated[
        bool,
        typer.Option(
            "--content", help="Show and record prompts, replies, arguments and messages too."
        ),
    ] = False,
    journal: Annotated[
        str | None,
        typer.Option("--journal", "-j", metavar="FILE", help="Store a durable job's run here."),
    ] = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="NAME", help="The run's name in the journal.")
    ] = None,
    live: Annotated[
        list[str] | None,
        typer.Option("--live", metavar="FIELD=MODULE:NAME", help="A live field. Repeatable."),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, metavar="SECONDS", help="Cancel the job after this time.")
    ] = None,
    at_once: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="NUMBER",
            help="The most jobs that run at the same time. A job that waits for others is not"
            " counted.",
        ),
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="The most tokens for all models together. When they are used, further requests"
            " fail. Replies that are running then may exceed it.",
        ),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Run a job and print its result: a string as text, anything else as JSON.

    Ctrl-C cancels the job and waits for its cleanup. A second Ctrl-C exits at once. Exit status: 0;
    1 if the job failed; 2 for wrong usage; 128 plus its number after a signal.
    """

    def late(limit: asyncio.Timeout | None, error: Exception) -> Exception:
        """Return the error of a job; one that names the time if `--timeout` has cancelled it."""
        if limit is None or not limit.expired():
            return error
        return TimeoutError(f"{job} was not done within {timeout:g} s")

    async def run_in_tree() -> tuple[Any, Exception | None]:
        """Return the result, or the error of the job or of the function that returns it."""
        # The stack closes after the tree, so that the display shows the end of the tree.
        async with AsyncExitStack() as stack:
            file = None
            if journal is not None:
                file = await stack.enter_async_context(Journal(journal, codec=load_codec()))
            live_values = await open_live(live or [], stack)
            limits = None if budget is None else Limits(budget=budget)
            async with Commander(max_concurrency=at_once, limits=limits) as commander:
                if record is not None:
                    tracing.record(commander, record, content=content, append=append)
                if display is not None:
                    seen = tracing.live(commander, content=content)
                    stack.enter_context(DisplayThread(display, seen.trace))
                limit: asyncio.Timeout | None = None
                try:
                    returned: Any = work()
                    if not isinstance(returned, Node) and isawaitable(returned):
                        async with asyncio.timeout(timeout) as limit:
                            returned = await returned
                        if not isinstance(returned, Node):  # an async function, and its result
                            return returned, None
                except Exception as error:  # noqa: BLE001 - a user's function
                    return None, late(limit, error)
                if not isinstance(returned, Node):
                    raise ConfigurationError(
                        f"{job} returns a {type(returned).__name__}, not a job, and is not async"
                    )
                if file is not None and not isinstance(returned, Durable):
                    raise ConfigurationError(f"--journal needs a durable job, and {job} is not one")
                node = cast("Durable[Any]", returned)
                try:
                    if file is None:
                        return await commander.run(node, timeout=timeout), None
                    running = file.run(node, run_id=run_id or "", live=live_values)
                    async with asyncio.timeout(timeout) as limit:
                        return await running, None
                except Exception as error:  # noqa: BLE001 - an error of the job
                    return None, late(limit, error)

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
                raise ConfigurationError(f"{option} requires {needed}")
        display = TreeDisplay(job) if watch else None
        result, error, killed = None, None, 0
        # Inside the block, text that the user's module prints at its import is above the display.
        with nullcontext() if display is None else display:
            logging.getLogger().addHandler(LegibleLog())
            work = find_work(job, fields or [])
            try:
                # asyncio handles Ctrl-C: the first cancels the tree, the second ends at once.
                result, error = asyncio.run(run_until_signal(run_in_tree(), TERMINATING_SIGNALS))
            except KeyboardInterrupt:
                killed = INTERRUPTED
            except KilledBySignal as signal:
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
            print_error(f"the run is suspended. Resume it: {resume}")
        if error is not None:
            known = debug or isinstance(error, AnabranchError)
            print_error(error_text(error) + ("" if known else " (--debug shows the traceback)"))
        if status := killed or (FAILED if error is not None else 0):
            raise SystemExit(status)


def _as_json(value: Any) -> Any:
    """Return a value as JSON types; values of other types as their `repr`."""
    try:
        text = to_json(value, fallback=repr, bytes_mode="base64", inf_nan_mode="strings")
        return json.loads(text)
    except Exception:  # noqa: BLE001 - a reference cycle, or a user's `repr`
        return f"a {type(value).__name__} that JSON cannot represent"
