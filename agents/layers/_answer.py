"""An agent's own way to an answer: ask its model, run its tools, read the reply, ask again."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...backends import Backend
from ...commander.errors import BadResponse
from ...dispatch.assembly import STOPPED
from ...handlers import respond
from ...messages import Conversation, Message
from ._call import run_in_tree
from ._knowledge import citations, search_first
from ._memory import Memory, SessionId
from ._message import TOOLS, AgentMessage
from ._steer import STEERING, Hearing
from ._stream import AgentView

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["answer", "why_final"]

logger = logging.getLogger("anabranch.agents")

F = TypeVar("F")

MEND = "That answer cannot be used: {fault}\nAnswer again, correctly."


async def answer(
    agent: Agent[F],
    backend: Backend,
    request: Sequence[Message],
    session_id: SessionId,
    options: Mapping[str, Any],
    memory: Memory | None = None,
) -> AgentMessage[F]:
    """Let a model answer a request for an agent; return the answer, which is not yet remembered.

    The tool calls on the way are remembered with their results, in `memory`, by default the
    agent's. If it fails or is cancelled, so is what was said by then, as a message whose
    `stream_state` is "failed". So is what the model has heard on the way, unless nothing has come
    of all its requests: then that waits again.
    """
    conversation, memory = Conversation(), memory or agent.memory
    conversation.add(*request)
    logger.debug("%s is asked: %s", agent.name, conversation.messages)
    hearing, searched = Hearing(agent, backend), False
    offer = partial(agent.hooked_tools, session_id)
    view = AgentView(agent.name, agent.view, agent.approve, hearing.hear, offer)
    token = STEERING.set(None)  # what tools do below is steered by nobody
    try:
        searched = await search_first(agent, conversation, session_id, view)
        message, formatted = await _ask(agent, backend, conversation, session_id, view, options)
    except BaseException:
        said = conversation.messages[len(request) :]
        broken = bool(said) and said[-1].role == "assistant" and not said[-1].tool_calls
        if broken or any(each.tool_calls for each in said):
            _remember_calls(agent, memory, said, session_id, hearing)
        else:
            hearing.give_back()
        if broken:
            broken_off = AgentMessage(
                content=said[-1].content or "", sender=agent.name, stream_state="failed"
            )
            memory.add(broken_off, session_id=session_id)
            view.break_off()
        raise
    finally:
        STEERING.reset(token)
    said = conversation.messages[len(request) :]
    rounds = _remember_calls(agent, memory, said, session_id, hearing)
    logger.debug("%s answers: %s", agent.name, message)
    most = agent.max_rounds + searched
    status = "max_rounds" if agent.tools and rounds >= most else "ok"
    if message.finish_reason in STOPPED:
        status = message.finish_reason
    text = message.content or message.refusal or ""
    refused = {"refusal": message.refusal} if message.refusal else {}
    return AgentMessage(
        content=text,
        sender=agent.name,
        formatted=formatted,
        extra={"status": status, **refused, **citations(agent, conversation, text)},
        reasoning=message.reasoning,
        provider_items=message.provider_items,
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
            final = why_final(message)
            if final or not retries:
                fault = final or str(error)
                if message.finish_reason == "length":
                    fault += " (raise max_tokens)"
                raise BadResponse(f"{agent.name} gave no usable answer: {fault}") from error
            retries -= 1
            view.break_off()
            conversation.add(MEND.format(fault=error))


def why_final(message: Message) -> str:
    """Return why asking again would change nothing about a reply, "" if it may."""
    if message.refusal:
        return f"the model refused: {message.refusal}"
    if message.finish_reason == "content_filter":
        return "a content filter stopped the reply"
    return ""


def _remember_calls(
    agent: Agent[Any],
    memory: Memory,
    said: Sequence[Message],
    session_id: SessionId,
    hearing: Hearing,
) -> int:
    """Remember each reply with calls, the results after it, as one message; return how many.

    What the model has heard on the way stands in its place between them. Answers that could not be
    used, and what the model was told about them, are forgotten.
    """
    found: list[AgentMessage] = []
    rounds = 0
    for message in said:
        if message.tool_calls:
            content, parts, rounds = message.content or "", [message], rounds + 1
            found.append(
                AgentMessage(content=content, sender=agent.name, formatted=parts, type=TOOLS)
            )
        elif message.role == "tool":
            found[-1].formatted.append(message)
        elif told := hearing.told_in(message):
            found += told
    memory.add(*found, session_id=session_id)
    return rounds
