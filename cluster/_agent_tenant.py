"""An agent in its actor: how it is made there, and how a visit to it runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from inspect import isawaitable, signature
from typing import Any

from ..agents import ConversableAgent
from ..agents.conversation import Group
from ..agents.remote import Scope, continue_scope
from ..commander import Node
from ._actor import Outlet
from ._directory import ClusterDirectory
from ._outpost import BREATH, Feed, Outpost
from ._pack import unpack, unpack_code
from ._speech import Teller
from ._visit import CALLER, Caller, Share, Visit

__all__ = ["MakingAgent"]


@dataclass(frozen=True, slots=True)
class MakingAgent:
    """Makes the agent and its tenant, in the actor. The arguments are packed one by one."""

    agent: Callable[..., Any]
    args: Sequence[bytes]
    kwargs: Mapping[str, bytes]

    async def __call__(self) -> AgentTenant:
        """Make them."""
        args = [unpack_code(value) for value in self.args]
        kwargs = {name: unpack_code(value) for name, value in self.kwargs.items()}
        directory = ClusterDirectory()
        if self._takes_directory():
            kwargs["directory"] = directory
        agent = self.agent(*args, **kwargs)
        if isinstance(agent, ConversableAgent) and agent.directory is None:
            agent.directory = directory
        if agent.name not in directory:
            directory.add(agent)  # to itself it is no agent elsewhere
        return AgentTenant(agent)

    def _takes_directory(self) -> bool:
        kind, parameters = self.agent, signature(self.agent).parameters
        if isinstance(kind, type) and issubclass(kind, ConversableAgent | Group):
            return "directory" in parameters or any(
                each.kind is each.VAR_KEYWORD for each in parameters.values()
            )
        return "directory" in parameters


class AgentTenant:
    """Lets others visit the agent; each visit runs under a commander of its own."""

    def __init__(self, agent: Any) -> None:
        self._agent = agent

    async def play(self, outlet: Outlet, visit: Visit) -> None:
        """Call what is asked for; send what is said, what happens, and how it has ended."""
        with _conversation(outlet, visit) as scope:
            share = Share(scope)
            CALLER.set(Caller(outlet, share))  # in this stream's own task
            async with Outpost(visit.stand) as outpost:
                feed, news = Feed(outpost), asyncio.Event()
                feed.listen(news.set)
                telling = asyncio.ensure_future(_tell(outlet, feed, share, news))
                outpost.put_root(Visited(self._agent, visit))
                outpost.at_done(lambda _: telling.cancel())
            outlet.send_nowait(feed.report(share.spent(), outpost.ending()))

    async def aclose(self) -> None:
        """An agent holds nothing."""


async def _tell(outlet: Outlet, feed: Feed, share: Share, news: asyncio.Event) -> None:
    while True:
        await news.wait()
        news.clear()
        await asyncio.sleep(BREATH)
        await outlet.room()  # a report that is made is sent: a cancel finds none in between
        outlet.send_nowait(feed.report(share.spent()))


def _conversation(outlet: Outlet, visit: Visit) -> AbstractContextManager[Scope | None]:
    if visit.said is None:
        return nullcontext()
    return continue_scope(*visit.said, Teller(outlet) if visit.heard else None)


class Visited(Node[Any], internal=True):
    """A visit as a node of the tree in the actor."""

    def __init__(self, agent: Any, visit: Visit) -> None:
        super().__init__(f"{agent.name}.{visit.method}")
        self._agent = agent
        self._visit = visit

    async def task(self) -> Any:
        """Call the method, or get what has its name."""
        value = getattr(self._agent, self._visit.method)
        if callable(value):
            args, kwargs = unpack(self._visit.given)
            value = value(*args, **kwargs)
        return await value if isawaitable(value) else value
