"""Opens the chat's sessions, with the model, the tools and the settings that they use."""

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
from .._http import SILENCE, read_object
from .._terminal import in_line
from ._agent_partner import AgentPartner, AskDoubt
from ._attach import attach, take_pasted
from ._sessions import AGENT, SessionInfo, Sessions
from ._settings import Settings

__all__ = ["Choose", "SessionManager", "read_message"]

Choose: TypeAlias = Callable[[Sequence[str]], Awaitable[str | None]]
"""Lets the person choose one of several names; None for none of them."""

ADDRESS = re.compile(r"https?://", re.IGNORECASE)
USER_IN_ADDRESS = re.compile(r"//[^/\s]*@")  # with a password
REMEDY = "name one: --name NAME, or /model ADDRESS NAME in the chat"


class SessionManager:
    """Opens sessions of `agent`, and reports their cost.

    `stack` closes everything that was opened when the chat ends. `options` apply to each model.
    `tools` are all tools on offer; the agent may use only some of them.
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
        self.model = ""  # as `use` takes it
        self.base_url: str | None = None
        self.place = ""  # of the person's own agent: `module:name`
        self.tools: list[AnyTool] = []
        self.doubt: AskDoubt | None = None
        self.choose: Choose | None = None

    def adopt(self, agent: Agent[Any], place: str) -> None:
        """Use an agent of the person's own; its sessions are stored with the chat's."""
        self.agent, self.tools, self.place = agent, [*agent.tools], place
        agent.name = AGENT

    def new(self, conversation: Conversation | None = None) -> AgentPartner:
        """Return a partner in a new session, which may begin with a conversation."""
        self.sessions.release()
        system = self.agent.system if isinstance(self.agent.system, str) else None
        info = self.sessions.new(
            **self.speaker(), system=system, folder=str(Path.cwd()), agent=self.place
        )
        partner = AgentPartner(self.agent, self.sessions, info, doubt=self.doubt)
        if conversation is not None:
            partner.begin_with(conversation)
        return partner

    async def open(self, info: SessionInfo) -> AgentPartner:
        """Return a partner in a stored session."""
        partner = AgentPartner(self.agent, self.sessions, info, doubt=self.doubt)
        await partner.open()
        return partner

    async def restore(self, info: SessionInfo) -> AgentPartner:
        """Return a partner in a stored session, with the session's model and system prompt.

        An agent of the person's own keeps its own.
        """
        partner = await self.open(info)
        if not self.place:
            if info.model and info.speaker != self.speaker():
                await self.use(info.model, info.base_url)
            self.agent.system = info.system
        return partner

    def speaker(self) -> dict[str, str | None]:
        """Return the model and its address as a session stores them: without a password."""
        address = None if self.base_url is None else USER_IN_ADDRESS.sub("//", self.base_url)
        return {"model": USER_IN_ADDRESS.sub("//", self.model), "base_url": address}

    async def use(self, model: str, base_url: str | None = None) -> Backend:
        """Use another model from now on; the previous one stays open, since it may be in use.

        `model` is `local`, `openai:NAME`, or an address, a blank and a name. Without a name, the
        server's only model is used; of several, the person chooses one.
        """
        spec, _, name = model.partition(" ")
        name = name.strip()
        if ADDRESS.match(spec):
            if base_url is not None:
                raise ConfigurationError("give the server's address once: --model or --base-url")
            name = name or await _find_model(spec, self.choose)
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
            line = f"{model}: {used.input_tokens:,} tokens read"
            line += f" ({cached:,} of them cached)" if cached else ""
            line += f", {used.output_tokens:,} written"
            line += f": {cost({model: used}, prices):.4f}" if model in prices else ""
            lines.append(line)
        if lines and not usage.keys() & prices.keys():
            lines.append(
                f'no prices are known; {self.settings.path()}: {{"prices": {{"MODEL": [1, 2]}}}}'
            )
        return lines or ["nothing was asked yet"]


async def read_message(typed: str, images: Sequence[str] = ()) -> Message:
    """Return a message of what the person typed, with files after `@` and dropped pictures.

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
    hint = f"did you mean {path.parent / near[0]}?" if near else f"the folder is {Path.cwd()}"
    return f"{path}: No such file; {hint}"


async def _find_model(address: str, choose: Choose | None) -> str:
    """Return the name of the server's only model, or of the one that the person chooses.

    Raises `ConfigurationError` if the server does not list models, has none, or has several and
    none is chosen.
    """
    where, names = await _list_models(address)
    if len(names) == 1:
        return names[0]
    chosen = await choose(names) if names and choose is not None else None
    if chosen is None:
        known = in_line(", ".join(names), 500) or "none"
        raise ConfigurationError(f"which model? {where} has: {known}; {REMEDY}")
    return chosen


async def _list_models(address: str) -> tuple[str, list[str]]:
    """Return an address without secrets, and the names of the models there."""
    if find_spec("aiohttp") is None:
        raise MissingExtra("talking to a server", "http")
    import aiohttp

    try:
        url = urlsplit(address)
    except ValueError:
        raise ConfigurationError("the address of the model's server is none") from None
    path = url.path.rstrip("/").removesuffix("/chat/completions").rstrip("/")
    shown = url._replace(netloc=url.netloc.rpartition("@")[2], query="", fragment="")
    where = in_line(shown.geturl().rstrip("/"), 200)
    try:
        asked = url._replace(path=f"{path}/models", fragment="").geturl()
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE)
        async with (
            aiohttp.ClientSession(timeout=timeout) as client,
            client.get(asked, allow_redirects=False) as answer,
        ):
            if answer.status == 200:
                listed: Any = (await read_object(answer))["data"]
                return where, [name for each in listed if (name := str(each["id"]).strip())]
            why = f"status {answer.status}"
            if answer.status in (401, 403):
                why += "; with a key it is --model openai:NAME --base-url ADDRESS"
            elif answer.status == 404 and not path:
                why += f"; is it {where}/v1?"
    except aiohttp.InvalidURL:
        why = "it is no address"
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        why = in_line(str(error), 200) or type(error).__name__
    except (ValueError, KeyError, TypeError):
        why = "it lists no models"
    raise ConfigurationError(f"which model? {where} cannot be asked ({why}); {REMEDY}")
