"""Open the sessions of the chat with their model and tools, and read the person's messages."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from ...agents import Agent
from ...backends import Backend, connect, cost
from ...commander import ConfigurationError, MissingExtra
from ...messages import Conversation, Message, Part, Usage
from ...tools import AnyTool
from .._http import SILENCE_SECONDS, read_object
from .._output import one_line
from ._agent_partner import AgentPartner, AskDoubt
from ._attach import attach, take_pasted
from ._sessions import AGENT, SessionInfo, Sessions
from ._settings import Settings

__all__ = ["ChooseName", "SessionManager", "read_message"]

ChooseName: TypeAlias = Callable[[Sequence[str]], Awaitable[str | None]]
"""Lets the person choose one of several names; returns None for none of them."""

HTTP_ADDRESS = re.compile(r"https?://", re.IGNORECASE)
USER_IN_ADDRESS = re.compile(r"//[^/\s]*@")  # with a password
MODEL_REMEDY = "Name one with --name NAME, or with /model ADDRESS NAME in the chat"


class SessionManager:
    """Opens sessions of `agent`, and reports their cost.

    `stack` closes all opened resources when the chat ends. `options` apply to each model. `tools`
    are all tools; /tools can switch some of them off for the agent.
    """

    def __init__(
        self,
        stack: AsyncExitStack,
        sessions: Sessions,
        settings: Settings,
        options: Mapping[str, Any],
    ) -> None:
        self.stack = stack
        self.sessions = sessions
        self.settings = settings
        self.options = options
        self.agent: Agent[Any] = Agent(name=AGENT)
        self.model = ""  # the argument of `use`
        self.base_url: str | None = None
        self.place = ""  # the `module:name` of the person's own agent
        self.tools: list[AnyTool] = []
        self.ask_doubt: AskDoubt | None = None
        self.choose_name: ChooseName | None = None

    @property
    def system(self) -> str | None:
        """The system prompt for the notes of a session; None if it is not a text."""
        instructions = self.agent.instructions
        return instructions if isinstance(instructions, str) else None

    def adopt(self, agent: Agent[Any], place: str) -> None:
        """Use the person's own agent. Its sessions are stored beside the others of the chat."""
        self.agent, self.tools, self.place = agent, [*agent.tools], place
        agent.name = AGENT

    def new(self, conversation: Conversation | None = None) -> AgentPartner:
        """Return a partner in a new session, which may start with a conversation."""
        self.sessions.release()
        info = self.sessions.new(
            **self.speaker(), system=self.system, folder=str(Path.cwd()), agent=self.place
        )
        partner = AgentPartner(self.agent, self.sessions, info, ask_doubt=self.ask_doubt)
        if conversation is not None:
            partner.begin_with(conversation)
        return partner

    async def open(self, info: SessionInfo) -> AgentPartner:
        """Return a partner in a stored session."""
        partner = AgentPartner(self.agent, self.sessions, info, ask_doubt=self.ask_doubt)
        await partner.open()
        return partner

    async def restore(self, info: SessionInfo) -> AgentPartner:
        """Return a partner in a stored session, with the session's model and system prompt.

        The person's own agent keeps its model and system prompt.
        """
        partner = await self.open(info)
        if not self.place:
            if info.model and info.speaker != self.speaker():
                await self.use(info.model, info.base_url)
            self.agent.instructions = info.system
        return partner

    def speaker(self) -> dict[str, str | None]:
        """Return the model and its address for the notes of a session, without passwords."""
        address = None if self.base_url is None else USER_IN_ADDRESS.sub("//", self.base_url)
        return {"model": USER_IN_ADDRESS.sub("//", self.model), "base_url": address}

    async def use(self, model: str, base_url: str | None = None) -> Backend:
        """Use another model. The previous one stays open, since a request may still use it.

        `model` is `local`, `openai:NAME`, or an address, a blank and a name. Without a name, the
        server's only model is used, or the person chooses one of several.
        """
        spec, _, name = model.partition(" ")
        name = name.strip()
        if HTTP_ADDRESS.match(spec):
            if base_url is not None:
                raise ConfigurationError("name the server once, with --model or with --base-url")
            name = name or await _find_model(spec, self.choose_name)
            model = f"{spec} {name}"
        backend = connect(spec, model=name or None, base_url=base_url, **self.options)
        self.agent.backend = await self.stack.enter_async_context(backend)
        self.model, self.base_url = model, base_url
        return backend

    def costs(self, usage: Mapping[str, Usage]) -> list[str]:
        """Return a line for each model: its tokens, and their cost if the price is known."""
        prices = self.settings.priced
        lines: list[str] = []
        for model, used in usage.items():
            cached = used.cached_input_tokens
            line = f"{model}: {used.input_tokens:,} tokens in"
            line += f" ({cached:,} of them cached)" if cached else ""
            line += f", {used.output_tokens:,} out"
            line += f": {cost({model: used}, prices):.4f}" if model in prices else ""
            lines.append(line)
        if lines and not usage.keys() & prices.keys():
            example = '{"prices": {"MODEL": [1, 2]}}'
            lines.append(f"no prices are set. Add them to {self.settings.path()}: {example}")
        return lines or ["no requests yet"]


