"""An agent's own way to an answer: ask its model, run its tools, read the reply, ask again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...backends import Backend
from ...commander.errors import BadResponse
from ...dispatch.assembly import STOPPED
from ...handlers import respond
from ...messages import Conversation, Message
from ._call import run_in_tree
from ._knowledge import citations, search_first
from ._memory import SessionId
from ._message import TOOLS, AgentMessage
from ._stream import AgentView

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["answer"]

logger = logging.getLogger("anabranch.agents")

F = TypeVar("F")

MEND = "That answer cannot be used: {fault}\nAnswer again, correctly."


async def answer(
    agent: Agent[F],
    backend: Backend,
    request: Sequence[Message],
    session_id: SessionId,
    options: Mapping[str, Any],
) -> AgentMessage[F]:
    """Let a model answer a request for an agent; return the answer, which is not yet remembered.

    The tool calls on the way are remembered with their results. If it fails or is cancelled, so is
    what was said by then, as a message whose `stream_state` is "failed".
    """
    conversation = Conversation()
    conversation.add(*request)
    logger.debug("%s is asked: %s", agent.name, conversation.messages)
    view = AgentView(agent.name, agent.view, agent.approve)
    searched = False
    try:
        searched = await search_first(agent, conversation, session_id, view)
        message, formatted = await _ask(agent, backend, conversation, session_id, view, options)
    except BaseException:
        said = conversation.messages[len(request) :]
        _remember_calls(agent, said, session_id)
        if said and said[-1].role == "assistant" and not said[-1].tool_calls:
            partial = AgentMessage(
                content=said[-1].content or "", sender=agent.name, stream_state="failed"
            )
            agent.memory.add(partial, session_id=session_id)
            view.break_off()
        raise
    rounds = _remember_calls(agent, conversation.messages[len(request) :], session_id)
    logger.debug("%s answers: %s", agent.name, message)
    most = agent.max_rounds + searched
    status = "max_rounds" if agent.tools and rounds >= most else "ok"
    if message.finish_reason in STOPPED:
        status = message.finish_reason
    said = message.content or message.refusal or ""
    return AgentMessage(
        content=said,
        sender=agent.name,
        formatted=formatted,
        extra={"status": status, **citations(agent, conversation, said)},
    )


async def _ask(
    agent: Agent[F],
    backend: Backend,
    conversation: Conversation,
    session_id: SessionId,
    view: AgentView,
    options: Mapping[str, Any],
) -> tuple[Message, F]:
    """Ask the model, again after a reply that the parser cannot use; return what it made of it."""
    parser = agent.output_format
    settings = {**(parser.options() if parser else {}), **agent.options, **options}
    retries = parser.retries if parser else 0
    while True:
        # Not a bare await of the node: a cancel reaches this body and those below it in the same
        # turn, in any order, and `conversation` is whole only when those have ended.
        exchange = respond(
            backend,
            conversation,
            agent.hooked_tools(session_id),
            view,
            max_rounds=agent.max_rounds,
            formats=agent.formats,
            **settings,
        )
        message = await run_in_tree(exchange)
        if parser is None:
            return message, cast("F", None)
        parse = parser.parse_cut if message.finish_reason in STOPPED else parser.parse
        try:
            return message, parse(message.content or "")
        except ValueError as error:
            if not retries:
                raise BadResponse(f"{agent.name} gave no usable answer: {error}") from error
            retries -= 1
            view.break_off()
            conversation.add(MEND.format(fault=error))


def _remember_calls(agent: Agent[Any], said: Sequence[Message], session_id: SessionId) -> int:
    """Remember each reply with calls, the results after it, as one message; return how many.

    Answers that could not be used, and what the model was told about them, are forgotten.
    """
    found: list[AgentMessage] = []
    for message in said:
        if message.tool_calls:
            content, parts = message.content or "", [message]
            found.append(
                AgentMessage(content=content, sender=agent.name, formatted=parts, type=TOOLS)
            )
        elif message.role == "tool":
            found[-1].formatted.append(message)
    agent.memory.add(*found, session_id=session_id)
    return len(found)
