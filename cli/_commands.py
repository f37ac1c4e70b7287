"""The commands of the chat: lines that begin with a slash, which the user says to the chat itself.

Each is a function marked `@command`: of the chat, and of the text after its name.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from difflib import get_close_matches
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeAlias

from ..backends import Backend, connect
from ..commander import Node
from ..handlers import handler
from ._terminal import complain

if TYPE_CHECKING:
    from ._session import TerminalChat

__all__ = ["COMMANDS", "Leave", "describe_model", "obey"]

Command: TypeAlias = Callable[["TerminalChat", str], Awaitable[str | None]]
"""Does what the user wants; returns what the model is to hear instead, None for nothing.

An empty string lets the model answer the conversation as it stands.
"""

COMMANDS: dict[str, Command] = {}
HELP: list[str] = []


def command(usage: str) -> Callable[[Command], Command]:
    """Make a function the command that `usage` begins with; its docstring is the help."""

    def add(function: Command) -> Command:
        COMMANDS[usage.split()[0]] = function
        HELP.append(f"{usage:<21}{inspect.getdoc(function) or ''}")
        return function

    return add


class Leave(Exception):
    """The user wants to leave."""


@handler
async def obey(node: Node[Any], chat: TerminalChat, line: str) -> str | None:
    """Do what `line` says; return what its command does.

    A command that fails says why in one line and changes nothing.
    """
    name, argument = (*line.split(maxsplit=1), "")[:2]
    if (wanted := COMMANDS.get(name)) is None:
        close = get_close_matches(name[:40], COMMANDS, n=1)
        hint = f": did you mean {close[0]}?" if close else ";"
        complain(f"there is no command {name}{hint} /help lists them")
        return None
    try:
        return await wanted(chat, argument.strip())
    except (Leave, BrokenPipeError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what the user types ends no chat
        complain(error)
        return None


def describe_model(backend: Backend) -> str:
    """Say in a line which model speaks, and how good its choice of tools is if that is known."""
    figure = getattr(backend, "tool_choice_accuracy", "")
    return f"{backend.model} ({backend.provider})" + (f"; {figure}" if figure else "")


@command("/help")
async def list_commands(chat: TerminalChat, argument: str) -> None:
    """list these commands"""
    for line in HELP:
        chat.terminal.note(line, "")
    chat.terminal.note("Alt-Enter, or a backslash at the end of a line, begins another line", "")


@command("/model [NAME]")
async def choose_model(chat: TerminalChat, argument: str) -> None:
    """say which model speaks, or let another one speak"""
    if not argument:
        chat.terminal.note(describe_model(chat.backend), "")
        chat.terminal.note("others: local, openai:NAME, mistral:NAME, groq:NAME, vllm:NAME", "")
        chat.terminal.note("or a server: http://localhost:8000/v1 NAME", "")
        return
    spec, _, name = argument.partition(" ")
    backend = connect(spec, model=name.strip() or None)
    chat.backend = await chat.session.backends.enter_async_context(backend)
    chat.terminal.note(describe_model(backend), "")


@command("/tools")
async def list_tools(chat: TerminalChat, argument: str) -> None:
    """list the tools that the model may call"""
    for tool in chat.tools:
        first, *_ = (*tool.description.strip().splitlines(), "")
        chat.terminal.note(f"{tool.name}: {first}", "")
    if not chat.tools:
        chat.terminal.note("none; start with --tools module:name", "")


@command("/save [FILE]")
async def save(chat: TerminalChat, argument: str) -> None:
    """save the conversation as JSON (conversation.json)"""
    path = argument or "conversation.json"
    try:
        chat.conversation.save(path)
    except OSError as error:
        complain(f"cannot save to {path}: {error.strerror or error}; /save takes another file")
        return
    chat.terminal.note(f"saved {len(chat.conversation)} messages to {path}", "")


@command("/retry")
async def retry(chat: TerminalChat, argument: str) -> str | None:
    """ask the model again for its last answer"""
    messages = chat.conversation.messages
    asked = [place for place, each in enumerate(messages) if each.role in ("user", "tool")]
    if not asked:
        complain("there is nothing to try again yet")
        return None
    del messages[asked[-1] + 1 :]
    return ""


@command("/undo")
async def undo(chat: TerminalChat, argument: str) -> None:
    """forget the last turn: what you said, and all that came of it"""
    messages = chat.conversation.messages
    turns = [number for number, message in enumerate(messages) if message.role == "user"]
    if not turns:
        complain("there is nothing to take back yet")
        return
    said = messages[turns[-1]].content or ""
    del messages[turns[-1] :]
    chat.terminal.note(f"forgotten: {shorten(said, 60, placeholder=' ...')}", "")


@command("/exit")
async def leave(chat: TerminalChat, argument: str) -> None:
    """leave (also Ctrl-D, and Ctrl-C at an empty prompt)"""
    raise Leave
