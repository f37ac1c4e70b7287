"""Handoffs: a tool with which an agent passes its conversation on to another agent."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import TypeVar

from ...commander import ToolError, act_as, actor_of, parent_here
from ...commander.errors import ConfigurationError
from ...handlers import View
from ...messages import Message
from ...tools import AnyTool, Tool, ToolResult
from ._as_tool import tool_name
from ._call import AgentCall, run_in_tree
from ._memory import CURRENT_CALLS, Memory, SessionId, TemporarySession, added_by
from ._message import TOOLS, AgentMessage, copy_message
from ._stream import lend_voice

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "HANDED_VIEW",
    "Handoff",
    "check_handoffs",
    "find_handoff",
    "hand_over",
    "handoff",
]

F = TypeVar("F", default=Any)

Transfer: TypeAlias = Callable[[], Coroutine[Any, Any, str]]


class Handoff(Tool[[], Coroutine[Any, Any, str]]):
    """A tool that ends the turn of its agent, and lets `agent` answer instead.

    `handoff(agent)` makes one.
    """

    gives_output = False

    def __init__(self, function: Transfer, agent: Agent[Any], name: str, description: str) -> None:
        super().__init__(
            function, name=name, description=description, effect="nested", ends_turn=True
        )
        self.agent = agent
        self.source: str = f"the agent {agent.name}"


def handoff(agent: Agent[Any], name: str | None = None, description: str | None = None) -> Handoff:
    """Return a tool with which a model hands the conversation over to another agent.

        triage = Agent(backend, tools=[handoff(billing), handoff(support)], name="triage")
        answer = await triage("I want my money back.")
        print(answer.sender)  # billing

    The other agent gets the conversation, without the call of this tool, and its answer is the
    answer of the turn. Its messages, also its tool calls, become a part of the session of the first
    agent, which answers again at the next turn. The answer's `sender` is the agent that answered,
    and its `extra["handoff"]` has the names of all agents on the way.

    The other agent runs below the call of the first one. So limits, timeouts, cancellation, context
    and steering reach it, its usage also counts for the first agent, and streams have its messages.
    It shows them in the view of the first agent if it has none. Its own sessions stay unchanged,
    and its tools keep no state until the next turn.

    The tool is called `name`, by default "transfer_to_" and the agent's name. The model calls it
    alone or beside other tools, whose results the other agent reads. The first of several handoffs
    in a reply counts. After `max_rounds` handoffs in a turn, the present agent has to answer.

    If the other agent fails, the call fails. The answer must have the same output type in both
    agents: otherwise the agent with this tool raises `ConfigurationError` when it is made.
    """
    from ._agent import Agent

    if not isinstance(agent, Agent):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"handoff needs an Agent, not {agent!r:.200}")
    what = description or " ".join(
        filter(None, [f"Hand the conversation over to {agent.name}.", agent.description])
    )

    async def transfer() -> str:
        """Hand the conversation over."""
        if HANDOFFS_LEFT.get() == 0:
            raise ToolError("the conversation was handed over too often. Answer the user yourself")
        return f"Handoff to {agent.name}."

    return Handoff(transfer, agent, name or tool_name(agent, "transfer_to_"), what)


HANDOFFS_LEFT: ContextVar[int | None] = ContextVar("anabranch_agents_handoffs", default=None)
"""The number of handoffs that the turn may still have. None before the first one."""

HANDED_VIEW: ContextVar[tuple[Any, View] | None] = ContextVar(
    "anabranch_agents_handed_view", default=None
)
"""The agent that has taken over a conversation, and the view of the agent before it."""


def check_handoffs(agent: Agent[Any], tools: Iterable[AnyTool]) -> None:
    """Raise `ConfigurationError` for a handoff that the agent cannot make."""
    for tool in tools:
        if not isinstance(tool, Handoff):
            continue
        if not agent.hands_off:
            raise ConfigurationError(
                f"{agent.name} is a {type(agent).__name__}, which cannot hand a conversation over."
                f" Give it {tool.agent.name}.as_tool(), or make a group"
            )
        if _promise(agent) != _promise(tool.agent):
            raise ConfigurationError(
                f"the output of {agent.name} has another type than that of {tool.agent.name}. An"
                " agent hands over only to agents with its own output type"
            )


def _promise(agent: Agent[Any]) -> object:
    """Return all that determines the type of the agent's output."""
    parser = agent.output_format
    reads = parser and (type(parser), parser.instruction(), parser.options())
    return None if agent.has_text_output else agent.output_type, reads


def find_handoff(tools: Iterable[AnyTool], new: Sequence[Message]) -> Handoff | None:
    """Return the first handoff that succeeded among the last results, None if none did.

    Later ones become failures. Their tools cannot know this, because calls run at the same time.
    """
    handoffs = {tool.name: tool.bare for tool in tools if isinstance(tool.bare, Handoff)}
    found: Handoff | None = None
    calls = next(place for place in reversed(range(len(new))) if new[place].tool_calls)
    for result in new[calls + 1 :]:
        made = handoffs.get(result.name or "")
        if not isinstance(result, ToolResult) or result.status != "ok":
            continue
        if isinstance(made, Handoff):
            if found is None:
                found = made
            else:
                result.status = "failed"
                result.content = f"Error: the conversation already went to {found.agent.name}"
    return found


