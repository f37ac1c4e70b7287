"""The commands and their options."""

from __future__ import annotations

import asyncio
import logging
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from ..commander import ConfigurationError
from ..dispatch.formats import FORMATS
from ._exit import FAILED, Debug, report_errors
from ._knowledge import Embedder, knowledge
from ._run import run
from ._runs import runs
from ._serve import serve_command
from ._terminal import LegibleLog
from ._view import show_diff, view
from ._watch import watch

__all__ = ["app"]

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(knowledge, name="knowledge")
app.add_typer(runs, name="runs")
app.command("diff")(show_diff)
app.command("serve")(serve_command)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"anabranch {version('anabranch')}")
        raise typer.Exit


@app.callback()
def anabranch(
    _: Annotated[
        bool,
        typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    """Orchestrate language models over a tree of asyncio tasks."""


app.command()(run)
app.command()(watch)
app.command()(view)


@app.command()
def chat(
    question: Annotated[
        str | None,
        typer.Argument(help="Ask this, show the answer, and end; what is piped in goes with it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="ANABRANCH_MODEL",
            help="local (a small model in this process), local:FILE.gguf, openai:NAME, "
            "mistral:NAME, groq:NAME, vllm:NAME, or the http address of a server. "
            "Default: the session's, else local.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The model's name, where the server of --model or --url has several."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Another server for openai:, mistral: or groq:.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="A system prompt.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            "-t",
            help="Tools for the model, with commas between: python, web, mcp:COMMAND_OR_URL, "
            "module:name, module for all in it, a package's NAME, or none. May be given "
            "several times. Default: the time, arithmetic and an example of weather.",
        ),
    ] = None,
    temperature: Annotated[float | None, typer.Option(min=0, help="How freely to choose.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="The longest reply.")] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help=f"How the model writes calls of tools, if it writes them into its text: "
            f"{', '.join(FORMATS)}. May be given several times. Default: what is known of it.",
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            "--knowledge", "-k", help="An index to search: anabranch knowledge makes one."
        ),
    ] = None,
    embed: Embedder = None,
    images: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", help="A file that goes with the question. Also several."),
    ] = None,
    go_on: Annotated[
        bool, typer.Option("--continue", "-c", help="Go on with the newest session.")
    ] = False,
    resume: Annotated[
        str | None,
        typer.Option("--resume", "-r", help="Go on with this session: its id, or its title."),
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep the session, or forget it.")
    ] = True,
    load: Annotated[
        Path | None, typer.Option(help="Begin with a conversation saved by /save.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            help="Talk to module:name: an agent, a group, an orchestrator, a job, a handler."
        ),
    ] = None,
    url: Annotated[
        str | None, typer.Option(help="Talk to what anabranch serve offers at this address.")
    ] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Line by line, with neither colours nor a live prompt.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the answer's whole message as JSON.")
    ] = False,
    theme: Annotated[
        str | None, typer.Option(help="The colours: dark, light or none. /theme keeps a choice.")
    ] = None,
    debug: Debug = False,
) -> None:
    """Talk to a model, or to anything that can be served, in the terminal or in a pipe.

    In the terminal, /help lists the commands and keys; Ctrl-C stops the model while it speaks and
    leaves at an empty prompt. From a pipe each line is a turn. With a question there is one answer:
    what is piped in goes with it. Ends with status 0; 1 if a turn failed; 2 for wrong usage or a
    model that cannot be opened; 130 for Ctrl-C; 128 and a signal's number for that signal.
    """
    from .chat import ChatOptions, hold_chat

    options = {"temperature": temperature, "max_tokens": max_tokens}
    logging.getLogger().addHandler(LegibleLog())
    chosen = ChatOptions(
        question=question,
        model=model,
        name=name,
        base_url=base_url,
        system=system,
        tools=tools,
        options={key: value for key, value in options.items() if value is not None},
        formats=formats,
        documents=documents,
        embed=embed,
        load=load,
        images=tuple(images or ()),
        resume=resume if resume is not None else "" if go_on else None,
        history=history,
        agent=agent,
        url=url,
        plain=plain,
        as_json=as_json,
        theme=theme,
        debug=debug,
    )
    with report_errors(FAILED, debug, (ConfigurationError,)):
        raise SystemExit(asyncio.run(hold_chat(chosen)))
