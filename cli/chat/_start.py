"""`anabranch chat`: make a partner, a screen and a chat from the command line's options."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ...agents import Agent
from ...commander import AnabranchError, Commander, ConfigurationError
from ...dispatch import Format
from ...dispatch.formats import FORMATS
from ...messages import Conversation, Message
from ...tools import open_tools
from .._editor import open_history
from .._knowledge import open_index
from .._rescue import rescue
from .._terminal import complain
from ._agent_partner import AgentPartner
from ._attach import read_piped, with_piped
from ._commands import COMMANDS, describe_partner
from ._live import THEMES, LiveScreen
from ._loop import Chat
from ._partner import Partner
from ._plain import PlainScreen
from ._rules import Rules
from ._session_manager import SessionManager, read_message
from ._sessions import AGENT, open_sessions
from ._settings import Settings
from ._status import Status

__all__ = ["ChatOptions", "hold_chat"]

RULES_DROPPED = "(the rules of an earlier version are dropped: those tools are asked about again)"


@dataclass(frozen=True)
class ChatOptions:
    """The options of the command line."""

    question: str | None = None
    model: str | None = None  # None: the session's model, or the small local one
    name: str | None = None
    base_url: str | None = None
    system: str | None = None
    tools: list[str] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: list[str] | None = None
    documents: str | None = None
    embed: str | None = None
    load: Path | None = None
    images: Sequence[str] = ()
    resume: str | None = None  # a session's id or title; "" is the most recent one
    history: bool = True
    agent: str | None = None
    url: str | None = None
    plain: bool = False
    as_json: bool = False
    theme: str | None = None
    debug: bool = False

    def check(self) -> None:
        """Raise `ConfigurationError` for options that exclude each other."""
        other = "--agent" if self.agent else "--url" if self.url else ""
        own = {
            "--model": self.model,
            "--system": self.system,
            "--tools": self.tools,
            "--knowledge": self.documents,
            "--load": self.load,
            "--format": self.formats,
            "--base-url": self.base_url,
            "--temperature or --max-tokens": self.options,
        }
        resumes, asks = self.resume is not None, self.question is not None
        wrong = {
            "--agent and --url are two partners: choose one": self.agent and self.url,
            **{
                f"{name} does not go with {other}, which has its own": other and given
                for name, given in own.items()
            },
            "a server's sessions are its own: --url takes no --continue": self.url and resumes,
            "--load begins a session: it does not go with --continue": self.load and resumes,
            "--no-history knows no sessions: it takes no --continue": resumes and not self.history,
            f"--theme {self.theme}: there are {', '.join(THEMES)}": (
                self.theme not in (None, *THEMES)
            ),
            "--image goes with a question; in the chat there is /image": self.images and not asks,
            '--json needs a question: anabranch chat --json "..."': self.as_json and not asks,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigurationError(message)


async def hold_chat(options: ChatOptions) -> int:
    """Chat with these options; return the exit status.

    Raises `ConfigurationError` for invalid options, before any request.
    """
    options.check()
    settings = Settings.load()
    if options.theme is not None:
        settings = settings.model_copy(update={"theme": options.theme})
    # Files are read before a model is opened, which may have to be downloaded.
    question = None
    if options.question is not None:
        piped = await asyncio.to_thread(lambda: read_piped(sys.stdin.buffer))
        if not (options.question + piped).strip() and not options.images:
            raise ConfigurationError("the question is empty")
        question = await _read_question(with_piped(options.question, piped), options.images)
    loaded = None if options.load is None else _load(options.load)
    async with AsyncExitStack() as stack:
        sessions = await stack.enter_async_context(open_sessions(keep=options.history))
        manager = SessionManager(stack, sessions, settings, options.options)
        await _make_agent(manager, options)
        slow = 0.1 if options.debug else None
        async with Commander(policy="isolate", slow_after=slow) as commander:
            status = Status(AGENT, settings.priced)
            async with _open_chat(commander, manager, status, options) as chat:
                status.follow(commander, chat.screen.touch)
                try:
                    return await _talk(chat, options, question, loaded)
                finally:
                    status.close()


@asynccontextmanager
async def _open_chat(
    commander: Commander, manager: SessionManager, status: Status, options: ChatOptions
) -> AsyncGenerator[Chat]:
    """Return a chat on the live screen, or on the plain screen where the terminal has no keys."""
    rules = Rules()
    dumb = os.environ.get("TERM", "dumb") == "dumb" or options.plain
    if dumb or options.question is not None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        silent, debug = options.as_json, options.debug
        screen = PlainScreen(list(COMMANDS), rules, silent=silent, debug=debug)
        yield Chat(screen, commander, manager, status)
        return
    live = LiveScreen(rules, theme=manager.settings.theme, debug=options.debug)
    chat = Chat(live, commander, manager, status)
    async with live.standing(chat, chat.completer(), open_history()):
        yield chat


async def _talk(
    chat: Chat, options: ChatOptions, question: Message | None, loaded: Conversation | None
) -> int:
    screen, sessions = chat.screen, chat.manager.sessions
    partner = await _find_partner(chat, options, loaded)
    if sessions.trouble:
        complain(sessions.trouble)
    if screen.rules is not None:
        with suppress(ConfigurationError, OSError):  # reported as soon as a rule matters
            if screen.rules.drop_old():
                screen.note(RULES_DROPPED)
    try:
        if question is not None:
            status = await chat.once(partner, question)
        else:
            if screen.interactive:
                speaks = describe_partner(partner)
                screen.note(f"anabranch {version('anabranch')}, {speaks}")
                screen.note("/help lists the commands; Ctrl-C stops the model, or leaves")
            status = await chat.run(partner)
    except BrokenPipeError:
        raise  # the reader of a pipe has closed it, which ends the chat
    except BaseException:
        _rescue(chat)
        raise
    if chat.is_killed:
        _rescue(chat)
    if options.as_json and (not status or chat.only_reasoned):
        last = chat.partner.messages()[-1].model_copy(update={"provider_items": []})
        sys.stdout.write(json.dumps(last.to_record(), ensure_ascii=False) + "\n")
    return status


async def _read_question(text: str, images: Sequence[str]) -> Message:
    try:
        return await read_message(text, images)
    except OSError as error:
        which = error.filename or "a file of the question"
        raise ConfigurationError(f"{which}: {error.strerror or error}") from None


def _load(path: Path) -> Conversation:
    try:
        return Conversation.load(path)
    except OSError as error:
        raise ConfigurationError(f"--load {path}: {error.strerror or error}") from None


def _rescue(chat: Chat) -> None:
    """Save a conversation that is only in memory."""
    if chat.manager.sessions.is_kept and isinstance(chat.partner, AgentPartner):
        return
    conversation = Conversation()
    conversation.add(*chat.partner.messages())
    rescue(conversation)


# --- the partner


async def _make_agent(manager: SessionManager, options: ChatOptions) -> None:
    """Make the agent of the options; its model is chosen with the session."""
    if options.agent is not None or options.url is not None:
        return
    if options.tools is None:
        from ...tools.examples import EXAMPLE_TOOLS

        manager.tools = [*EXAMPLE_TOOLS]
    else:
        wanted = _without_none(options.tools)
        manager.tools = [*await manager.stack.enter_async_context(open_tools(*wanted))]
    index = None
    if options.documents is not None:
        try:
            index = open_index(options.documents, options.embed)
            index = await manager.stack.enter_async_context(index)
        except AnabranchError as error:
            raise ConfigurationError(str(error)) from error
    manager.agent = Agent(
        name=AGENT,
        system=options.system,
        tools=manager.tools,
        knowledge=index,
        formats=_formats(options.formats),
    )


def _without_none(specs: list[str]) -> list[str]:
    """Return the wanted tools: no tools for `--tools none`, which excludes all others."""
    names = [name.strip().lower() for spec in specs for name in spec.split(",")]
    if "none" not in names:
        return specs
    if {*names} != {"none"}:
        raise ConfigurationError("--tools none goes with no other tools: leave one of them out")
    return []


def _formats(names: list[str] | None) -> list[Format] | None:
    for name in names or ():
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise ConfigurationError(f"there is no format {name!r}; there are: {known}")
    return None if names is None else [FORMATS[name]() for name in names]


async def _find_partner(chat: Chat, options: ChatOptions, loaded: Conversation | None) -> Partner:
    """Return the partner of the options, in the session of the options."""
    manager, screen = chat.manager, chat.screen
    raw = not isinstance(screen, LiveScreen)
    if options.url is not None:
        from ._server_runs import find_server

        return await find_server(
            options.url, options.name, screen.choose_name, note=screen.note, raw=raw
        )
    if options.agent is not None:
        from ._local_runs import find_partner

        found = find_partner(options.agent, screen.ask_line, raw=raw)
        if isinstance(found, Partner):
            if options.resume is not None:
                raise ConfigurationError(f"{options.agent} keeps no sessions: leave --continue out")
            return found
        manager.adopt(found, options.agent)
    return await _open_session(chat, options, loaded)


async def _open_session(
    chat: Chat, options: ChatOptions, loaded: Conversation | None
) -> AgentPartner:
    manager, info = chat.manager, None
    manager.doubt, manager.choose = chat.screen.ask_doubt, chat.screen.choose_name
    if options.resume is not None and manager.sessions.trouble:
        raise ConfigurationError(manager.sessions.trouble)  # the session may exist in the file
    if options.resume:
        info = await manager.sessions.find(options.resume)
    elif options.resume is not None and (info := await manager.sessions.newest()) is None:
        chat.screen.note("(there is no session yet: a new one begins)")
    if info is not None:
        manager.sessions.reserve(info)  # before a model is opened
    if manager.agent.backend is None:
        model, base_url = options.model, options.base_url
        if model is None and info is not None and info.model:
            model, base_url = info.model, base_url or info.base_url
        named = f"{model or 'local'} {options.name or ''}".strip()
        await manager.use(named, base_url=base_url)
    if info is None:
        return manager.new(loaded)
    partner = await manager.open(info)
    if options.agent is None:
        if options.system is None:
            manager.agent.system = info.system
        # The next `-c` uses the same model and system prompt.
        await partner.note(**manager.speaker(), system=manager.agent.system)
    return partner