class HandoffCall(AgentCall[F], internal=True):
    """The call of an agent that takes over a conversation."""

    # Named like the engine's attributes, so that they do not enter the call's identity.
    _node_history: Sequence[AgentMessage] = ()
    _node_since: Sequence[AgentMessage] = ()
    _node_view: View | None = None
    _node_left = 0
    _node_before: set[int] = set()  # noqa: RUF012 - the ids of the messages that it was given
    _node_new: Sequence[AgentMessage] = ()  # the messages that it has added, without the answer

    async def task(self) -> AgentMessage[F]:
        """Make the call, and note the messages that it adds."""
        HANDOFFS_LEFT.set(self._node_left)
        HANDED_VIEW.set(None if self._node_view is None else (self.agent, self._node_view))
        self._node_before = set()
        answered = False
        try:
            answer = await super().task()
            answered = True
            return answer
        finally:
            messages = self.agent.memory.messages(self.session_id)
            new = [each for each in messages if id(each) not in self._node_before]
            self._node_new = new[:-1] if answered else new

    def remember(self, received: Sequence[AgentMessage]) -> list[AgentMessage]:
        """Remember the conversation around the messages of this turn."""
        agent, session_id = self.agent, self.session_id
        agent.memory.add(*self._node_history, session_id=session_id)
        remembered = super().remember(received)
        agent.memory.add(*self._node_since, session_id=session_id)
        self._node_before.update(id(each) for each in agent.memory.messages(session_id))
        return remembered

    def publish(self, answer: AgentMessage[F]) -> None:
        """Leave this to the first agent of the turn, which gives the same answer."""


async def hand_over(
    agent: Agent[F], made: Handoff, memory: Memory, session_id: SessionId, view: View | None
) -> AgentMessage[F]:
    """Let another agent answer the conversation of `agent`, and remember what it did."""
    check_handoffs(agent, [made])
    other = made.agent
    history, received, since = _split(agent, other, memory.get(session_id))
    session = TemporarySession()
    call: HandoffCall[F] = HandoffCall(other, received, session, {})
    call.at_done(lambda _: session.end())
    here = parent_here()
    actor = None if here is None else actor_of(here)
    if actor is not None:
        act_as(call, other.name, actor.session_id, answers_for=actor.answers_for or actor.agent)
    call._node_history, call._node_since, call._node_view = history, since, view
    left = HANDOFFS_LEFT.get()
    call._node_left = (agent.max_rounds if left is None else left) - 1
    try:
        with lend_voice():
            answer = await run_in_tree(call)
    finally:
        new = [each for each in call._node_new if (each.type, each.sender) != SUMMARY]
        memory.add(*(_renamed(each, other.name, agent.name) for each in new), session_id=session_id)
    path = answer.extra.get("handoff") or [other.name]
    return answer.model_copy(update={"extra": {**answer.extra, "handoff": [agent.name, *path]}})


SUMMARY = ("summary", "memory")


def _split(
    agent: Agent[Any], other: Agent[Any], messages: Sequence[AgentMessage]
) -> tuple[list[AgentMessage], list[AgentMessage], list[AgentMessage]]:
    """Return the messages before this call, those that it received, and those since then.

    They are as the other agent reads them: messages of the first agent are its own, and the calls
    of handoffs are left out.
    """
    names = {tool.name for tool in agent.tools if isinstance(tool, Handoff)}
    calls = CURRENT_CALLS.get()
    history: list[AgentMessage] = []
    received: list[AgentMessage] = []
    since: list[AgentMessage] = []
    for each in messages:
        is_mine = added_by(each) == calls
        if is_mine and each.sender != agent.name and not since:
            received.append(each)
            continue
        read = _without_calls(_renamed(each, agent.name, other.name), names)
        if read is not None:
            (since if received else history).append(read)
    if since and since[-1].type != TOOLS and since[-1].sender == other.name:
        # A provider accepts no request that ends with a reply.
        note = f"({agent.name} has handed the conversation over to you. Answer the user.)"
        since.append(AgentMessage(content=note, sender=agent.name))
    return history, received, since


def _renamed(message: AgentMessage, sender: str, new: str) -> AgentMessage:
    copy = copy_message(message)
    if copy.sender == sender:
        copy.sender = new
    return copy


def _without_calls(message: AgentMessage, names: set[str]) -> AgentMessage | None:
    """Return a message without the calls of tools; None if nothing is left."""
    if message.type != TOOLS:
        return message
    parts: list[Message] = message.output
    dropped = {call.id for each in parts for call in each.tool_calls if call.name in names}
    if not dropped:
        return message
    reply, *results = parts
    calls = [call for call in reply.tool_calls if call.id not in dropped]
    if calls:
        reply = reply.model_copy(update={"tool_calls": calls})
        results = [each for each in results if each.tool_call_id not in dropped]
        return message.model_copy(update={"output": [reply, *results]})
    if not reply.content:
        return None
    return AgentMessage(
        content=reply.content,
        sender=message.sender,
        reasoning=reply.reasoning,
        provider_items=reply.provider_items,
    )
