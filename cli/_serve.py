"""`anabranch serve`: serve agents, jobs and models over HTTP."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any

import typer

from ..commander import ConfigurationError
from ._exit import FAILED, USAGE, Debug, report_errors
from ._output import LegibleLog, one_line
from ._user_code import connect_named, import_named

__all__ = ["serve_things"]


def serve_things(
    things: Annotated[
        list[str],
        typer.Argument(
            metavar="THING...",
            help="module:name of an agent, a group, a job class or a handler, or a model as for "
            "chat --model (local, openai:NAME). Repeatable.",
        ),
    ],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="The port; 0: any.")
    ] = 8000,
    token: Annotated[
        list[str] | None,
        typer.Option(
            envvar="ANABRANCH_TOKEN",
            help="A key that clients must send. Repeatable. Required if other machines can "
            "connect. Prefer the environment variable, since process lists show options.",
        ),
    ] = None,
    max_runs: Annotated[
        int, typer.Option(min=1, help="The maximum number of runs at the same time.")
    ] = 200,
    keep: Annotated[
        float, typer.Option(min=0, help="Seconds for which a finished answer can be fetched.")
    ] = 300.0,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that runs get to end after a signal.")
    ] = 10.0,
    page: Annotated[bool, typer.Option(help="Serve a chat page at /.")] = True,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Do not log each answer.")] = False,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            envvar="ANABRANCH_JOURNAL",
            help="Store runs of background mode and of the chat page here. After a restart they "
            "are resumed.",
        ),
    ] = None,
    debug: Debug = False,
) -> None:
    """Serve agents, jobs and models over HTTP, with OpenAI's protocols and a chat page.

    Use http://HOST:PORT/v1 as the base URL of any OpenAI client. Ctrl-C stops the server.
    """
    from ..serve import serve

    with report_errors(USAGE, debug):
        if token and not all(token):
            raise ConfigurationError(
                "--token must not be empty. Leave it out to serve without keys"
            )
        app = serve(
            *map(_find, things),
            auth=token or None,
            max_runs=max_runs,
            keep=keep,
            page=page,
            journal=journal,
        )
    _log_to_stderr(quiet)

    def print_address(where: str) -> None:
        key = "; clients must send a key" if token else ""
        ways = [f"base URL for OpenAI clients: {where}/v1"]
        ways += [f"chat page: {where}/"] if page else []
        for line in f"serving {', '.join(app.served)} at {where}{key}", "; ".join(ways):
            print(one_line(line, 1000), file=sys.stderr, flush=True)

    with report_errors(FAILED, debug, (ConfigurationError,)):
        app.run(host, port, drain=drain, on_start=print_address)


def _log_to_stderr(quiet: bool) -> None:
    """Log failures to standard error, and each answer unless `quiet`."""
    log = LegibleLog()
    log.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
    logging.getLogger().addHandler(log)
    logging.getLogger("anabranch.serve").setLevel(logging.WARNING if quiet else logging.INFO)


def _find(thing: str) -> Any:
    """Return the model or the object that the user names."""
    module, _, _ = thing.partition(":")
    if module in ("local", "openai", "mistral", "groq", "vllm", "ray") or "://" in thing:
        return {thing: connect_named(thing)}
    return import_named(thing, thing)
