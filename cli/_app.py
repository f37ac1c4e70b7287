"""All commands of the command line, and the options of `chat`."""

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
from ._knowledge import EmbedderOption, knowledge
from ._output import LegibleLog
from ._run import run
from ._runs import runs
from ._serve import serve_things
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
app.command("serve")(serve_things)


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
    """Run, record, serve and talk to language models."""


app.command()(run)
app.command()(watch)
app.command()(view)


@app.command()
def chat(
    question: Annotated[
        str | None,
        typer.Argument(help="Answer this and exit. Piped text is added to it."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            "-m",
            envvar="ANABRANCH_MODEL",
            help="local (a small model in this process), local:FILE.gguf, openai:NAME, "
            "mistral:NAME, groq:NAME, vllm:NAME, or the URL of a server. "
            "Default: the session's model, otherwise local.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="The model to use if the server of --model or --url has several."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="The URL of another server for openai:, mistral: or groq:.")
    ] = None,
    system: Annotated[str | None, typer.Option("--system", "-s", help="The system prompt.")] = None,
    tools: Annotated[
        list[str] | None,
        typer.Option(
            "--tools",
            "-t",
            help="Tools for the model, separated by commas: python, web, mcp:COMMAND_OR_URL, "
            "module:name, a module (all its tools), the NAME of an installed plugin, or none. "
            "Repeatable. Default: time, arithmetic and a sample weather tool.",
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0, help="The sampling temperature.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=1, help="The maximum number of tokens in a reply.")
    ] = None,
    formats: Annotated[
        list[str] | None,
        typer.Option(
            "--format",
            help=f"How the model writes tool calls into its text: {', '.join(FORMATS)}. "
            "Repeatable. Default: the known format of the model.",
        ),
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(
            "--knowledge", "-k", help="An index to search, made by anabranch knowledge add."
        ),
    ] = None,
    embed: EmbedderOption = None,
    images: Annotated[
        list[str] | None,
        typer.Option("--image", "-i", help="An image for the question. Repeatable."),
    ] = None,
    newest: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the most recent session.")
    ] = False,
    resume: Annotated[
        str | None, typer.Option("--resume", "-r", help="Continue the session of this id or title.")
    ] = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Save the session, or do not.")
    ] = True,
    load: Annotated[
        Path | None, typer.Option(help="Start with a conversation that /save wrote.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(help="Talk to module:name, an agent, group, orchestrator, job or handler."),
    ] = None,
    url: Annotated[str | None, typer.Option(help="Talk to an anabranch serve at this URL.")] = None,
    plain: Annotated[
        bool, typer.Option("--plain", help="Print line by line, without colours and live prompt.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the complete message of the answer as JSON.")
    ] = False,
    theme: Annotated[
        str | None,
        typer.Option(help="The colours: dark, light or none. /theme in the chat saves a choice."),
    ] = None,
    debug: Debug = False,
) -> None:
    """Talk to a model, an agent or a server, in the terminal or through a pipe.

    With QUESTION, prints one answer and exits. Otherwise /help lists the commands and keys. Ctrl-C
    stops the answer, and exits at an empty prompt. In a pipe, each line is a turn. Exit status: 0;
    1 if a turn failed; 2 for wrong usage or a model that cannot be opened; 130 after Ctrl-C; 128
    plus its number after a signal.
    """
    given = dict(locals())  # before any other local: all options, which are ChatArguments' fields
    from .chat import ChatArguments, run_chat

    del given["temperature"], given["max_tokens"], given["newest"]
    options = {"temperature": temperature, "max_tokens": max_tokens}
    logging.getLogger().addHandler(LegibleLog())
    given["options"] = {key: value for key, value in options.items() if value is not None}
    given["images"] = tuple(images or ())
    given["resume"] = resume if resume is not None else "" if newest else None
    with report_errors(FAILED, debug, (ConfigurationError,)):
        raise SystemExit(asyncio.run(run_chat(ChatArguments(**given))))
