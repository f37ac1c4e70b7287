"""An agent's answer: search the documents, ask the model, run tools, parse the reply."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from ...backends import Backend
from ...backends.typed_output import correction
from ...commander.errors import BadResponse, OutputInvalid
from ...commander.kinds import passes_with
from ...dispatch.assembly import STOPPED
from ...handlers import look_up, respond
from ...messages import Conversation, Message, OutputMessage
from ...tools import AnyTool, ToolResult
from ...tools.toolkits import flatten
from ._call import run_in_tree
from ._guards import wait_for_gate
from ._handoff import HANDED_VIEW, find_handoff, hand_over
from ._memory import Memory, SessionId
from ._message import AgentMessage, reply_message
from ._output import NO_OUTPUT, without_answer_calls
from ._parsers import parse_reply
from ._steer import STEERING, Deliveries
from ._stream import APPROVE, AgentView, make_view

if TYPE_CHECKING:
    from ._agent import Agent


__all__ = ["Knowledge", "answer", "why_final"]


logger = logging.getLogger("anabranch.agents")

F = TypeVar("F")


@passes_with("as_tool", "an Index")
class Knowledge(Protocol):
    """Documents that can be searched and cited, as `anabranch.knowledge.Index`."""

    def as_tool(self, *, k: int = 5) -> AnyTool:
        """Return the tool that searches for `k` passages; it takes a `query`."""
        ...

    def cited(self, answer: str, found: Iterable[str]) -> list[dict[str, Any]]:
        """Return the passages of the tool's results that an answer cites, as JSON values."""
        ...


async def answer(
    agent: Agent[F],
    backend: Backend,
    request: Sequence[Message],
    session_id: SessionId,
    options: Mapping[str, Any],
    memory: Memory | None = None,
) -> AgentMessage[F]:
    """Return the model's answer to a request of an agent, without remembering it.

    Tool calls and their results are added to `memory`, by default the agent's. After a failure or a
    cancel, so are the text of the broken reply, as a message in state "failed", and the steering
    messages that requests have delivered. If the requests had no effect at all, these messages wait
    for another request instead.
    """
    conversation, memory = Conversation(), memory or agent.memory
    conversation.add(*request)
    logger.debug("%s is asked: %s", agent.name, conversation.messages)
    deliveries, has_searched = Deliveries(agent, backend), False
    offer = partial(agent.hooked_tools, session_id)
    shown, approve = agent.view, agent.approve
    handed = HANDED_VIEW.get()
    if shown is None and handed is not None and handed[0] is agent:
        shown, approve = handed[1], approve or APPROVE.get()
    view = make_view(agent, shown, approve, deliveries.deliver, offer)
    token = STEERING.set(None)  # messages to this call do not steer what its tools do
    try:
        if agent.knowledge_tool is not None:
            await wait_for_gate()  # the search is a call of a tool
            tool = agent.hooked(agent.knowledge_tool, session_id)
            has_searched = await run_in_tree(look_up(conversation, tool, view))
        message, *output = await _ask(agent, backend, conversation, session_id, view, options)
    except BaseException as error:
        new = conversation.messages[len(request) :]
        is_broken = bool(new) and new[-1].role == "assistant" and not new[-1].tool_calls
        # An answer that does not fit is no example for the next request, and nor is an empty one.
        broken = reply_message(new[-1], agent.name) if is_broken else None
        is_remembered = broken is not None and bool(broken.content)
        is_remembered = is_remembered and not isinstance(error, OutputInvalid)
        if agent.typed_output() is not None:
            new = without_answer_calls(new, flatten(agent.tools))
        if is_remembered or any(each.tool_calls for each in new):
            _remember_calls(agent, memory, new, session_id, deliveries)
        else:
            deliveries.take_back()
        if broken is not None:
            if is_remembered:
                broken.stream_state = "failed"
                memory.add(broken, session_id=session_id)
            view.break_off()
        raise
    finally:
        STEERING.reset(token)
    new = conversation.messages[len(request) :]
    rounds = _remember_calls(agent, memory, new, session_id, deliveries)
    if message.tool_calls and (made := find_handoff(flatten(agent.tools), new)) is not None:
        return await hand_over(agent, made, memory, session_id, shown)
    logger.debug("%s answers: %s", agent.name, message)
    status = "max_rounds" if agent.tools and rounds >= agent.max_rounds + has_searched else "ok"
    if message.finish_reason in STOPPED:
        status = message.finish_reason
    answered = reply_message(message, agent.name, status=status)
    if output and not (agent.has_text_output and output[0] == answered.content):
        answered.output = output[0]
        if (typed := agent.typed_output()) is not None:
            typed.choose_stored(answered)
    if agent.knowledge is not None and agent.knowledge_tool is not None:
        name, passages = agent.knowledge_tool.name, conversation.messages
        found = [m.content or "" for m in passages if m.role == "tool" and m.name == name]
        answered.extra["citations"] = agent.knowledge.cited(answered.content, found)
    return answered