async def read_message(typed: str, images: Sequence[str] = ()) -> Message:
    """Return the person's text as a message, with files after `@` and dropped pictures.

    Raises `AttachError` or `ConfigurationError` for a file that cannot be attached.
    """

    def read() -> Message:
        text, pasted = take_pasted(typed)
        attached = attach(text)
        for image in images:
            if not (path := Path(image).expanduser()).exists():
                raise ConfigurationError(_not_found(path))
        parts = [Part.from_path(os.path.expanduser(path)) for path in (*images, *pasted)]
        return Message(role="user", content=attached.text, parts=[*parts, *attached.parts])

    return await asyncio.to_thread(read)


def _not_found(path: Path) -> str:
    """Return the message for a missing file, with a similar name from its folder."""
    folder = Path.cwd() / path.parent
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    hint = (
        f"Did you mean {path.parent / near[0]}?" if near else f"The working folder is {Path.cwd()}"
    )
    return f"{path}: No such file. {hint}"


async def _find_model(address: str, choose: ChooseName | None) -> str:
    """Return the name of the server's only model, or of the model that the person chooses.

    Raises `ConfigurationError` if the server does not list models, or if no model is chosen.
    """
    where, names = await _list_models(address)
    if len(names) == 1:
        return names[0]
    chosen = await choose(names) if names and choose is not None else None
    if chosen is None:
        known = one_line(", ".join(names), 500) or "none"
        raise ConfigurationError(f"choose a model of {where}: {known}. {MODEL_REMEDY}")
    return chosen


async def _list_models(address: str) -> tuple[str, list[str]]:
    """Return an address without secrets, and the names of the models there."""
    if find_spec("aiohttp") is None:
        raise MissingExtra("talking to a server", "http")
    import aiohttp

    try:
        url = urlsplit(address)
    except ValueError:
        raise ConfigurationError("the address of the model's server is invalid") from None
    path = url.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    public_url = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    where = one_line(public_url.geturl().rstrip("/"), 200)
    try:
        models_url = url._replace(path=f"{path}/models", fragment="").geturl()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(models_url, allow_redirects=False) as answer,
        ):
            if answer.status == 200:
                listed: Any = (await read_object(answer))["data"]
                return where, [name for each in listed if (name := str(each["id"]).strip())]
            why = f"HTTP status {answer.status}"
            if answer.status in (401, 403):
                why += ", it needs a key: use --model openai:NAME --base-url ADDRESS"
            elif answer.status == 404 and not path:
                why += f", did you mean {where}/v1?"
    except aiohttp.InvalidURL:
        why = "the address is invalid"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = one_line(str(error), 200) or type(error).__name__
    except (ValueError, KeyError, TypeError):
        why = "it sent no list of models"
    raise ConfigurationError(f"cannot list the models of {where} ({why}). {MODEL_REMEDY}")
