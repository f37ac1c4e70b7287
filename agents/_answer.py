"""An agent's own way to an answer: ask its model, run its tools, read the reply, ask again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..backends import Backend
from ..commander import BadResponse
from ..handlers import respond
from ..messages import Conversation, Message
from ..tools import AnyTool
from ._memory import TOOLS, SessionId
from ._message import AgentMessage
from ._parser import Parser
from ._stream import AgentView

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["answer"]

logger = logging.getLogger("anabranch.agents")

F = TypeVar("F")

MEND = "That answer cannot be used: {fault}\nAnswer again, correctly."


async def answer(
    agent: Agent[F], backend: Backend, session_id: SessionId, options: Mapping[str, Any]
) -> AgentMessage[F]:
    """Let an agent's model answer its session; return the answer, which is not yet remembered.

    The tool calls on the way are remembered with their results. If it fails or is cancelled, so is
    what was said by then, as a message whose `stream_state` is "failed".
    """
    await agent.memory.prepare(session_id)
    conversation = Conversation()
    conversation.messages = agent.aggregate(session_id)
    asked = len(conversation)
    logger.debug("%s is asked: %s", agent.name, conversation.messages)
    view = AgentView(agent.name, agent.view)
    try:
        message, formatted = await _ask(agent, backend, conversation, view, options)
    except BaseException:
        _remember(agent, session_id, conversation.messages[asked:], broken=True)
        view.broke_off()
        raise
    calls = _remember(agent, session_id, conversation.messages[asked:])
    logger.debug("%s answers: %s", agent.name, message)
    return AgentMessage(
        content=message.content or message.refusal or "",
        sender=agent.name,
        formatted=formatted,
        extra={"status": _status(message, limited=bool(agent.tools) and calls >= agent.max_turns)},
    )


async def _ask(
    agent: Agent[F],
    backend: Backend,
    conversation: Conversation,
    view: AgentView,
    options: Mapping[str, Any],
) -> tuple[Message, F]:
    parser = agent.output_format
    wanted = {**(parser.options() if parser else {}), **agent.options, **options}
    tools: Sequence[AnyTool] = agent.hooked_tools()
    for left in reversed(range((parser.retries if parser else 0) + 1)):
        message = await respond(
            backend, conversation, tools, view, max_rounds=agent.max_turns, **wanted
        )
        if parser is None:
            return message, cast("F", None)
        try:
            return message, _parsed(parser, message)
        except ValueError as error:
            if not left:
                raise BadResponse(f"{agent.name} gave no usable answer: {error}") from error
            view.broke_off()
            conversation.add(MEND.format(fault=error))
    raise AssertionError("unreachable")


def _parsed(parser: Parser[F], message: Message) -> F:
    text = message.content or ""
    if message.finish_reason == "length":
        return parser.parse_cut(text)
    return parser.parse(parser.whole(text))


def _remember(
    agent: Agent[Any], session_id: SessionId, said: Sequence[Message], *, broken: bool = False
) -> int:
    """Remember the calls in what was said, and, if it broke off, its end; return how many calls.

    Answers that could not be used, and what the model was told about them, are forgotten.
    """
    calls = list(_exchanges(agent.name, said))
    agent.memory.add(*calls, session_id=session_id)
    if broken and said and said[-1].role == "assistant" and not said[-1].tool_calls:
        partial = AgentMessage(
            content=said[-1].content or "", sender=agent.name, stream_state="failed"
        )
        agent.memory.add(partial, session_id=session_id)
    return len(calls)


def _exchanges(name: str, said: Sequence[Message]) -> list[AgentMessage]:
    """Return each reply with calls, and the results that follow it, as one message."""
    found: list[AgentMessage] = []
    for message in said:
        if message.tool_calls:
            found.append(
                AgentMessage(
                    content=message.content or "", sender=name, formatted=[message], type=TOOLS
                )
            )
        elif message.role == "tool":
            found[-1].formatted.append(message)
    return found


def _status(message: Message, *, limited: bool) -> str:
    if message.finish_reason == "length":
        return "length"
    return "max_turns" if limited else "ok"
