"""What lives as long as the chat: its backends, tools, sessions and choices."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from ...agents import Agent
from ...backends import Backend, connect, cost
from ...commander import ConfigurationError
from ...messages import Conversation, Message, Part, Usage
from ...tools import AnyTool
from ._agent_partner import AgentPartner, AskDoubt
from ._attach import attach, take_pasted
from ._models import Choose, find_model, is_address
from ._sessions import AGENT, SessionInfo, Sessions
from ._settings import Settings

__all__ = ["Home", "read_message"]

SECRET = re.compile(r"//[^/\s]*@")
"""The user and password in an address."""


class Home:
    """Opens sessions of `agent`, and says what they have taken.

    `stack` holds what was opened: it ends with the chat. `options` are for each model. `tools` are
    all that were offered, of which the agent may have some. `doubt` asks a person what became of a
    call that was cut.
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
        self.place = ""  # of the agent, if it is the person's own: `module:name`
        self.tools: list[AnyTool] = []
        self.doubt: AskDoubt | None = None
        self.choose: Choose | None = None  # of several models on a server

    def adopt(self, agent: Agent[Any], place: str) -> None:
        """Talk to an agent of the person's own; its sessions are kept with the chat's."""
        self.agent, self.tools, self.place = agent, [*agent.tools], place
        agent.name = AGENT

    def new(self, conversation: Conversation | None = None) -> AgentPartner:
        """Return a partner in a new session, which may begin with what was said elsewhere."""
        self.sessions.let_go()
        system = self.agent.system if isinstance(self.agent.system, str) else None
        info = self.sessions.new(
            **self.speaker(), system=system, folder=str(Path.cwd()), agent=self.place
        )
        partner = AgentPartner(self.agent, self.sessions, info, doubt=self.doubt)
        if conversation is not None:
            partner.begin_with(conversation)
        return partner

    async def open(self, info: SessionInfo) -> AgentPartner:
        """Return a partner in a session that is known."""
        partner = AgentPartner(self.agent, self.sessions, info, doubt=self.doubt)
        await partner.open()
        return partner

    async def restore(self, info: SessionInfo) -> AgentPartner:
        """Return the same, with the model and the system prompt that the session had.

        An agent of the person's own keeps what it has.
        """
        partner = await self.open(info)
        if self.place:
            return partner
        if info.model and info.speaker != self.speaker():
            await self.use(info.model, info.base_url)
        self.agent.system = info.system
        return partner

    def speaker(self) -> dict[str, str | None]:
        """Return which model speaks, as it is noted of a session: without a password."""
        return {"model": SECRET.sub("//", self.model), "base_url": _bare(self.base_url)}

    async def use(self, model: str, base_url: str | None = None) -> Backend:
        """Let another model speak from now on; the one before stays open, as it may speak now.

        `model` is `local`, `openai:NAME`, or an address and a name, with a blank between. The name
        of the only model there may be left out; of several, the person chooses one.
        """
        spec, _, name = model.partition(" ")
        if is_address(spec):
            if base_url is not None:
                raise ConfigurationError("give the server's address once: --model or --base-url")
            name = name.strip() or await find_model(spec, self.choose)
            model = f"{spec} {name}"
        backend = connect(spec, model=name.strip() or None, base_url=base_url, **self.options)
        self.agent.backend = await self.stack.enter_async_context(backend)
        self.model, self.base_url = model, base_url
        return backend

    def costs(self, usage: Mapping[str, Usage]) -> list[str]:
        """Say what was taken, a line for each model, and what that costs where prices are known."""
        prices = self.settings.priced
        lines = [
            f"{model}: {used.input_tokens:,} tokens read"
            + (
                f" ({used.cached_input_tokens:,} of them cached)"
                if used.cached_input_tokens
                else ""
            )
            + f", {used.output_tokens:,} written"
            + (f": {cost({model: used}, prices):.4f}" if model in prices else "")
            for model, used in usage.items()
        ]
        if not lines:
            return ["nothing was asked yet"]
        if not usage.keys() & prices.keys():
            lines.append(
                f'no prices are known; {self.settings.path()}: {{"prices": {{"MODEL": [1, 2]}}}}'
            )
        return lines


async def read_message(said: str, images: Sequence[str] = ()) -> Message:
    """Make a message of what the person has typed: files after `@`, and dropped pictures, with it.

    Raises `AttachError` or `ConfigurationError` for what cannot be sent along.
    """
    return await asyncio.to_thread(_read, said, images)


def _bare(address: str | None) -> str | None:
    return None if address is None else SECRET.sub("//", address)


def _read(said: str, images: Sequence[str]) -> Message:
    text, pasted = take_pasted(said)
    attached = attach(text)
    for image in images:
        if not (path := Path(image).expanduser()).exists():
            raise ConfigurationError(_not_found(path))
    parts = [Part.from_path(os.path.expanduser(path)) for path in (*images, *pasted)]
    return Message(role="user", content=attached.text, parts=[*parts, *attached.parts])


def _not_found(path: Path) -> str:
    """Say that there is no such file, and which one of its folder may be meant."""
    folder = Path.cwd() / path.parent
    names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
    near = get_close_matches(path.name, names, n=1, cutoff=0.8)
    hint = f"did you mean {path.parent / near[0]}?" if near else f"the folder is {Path.cwd()}"
    return f"{path}: No such file; {hint}"
