"""`anabranch serve`: an agent, a job or a model, for clients that exist already."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer

from ..backends import connect
from ..commander import ConfigurationError
from ._exit import FAILED, USAGE, Debug, report_errors
from ._named import import_named
from ._terminal import LegibleLog, in_line

__all__ = ["serve_command"]


def serve_command(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="THING...",
            help="What is served: module:name of an agent, a group, a class of jobs or a handler, "
            "or a model as chat --model takes it (local, openai:NAME).",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to bind to.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8000,
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="ANABRANCH_TOKEN",
            help="What clients must send as their key. May be given several times. Needed beyond "
            "this machine; better in the environment, where no list of processes shows it.",
        ),
    ] = None,
    max_runs: Annotated[int, typer.Option(min=1, help="Questions answered at once.")] = 200,
    keep: Annotated[float, typer.Option(min=0, help="Seconds that an answer is kept.")] = 300.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds to end in after a signal.")] = 10.0,
    page: Annotated[bool, typer.Option(help="Serve a page to talk on, at /.")] = True,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Write no line for each answer.")
    ] = False,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="ANABRANCH_JOURNAL",
            help="Keep runs of background mode and of the page here: they go on after a restart.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve agents, jobs and models over HTTP, as OpenAI does, with a page to talk on.

    Any program that takes a base URL can talk to it: http://HOST:PORT/v1. Ctrl-C ends it.
    """
    from ..serve import serve

    with report_errors(USAGE, debug):
        if token and not all(token):
            raise ConfigurationError("--token is empty: leave it out, and anybody may ask")
        app = serve(
            *map(_find, things),
            auth=token or None,
            max_runs=max_runs,
            keep=keep,
            page=page,
            journal=journal,
        )
    _log_to_stderr(quiet)

    def say(where: str) -> None:
        key = "; clients send a key: ********" if token else ""
        ways = [f"clients of OpenAI's: {where}/v1", *([f"a page: {where}/"] if page else [])]
        for line in f"serving {', '.join(app.served)} at {where}{key}", "; ".join(ways):
            print(in_line(line, 1000), file=sys.stderr, flush=True)

    with report_errors(FAILED, debug, (ConfigurationError,)):
        app.run(host, port, drain=drain, on_start=say)


def _log_to_stderr(quiet: bool) -> None:
    """Write what fails, and unless `quiet` a line for each answer."""
    log = LegibleLog()
    log.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.getLogger().addHandler(log)
    logging.getLogger("anabranch.serve").setLevel(logging.WARNING if quiet else logging.INFO)


def _find(thing: str) -> Any:
    """Return what is named: something in a module, or a model."""
    module, _, _ = thing.partition(":")
    if module in ("local", "openai", "mistral", "groq", "vllm", "ray") or "://" in thing:
        return {thing: connect(thing)}
    return import_named(thing, thing)