async def _ask(
    agent: Agent[F],
    backend: Backend,
    conversation: Conversation,
    session_id: SessionId,
    view: AgentView,
    options: Mapping[str, Any],
) -> tuple[Message] | tuple[Message, F]:
    """Ask the model, again after a reply that cannot be used; return the reply and its value."""
    parser, typed = agent.output_format, agent.typed_output()
    settings = {**(parser.options() if parser else {}), **agent.options, **options}
    retries = parser.retries if parser else 0
    while True:
        # Not a bare await of the node: a cancel reaches this body and those below it in the same
        # loop iteration, in any order. `conversation` is complete only when those have ended.
        # Its own backend, because the node's identity in durable runs includes that. `respond` asks
        # the one that replaces it.
        exchange = respond(
            agent.backend or backend,
            conversation,
            agent.hooked_tools(session_id),
            view,
            max_rounds=agent.max_rounds,
            formats=agent.formats,
            **({} if typed is None else typed.arguments()),
            **settings,
        )
        try:
            message = await run_in_tree(exchange)
        except NO_OUTPUT as error:
            text = f"{agent.name} gave no output: {error}"
            raise type(error)(text, message=error.message) from error
        tools = agent.hooked_tools(session_id)
        if message.tool_calls and find_handoff(tools, conversation.messages) is not None:
            return (message,)
        if isinstance(message, OutputMessage):
            found = cast("OutputMessage[F]", message)
            if not found.tool_calls:
                return found, found.output
            given = Message(role="assistant", content=found.output_text, reasoning=found.reasoning)
            return given, found.output
        if message.tool_calls:
            message = _result_of_turn(conversation, tools)
        if parser is None:
            return (message,)
        try:
            return message, parse_reply(parser, message.content or "", message.finish_reason)
        except ValueError as error:
            final = why_final(message)
            if final or not retries:
                fault = final or str(error)
                if message.finish_reason == "length":
                    fault += " (raise max_tokens)"
                raise BadResponse(f"{agent.name} gave no usable answer: {fault}") from error
            retries -= 1
            view.break_off()
            conversation.add(correction(str(error)))


def _result_of_turn(conversation: Conversation, tools: Iterable[AnyTool]) -> Message:
    """Return the answer of a turn that a tool has ended: the results of such calls."""
    ending = {tool.name for tool in tools if tool.ends_turn}
    results: list[str] = []
    for message in reversed(conversation.messages):
        if not isinstance(message, ToolResult):
            break
        if message.status == "ok" and message.name in ending:
            results.insert(0, message.content or "")
    return Message(role="assistant", content="\n".join(results))


def why_final(message: Message) -> str:
    """Return the reason why another request would not help, "" if it may help."""
    if message.refusal:
        return f"the model refused: {message.refusal}"
    if message.finish_reason == "content_filter":
        return "a content filter stopped the reply"
    return ""


def _remember_calls(
    agent: Agent[Any],
    memory: Memory,
    new: Sequence[Message],
    session_id: SessionId,
    deliveries: Deliveries,
) -> int:
    """Remember each reply with tool calls and their results as one message; return their number.

    Steering messages keep their place between them. Unusable answers, and the messages to the model
    about them, are left out.
    """
    found: list[AgentMessage] = []
    rounds = 0
    if agent.typed_output() is not None:
        new = without_answer_calls(new, flatten(agent.tools))
    for message in new:
        if message.tool_calls:
            rounds += 1
            found.append(reply_message(message, agent.name))
        elif message.role == "tool":
            found[-1].output.append(message)
        elif delivered := deliveries.messages_in(message):
            found += delivered
    memory.add(*found, session_id=session_id)
    return rounds
