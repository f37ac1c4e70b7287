"""The commands of the chat: lines that begin with a slash.

Each command is a function marked `@command`. It gets the chat and the text after its name. Its
docstring is its line in `/help`.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import tempfile
from collections.abc import Awaitable, Callable
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any, TypeAlias

from ...backends import Backend
from ...commander import AnabranchError, ConfigurationError, Node
from ...handlers import handler
from ...messages import Conversation, Message
from ...store import JournalError
from ...tools import AnyTool
from ...tools.origins import definition_of
from .._output import MAX_SHOWN_CHARS, one_line, print_error
from ._agent_partner import AgentPartner
from ._live_screen import LiveScreen
from ._partner import Partner
from ._session_manager import read_message
from ._sessions import SessionInfo, shorten_title

if TYPE_CHECKING:
    from ._loop import ChatLoop

__all__ = ["COMMANDS", "HELP", "IMMEDIATE_COMMANDS", "describe_partner", "execute_command"]

Command: TypeAlias = Callable[["ChatLoop", str], Awaitable["Message | bool | None"]]
"""Executes a command.

Returns a message for the partner, True to let the partner answer the unchanged conversation, or
None.
"""

MAX_LISTED_SESSIONS = 20

COMMANDS: dict[str, Command] = {}
IMMEDIATE_COMMANDS: set[str] = set()
"""The commands that run at once during an answer; the others wait for its end."""
HELP: list[tuple[str, str]] = []
"""The usage and the help of each command."""
_WITHOUT_ARGUMENT: set[str] = set()


def command(usage: str, *, at_once: bool = False) -> Callable[[Command], Command]:
    """Register a function as the command that `usage` begins with."""

    def add(function: Command) -> Command:
        name, _, takes = usage.partition(" ")
        COMMANDS[name] = function
        if not takes:
            _WITHOUT_ARGUMENT.add(name)
        if at_once:
            IMMEDIATE_COMMANDS.add(name)
        HELP.append((usage, inspect.getdoc(function) or ""))
        return function

    return add


@handler
async def execute_command(node: Node[Any], chat: ChatLoop, line: str) -> Message | bool | None:
    """Execute the command in `line`, and return its result.

    A command that fails shows one line and changes nothing.
    """
    name, argument = (*line.split(maxsplit=1), "")[:2]
    if (wanted := COMMANDS.get(name)) is None:
        close = get_close_matches(name[:40], COMMANDS, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
        print_error(f"unknown command {name}.{hint} /help lists all")
        return None
    try:
        if argument and name in _WITHOUT_ARGUMENT:
            raise ConfigurationError(f"{name} takes no argument, so nothing was done")
        return await wanted(chat, argument.strip())
    except BrokenPipeError:
        raise
    except JournalError as error:
        try:
            print_error(await require_agent(chat).continue_in_memory(error))
        except AnabranchError:  # the journal works, or the partner has no journal
            print_error(error)
        return None
    except (Exception, SystemExit) as error:  # noqa: BLE001 - no command ends the chat by an error
        print_error(error)
        return None


def describe_model(backend: Backend) -> str:
    """Return the name of a model, and its measured accuracy in choosing tools, if known."""
    figure = getattr(backend, "tool_choice_accuracy", "")
    return f"{backend.model} ({backend.provider})" + (f"; {figure}" if figure else "")


def describe_partner(partner: Partner) -> str:
    """Return the name of the model or the partner."""
    if isinstance(partner, AgentPartner) and partner.agent.backend is not None:
        return describe_model(partner.agent.backend)
    return partner.name


def require_agent(chat: ChatLoop) -> AgentPartner:
    """Return the partner if it is an agent in a session; raise `ConfigurationError` otherwise."""
    if isinstance(chat.partner, AgentPartner):
        return chat.partner
    raise ConfigurationError(
        f"this command needs a model or an agent, and {chat.partner.name} is neither"
    )


@command("/help", at_once=True)
async def list_commands(chat: ChatLoop, argument: str) -> None:
    """list these commands"""
    for usage, text in HELP:
        chat.screen.note(f"{usage:<22}{text}", "")
    if isinstance(chat.screen, LiveScreen):
        chat.screen.note(
            "Enter sends a message; during an answer, it is added to the model's next request\n"
            "Tab queues it, Esc takes the newest back, Ctrl-C stops the answer\n"
            "@FILE attaches a file, Ctrl-R searches your earlier messages",
            "",
        )
    chat.screen.note("Alt-Enter, or a backslash at the end of a line, starts a new line", "")


# --- the model and its tools


@command("/model [NAME]")
async def choose_model(chat: ChatLoop, argument: str) -> None:
    """show the model, or switch to another one"""
    partner = require_agent(chat)
    if not argument:
        if partner.agent.backend is not None:
            chat.screen.note(describe_model(partner.agent.backend), "")
        chat.screen.note(
            "Other models: local, openai:NAME, mistral:NAME, groq:NAME, vllm:NAME,", ""
        )
        chat.screen.note("or a server and its model: http://localhost:8000/v1 NAME", "")
        return
    backend = await chat.manager.use(argument)
    await partner.note(**chat.manager.speaker())
    chat.warm()
    chat.screen.note(describe_model(backend), "")


@command("/system [TEXT]")
async def set_system(chat: ChatLoop, argument: str) -> None:
    """show or set the system prompt; "" removes it"""
    partner = require_agent(chat)
    if not argument:
        system = partner.agent.instructions
        if callable(system):
            text = "the agent's code makes a system prompt for each answer"
        else:
            text = str(system) if system else "there is no system prompt"
        chat.screen.note(text, "")
        return
    system = None if argument in ('""', "''") else argument
    partner.agent.instructions = system
    await partner.note(system=system)
    chat.screen.note("system prompt set, from the next answer on")


@command("/tools [on|off NAME]")
async def list_tools(chat: ChatLoop, argument: str) -> None:
    """list the tools that the model may call, or switch tools on or off"""
    partner = require_agent(chat)
    offered: list[AnyTool] = chat.manager.tools
    if not argument:
        for tool in offered:
            first, *_ = (*tool.description.strip().splitlines(), "")
            state = "" if tool in partner.agent.tools else " (off)"
            chat.screen.note(f"{tool.name}{state}: {first}", "")
        if not offered:
            chat.screen.note("no tools; start the chat with --tools module:name", "")
        return
    word, *names = argument.split()
    if word not in ("on", "off"):
        raise ConfigurationError(
            "usage: /tools on NAME ... or /tools off NAME ...; without names: all tools"
        )
    unknown = set(names) - {tool.name for tool in offered}
    if unknown:
        raise ConfigurationError(f"unknown tool {', '.join(sorted(unknown))}. /tools lists all")
    chosen = {tool.name for tool in offered if not names or tool.name in names}
    active = {tool.name for tool in partner.agent.tools}
    active = active | chosen if word == "on" else active - chosen
    partner.agent.tools = [tool for tool in offered if tool.name in active]
    chat.screen.note(f"on: {', '.join(tool.name for tool in partner.agent.tools) or 'none'}")


@command("/approve [forget N]", at_once=True)
async def list_rules(chat: ChatLoop, argument: str) -> None:
    """list the rules for tools that run without a question, or remove one"""
    rules = chat.screen.rules
    if rules is None:
        chat.screen.note("this chat has no approval rules", "")
        return
    word, _, number = argument.partition(" ")
    listed = rules.list()
    if word not in ("", "forget"):
        raise ConfigurationError("usage: /approve, or /approve forget NUMBER to remove a rule")
    if word == "forget":
        if not (number.isdecimal() and 0 < int(number) <= len(listed)):
            raise ConfigurationError(
                "/approve forget NUMBER needs a number from the list of /approve"
            )
        rule = listed[int(number) - 1]
        rules.revoke(rule)
        chat.screen.note(f"{rule.tool} needs your approval again")
        return
    ruled = {rule.tool for rule in listed}
    tools = [tool for tool in chat.manager.tools if tool.name in ruled]
    here = {definition_of(tool): tool.bare.origin for tool in tools}
    for place, rule in enumerate(listed, 1):
        origin = here.get(rule.definition) or rule.source
        chat.screen.note(f"{place}. {rule}: {one_line(origin, MAX_SHOWN_CHARS)}", "")
    if not listed:
        chat.screen.note("no rules: each call that needs approval is asked about", "")


@command("/theme [NAME]", at_once=True)
async def choose_theme(chat: ChatLoop, argument: str) -> None:
    """show or choose the colours: dark, light, none"""
    screen = chat.screen
    if not isinstance(screen, LiveScreen):
        raise ConfigurationError("the plain screen has no colours")
    if argument:
        screen.choose_theme(argument)
        chat.manager.settings.save(theme=argument)
    screen.note(f"theme: {screen.theme}")


# --- the conversation


@command("/retry")
async def retry(chat: ChatLoop, argument: str) -> bool | None:
    """answer your last message again, or continue an interrupted turn"""
    partner = chat.partner
    if isinstance(partner, AgentPartner) and await partner.interrupted_turn() is not None:
        return True
    if not any(each.role == "user" for each in partner.messages()):
        raise ConfigurationError("there is no message to answer again")
    if isinstance(partner, AgentPartner):
        await partner.forget_answer()
    return True


@command("/undo")
async def undo(chat: ChatLoop, argument: str) -> None:
    """remove the last turn: your message and everything after it"""
    message = await require_agent(chat).undo()
    if message is None:
        raise ConfigurationError("there is no turn to remove")
    chat.screen.note(f"removed: {shorten(message.content or '', 60, placeholder=' ...')}")


@command("/edit")
async def edit(chat: ChatLoop, argument: str) -> Message | None:
    """edit your last message in $EDITOR and send it again"""
    partner = require_agent(chat)
    questions = [each for each in partner.messages() if each.role == "user"]
    if (interrupted := await partner.interrupted_turn()) is not None:
        questions.append(interrupted.message)  # the conversation contains it only after its turn
    if not questions:
        raise ConfigurationError("there is no message to edit")
    last = questions[-1]
    text = await edit_text(chat, last.content or "")
    if text is None or not text.strip() or text == last.content:
        chat.screen.note("(not changed)")
        return None
    await partner.undo()
    chat.screen.show_said(text)
    return last.model_copy(update={"content": text})


@command("/copy [all]", at_once=True)
async def copy(chat: ChatLoop, argument: str) -> None:
    """copy the last answer, or the whole conversation, to the clipboard"""
    messages = chat.partner.messages()
    answers = [each.content for each in messages if each.role == "assistant" and each.content]
    if not answers:
        raise ConfigurationError("there is no answer to copy")
    text = answers[-1]
    if argument == "all":
        from ._export import markdown_of

        text = markdown_of(messages, "ChatLoop")
    screen = chat.screen
    if not isinstance(screen, LiveScreen):
        raise ConfigurationError("the plain screen has no clipboard. Use /export FILE")
    screen.copy(text)
    screen.note(f"({len(text):,} characters copied to the terminal's clipboard)")


@command("/save [FILE]")
async def save(chat: ChatLoop, argument: str) -> None:
    """save the conversation as JSON for --load (default: conversation.json)"""
    path, conversation = argument or "conversation.json", Conversation()
    conversation.add(*chat.partner.messages())
    try:
        conversation.save(path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot save to {path}: {error.strerror or error}. Try another file"
        ) from None
    chat.screen.note(f"saved {len(conversation)} messages to {path}", "")


@command("/export FILE")
async def export_to(chat: ChatLoop, argument: str) -> None:
    """write the conversation as Markdown (.md) or HTML (.html)"""
    from ._export import export

    path = argument or "conversation.md"
    try:
        await asyncio.to_thread(export, chat.partner.messages(), path)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror or error}. Try another file"
        ) from None
    chat.screen.note(f"exported to {path}", "")


@command("/image FILE [TEXT]")
async def send_image(chat: ChatLoop, argument: str) -> Message:
    """send an image to the model, with a text"""
    try:
        words = shlex.split(argument)
    except ValueError:
        raise ConfigurationError("/image FILE [TEXT]: a quotation mark is missing") from None
    if not words:
        raise ConfigurationError("/image FILE [TEXT] needs a file")
    message = await read_message(" ".join(words[1:]), (words[0],))
    chat.screen.show_said(f"/image {argument}")
    return message


# --- cost and progress


@command("/cost", at_once=True)
async def show_cost(chat: ChatLoop, argument: str) -> None:
    """show the tokens of this session, and their cost if prices are set"""
    for line in chat.manager.costs(chat.usage()):
        chat.screen.note(line, "")


@command("/tree", at_once=True)
async def show_tree(chat: ChatLoop, argument: str) -> None:
    """show or hide the tree of running nodes above the prompt"""
    screen = chat.screen
    if not isinstance(screen, LiveScreen):
        chat.screen.note(str(chat.commander.tree()), "")
        return
    screen.shows_tree = not screen.shows_tree
    screen.touch(now=True)


# --- sessions


@command("/sessions [WORDS]", at_once=True)
async def list_sessions(chat: ChatLoop, argument: str) -> None:
    """list the sessions, most recent first, or those that contain all words"""
    found = await chat.manager.sessions.list(argument)
    for info in found[:MAX_LISTED_SESSIONS]:
        chat.screen.note(describe_session(info), "")
    if len(found) > MAX_LISTED_SESSIONS:
        chat.screen.note(
            f"... and {len(found) - MAX_LISTED_SESSIONS} more; search with /sessions WORDS"
        )
    if not found:
        chat.screen.note("no sessions" if not argument else f"no session contains {argument}", "")


@command("/resume [SESSION]")
async def resume(chat: ChatLoop, argument: str) -> None:
    """continue another session, by its id or the beginning of its title; Tab lists them"""
    require_agent(chat)
    if not argument:
        await list_sessions(chat, "")
        chat.screen.note("usage: /resume SESSION, its id or the beginning of its title")
        return
    info = await chat.manager.sessions.find(argument)
    await chat.go_to(await chat.manager.restore(info))


@command("/new")
async def begin_new(chat: ChatLoop, argument: str) -> None:
    """start a new session; this one stays in /sessions"""
    require_agent(chat)
    await chat.go_to(chat.manager.new())


@command("/fork [TURNS]")
async def fork(chat: ChatLoop, argument: str) -> None:
    """continue in a copy of this session, or of its first turns"""
    partner = require_agent(chat)
    if argument and not argument.isdecimal():
        raise ConfigurationError("/fork TURNS needs a number: how many turns to copy")
    if not partner.info.known:
        raise ConfigurationError("this session has no turn to copy yet")
    info = await partner.fork(int(argument) if argument else None)
    await chat.go_to(await chat.manager.open(info))


@command("/rename TITLE")
async def rename(chat: ChatLoop, argument: str) -> None:
    """change the title of this session"""
    if not argument:
        raise ConfigurationError("/rename TITLE needs a title")
    partner = require_agent(chat)
    await partner.note(title=shorten_title(argument))
    chat.screen.note(f"renamed to {partner.info.title}")


# --- leaving


@command("/exit", at_once=True)
async def leave(chat: ChatLoop, argument: str) -> None:
    """exit (also Ctrl-D, or Ctrl-C at an empty prompt)"""
    chat.leave()


def describe_session(info: SessionInfo) -> str:
    """Return a session as a line of a list."""
    when = datetime.fromtimestamp(info.updated).astimezone()
    turns = f"{info.turns} turn{'' if info.turns == 1 else 's'}"
    return f"{info.id}  {when:%Y-%m-%d %H:%M}  {turns:<9}  {info.title}"


async def edit_text(chat: ChatLoop, text: str) -> str | None:
    """Let the person edit a text in $EDITOR, or at the prompt if there is none."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR")
    if not editor or not isinstance(chat.screen, LiveScreen):
        return await chat.screen.edit("edit: ", text)
    with tempfile.TemporaryDirectory(prefix="anabranch-") as folder:
        path = Path(folder, "message.md")
        await asyncio.to_thread(path.write_text, text, "utf-8", "replace")
        status = await chat.screen.run_in_front([*shlex.split(editor), str(path)])
        if status:
            raise ConfigurationError(
                f"{editor} failed with status {status}, so nothing was changed"
            )
        return (await asyncio.to_thread(path.read_text, "utf-8")).removesuffix("\n")
