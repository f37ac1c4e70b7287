"""`anabranch chat`: create partner, screen and loop from the options, and run the chat."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
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
from .._output import print_error
from ._agent_partner import AgentPartner
from ._approval_rules import ApprovalRules
from ._attach import read_piped, with_piped
from ._commands import COMMANDS, describe_partner
from ._live_screen import THEMES, LiveScreen
from ._loop import ChatLoop
from ._partner import Partner
from ._plain_screen import PlainScreen
from ._session_manager import SessionManager, read_message
from ._sessions import AGENT, open_sessions
from ._settings import Settings
from ._status import Status

__all__ = ["ChatArguments", "run_chat"]

RULES_DROPPED = (
    "(approval rules of an earlier version were removed: those tools need approval again)"
)


@dataclass(frozen=True)
class ChatArguments:
    """The options of `anabranch chat`."""

    question: str | None = None
    model: str | None = None  # None: the session's model, or the local one
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
        """Raise `ConfigurationError` for options that cannot be combined."""
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
            "--agent and --url cannot be combined": self.agent and self.url,
            **{
                f"{name} cannot be combined with {other}, which has its own": other and given
                for name, given in own.items()
            },
            "--continue and --resume cannot be combined with --url": self.url and resumes,
            "--load starts a session, so it cannot be combined with --continue": self.load
            and resumes,
            "--no-history has no sessions, so it cannot be combined with --continue": resumes
            and not self.history,
            f"--theme must be one of {', '.join(THEMES)}, not {self.theme!r}": (
                self.theme not in (None, *THEMES)
            ),
            "--image requires a question. In the chat, use /image": self.images and not asks,
            '--json requires a question: anabranch chat --json "..."': self.as_json and not asks,
        }
        for message, is_wrong in wrong.items():
            if is_wrong:
                raise ConfigurationError(message)


async def run_chat(options: ChatArguments) -> int:
    """Chat with these options; return the exit status.

    Raises `ConfigurationError` for invalid options, before any request.
    """
    options.check()
    settings = Settings.load()
    if options.theme is not None:
        settings = settings.model_copy(update={"theme": options.theme})
    # Read files before a model is opened, since that may download the model first.
    question = None
    if options.question is not None:
        piped = await asyncio.to_thread(lambda: read_piped(sys.stdin.buffer))
        if not (options.question + piped).strip() and not options.images:
            raise ConfigurationError("the question must not be empty")
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
                    return await _converse(chat, options, question, loaded)
                finally:
                    status.close()


@asynccontextmanager
async def _open_chat(
    commander: Commander, manager: SessionManager, status: Status, options: ChatArguments
) -> AsyncGenerator[ChatLoop]:
    """Yield a chat on the live screen, or on the plain screen in a pipe or a simple terminal."""
    rules = ApprovalRules()
    dumb = os.environ.get("TERM", "dumb") == "dumb" or options.plain
    if dumb or options.question is not None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        silent, debug = options.as_json, options.debug
        screen = PlainScreen(list(COMMANDS), rules, silent=silent, debug=debug)
        yield ChatLoop(screen, commander, manager, status)
        return
    live = LiveScreen(rules, theme=manager.settings.theme, debug=options.debug)
    chat = ChatLoop(live, commander, manager, status)
    async with live.show_prompt(chat, chat.completer(), open_history()):
        yield chat


async def _converse(
    chat: ChatLoop, options: ChatArguments, question: Message | None, loaded: Conversation | None
) -> int:
    screen, sessions = chat.screen, chat.manager.sessions
    partner = await _find_partner(chat, options, loaded)
    if sessions.trouble:
        print_error(sessions.trouble)
    if screen.rules is not None:
        with suppress(ConfigurationError, OSError):  # reported once a rule is needed
            if screen.rules.drop_old():
                screen.note(RULES_DROPPED)
    try:
        if question is not None:
            status = await chat.once(partner, question)
        else:
            if screen.interactive:
                speaks = describe_partner(partner)
                screen.note(f"anabranch {version('anabranch')}, {speaks}")
                screen.note("/help lists the commands; Ctrl-C stops an answer, or exits")
            status = await chat.run(partner)
    except BrokenPipeError:
        raise  # the reader of a pipe has closed it
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
        which = error.filename or "a file in the question"
        raise ConfigurationError(f"{which}: {error.strerror or error}") from None


def _load(path: Path) -> Conversation:
    try:
        return Conversation.load(path)
    except OSError as error:
        raise ConfigurationError(f"--load {path}: {error.strerror or error}") from None


def _rescue(chat: ChatLoop) -> None:
    """Save a conversation that only memory holds and print its path, or else print its text."""
    if chat.manager.sessions.is_stored and isinstance(chat.partner, AgentPartner):
        return
    conversation = Conversation()
    conversation.add(*chat.partner.messages())
    if not any(message.role == "user" for message in conversation):
        return
    folders = [Path(tempfile.gettempdir())]
    with suppress(Exception):
        from platformdirs import user_state_path

        folders.insert(0, user_state_path("anabranch", ensure_exists=True))
    with suppress(OSError):  # standard error may be closed
        for folder in folders:
            with suppress(Exception):
                path = folder / f"chat-{conversation.thread_id}.json"
                conversation.save(path)
                print_error(f"the conversation is saved: --load {path} continues it")
                return
        print_error("the conversation could not be saved; its messages are:")
        for message in conversation:
            sys.stderr.write(f"{json.dumps([message.role, message.content])}\n")


# --- the partner


async def _make_agent(manager: SessionManager, options: ChatArguments) -> None:
    """Create the agent from the options. Its model is chosen with the session."""
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
        instructions=options.system,
        tools=manager.tools,
        knowledge=index,
        formats=_formats(options.formats),
    )


def _without_none(specs: list[str]) -> list[str]:
    """Return the tools to open: none for `--tools none`, which cannot be combined with others."""
    names = [name.strip().lower() for spec in specs for name in spec.split(",")]
    if "none" not in names:
        return specs
    if {*names} != {"none"}:
        raise ConfigurationError("--tools none cannot be combined with other tools")
    return []


def _formats(names: list[str] | None) -> list[Format] | None:
    for name in names or ():
        if name not in FORMATS:
            known = ", ".join(FORMATS)
            raise ConfigurationError(f"unknown format {name!r}. Use one of: {known}")
    return None if names is None else [FORMATS[name]() for name in names]


async def _find_partner(
    chat: ChatLoop, options: ChatArguments, loaded: Conversation | None
) -> Partner:
    """Return the partner that the options name, in the session that they name."""
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
                raise ConfigurationError(
                    f"{options.agent} has no sessions, so --continue cannot be used"
                )
            return found
        manager.adopt(found, options.agent)
    return await _open_session(chat, options, loaded)


async def _open_session(
    chat: ChatLoop, options: ChatArguments, loaded: Conversation | None
) -> AgentPartner:
    manager, info = chat.manager, None
    manager.ask_doubt, manager.choose_name = chat.screen.ask_doubt, chat.screen.choose_name
    if options.resume is not None and manager.sessions.trouble:
        # The session may be in the file that cannot be opened.
        raise ConfigurationError(manager.sessions.trouble)
    if options.resume:
        info = await manager.sessions.find(options.resume)
    elif options.resume is not None and (info := await manager.sessions.newest()) is None:
        chat.screen.note("(no session yet: starting a new one)")
    if info is not None:
        manager.sessions.reserve(info)  # before a model is opened, which may take long
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
            manager.agent.instructions = info.system
        # The next `-c` uses the same model and system prompt.
        await partner.note(**manager.speaker(), system=manager.system)
    return partner
