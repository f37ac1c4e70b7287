"""The commands and their options."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import typer

from ..backends import Backend, connect
from ..commander import ConfigurationError
from ..dispatch.formats import FORMATS
from ..knowledge import Index
from ..messages import Conversation
from ..tools import AnyTool, open_tools
from ._diff import show_diff
from ._exit import FAILED, USAGE, report_errors
from ._knowledge import Embedder, knowledge, open_index
from ._runs import runs
from ._see import run, view, watch
from ._serve import serve_command
from ._session import chat_session
from ._terminal import LegibleLog

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
    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            envvar="ANABRANCH_MODEL",
            help="local (a small model in this process), local:FILE.gguf, openai:NAME, "
            "mistral:NAME, groq:NAME, vllm:NAME, or the http address of a server.",
        ),
    ] = "local",
    name: Annotated[
        str | None, typer.Option(help="The model's name, where --model is a server's address.")
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
    load: Annotated[
        Path | None, typer.Option(help="Go on with a conversation saved by /save.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Talk to a model in the terminal, or line by line from a pipe.

    In the terminal, /help lists the commands; Ctrl-C stops the model while it speaks and leaves at
    an empty prompt. From a pipe each line is a turn; the exit status is 1 if one of them failed.
    """
    options = {"temperature": temperature, "max_tokens": max_tokens}
    given: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    logging.getLogger().addHandler(LegibleLog())
    with report_errors(USAGE, debug):
        backend = connect(model, model=name, base_url=base_url, **given)
        conversation = Conversation.load(load) if load else Conversation(system=system)
    with report_errors(FAILED, debug):
        notes = None if documents is None else open_index(documents, embed)
        raise SystemExit(asyncio.run(_chat(backend, conversation, tools, formats, notes, debug)))


async def _chat(
    backend: Backend,
    conversation: Conversation,
    specs: list[str] | None,
    formats: list[str] | None,
    notes: AbstractAsyncContextManager[Index] | None,
    debug: bool,
) -> int:
    async with AsyncExitStack() as stack:
        with report_errors(USAGE, debug):
            if specs is None:
                from ..tools.examples import EXAMPLE_TOOLS

                tools: list[AnyTool] = list(EXAMPLE_TOOLS)
            else:
                wanted = [spec for spec in specs if spec != "none"]
                tools = await stack.enter_async_context(open_tools(*wanted))
            for name in formats or ():
                if name not in FORMATS:
                    raise ConfigurationError(
                        f"there is no format {name!r}; there are: {', '.join(FORMATS)}"
                    )
            reads = None if formats is None else [FORMATS[name]() for name in formats]
            index = None if notes is None else await stack.enter_async_context(notes)
        return await chat_session(backend, conversation, tools, reads, index, debug=debug)
