"""Messages that an application stores: `history=` of a call, and `new_messages()` of its answer.

An answer refers to the messages that its call has added to the memory. They become `Message`s when
they are asked for. `read_history` makes of these the same messages of the memory again.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from pydantic import ValidationError

from ...commander.errors import ConfigurationError
from ...dispatch.assembly import STOPPED
from ...messages import Message
from ...messages.text import quote
from ...tools import ToolResult
from ._aggregators import read_system
from ._message import TOOLS, AgentMessage

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["History", "as_messages", "read_history"]

History: TypeAlias = Sequence[AgentMessage[Any] | Message | Mapping[str, Any]]
"""Messages before a question: messages, dumps of `Message`s, or dictionaries of the wire."""

# Names in the code of a `forward` that reads the memory.
READS_MEMORY = frozenset({"aggregate", "forward", "memory", "recall", "super"})

READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError)


def read_history(agent: Agent[Any], history: History) -> list[AgentMessage]:
    """Return a history as the memory of `agent` would have it.

    Raises `ConfigurationError` for anything that is not a conversation of this agent.
    """
    owner = agent.conversant
    if owner is None or not _reads_own_memory(agent):
        what = "asks no model with its own memory"
        if owner is not None:
            what = "has a forward() that does not read its memory"
        raise ConfigurationError(
            f"{agent.name} {what}, so it takes no history=. Give its agents a session with"
            " session_id="
        )
    agent = owner
    given: Any = history  # users pass other types, too
    if isinstance(given, Message | AgentMessage):
        raise ConfigurationError("history must be a list of messages, not one: history=[message]")
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"history must be a list of messages, not {quote(history)}. Give the question as text"
        )
    found: list[AgentMessage] = []
    open_calls: list[str] = []  # the calls of the last message that have no result yet
    for place, each in enumerate(history):
        message = _read(each, place)
        role = message.role if isinstance(message, Message) else None
        if open_calls and role != "tool":
            break
        if isinstance(message, AgentMessage):
            found.append(message)
        elif message.role in ("system", "developer"):
            _check_system(agent, message, place)
        elif message.role == "tool":
            if message.tool_call_id not in open_calls:
                raise ConfigurationError(
                    f"history[{place}] is the result of a call that is not in the message before it"
                )
            open_calls.remove(message.tool_call_id)
            result = message
            if not isinstance(message, ToolResult):
                result = ToolResult.model_validate(message.model_dump())
            found[-1].output.append(result)
        else:
            open_calls = [call.id for call in message.tool_calls]
            found.append(_as_remembered(message, agent.name))
    if open_calls:
        raise ConfigurationError(
            f"history must have the results of the calls {open_calls} directly after them"
        )
    return found


def _reads_own_memory(agent: Agent[Any]) -> bool:
    """Return whether the model of a call reads the memory of `agent.conversant`.

    So it is unless a subclass has its own `forward`, without a `conversant` that fits, which
    neither calls the one of its base class nor reads the memory.
    """
    line = type(agent).__mro__
    kind = next(each for each in line if "forward" in vars(each))
    if any("conversant" in vars(each) for each in line[: line.index(kind) + 1]):
        return True
    forward = inspect.unwrap(vars(kind)["forward"])
    return bool(READS_MEMORY & _names_in(getattr(forward, "__code__", None)))


def _names_in(code: CodeType | None) -> set[str]:
    """Return the names in a function's code, and in the functions inside of it."""
    if code is None:
        return {*READS_MEMORY}  # it cannot be read, so it may do so
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return set(code.co_names).union(*map(_names_in, inner))


def _read(message: object, place: int) -> Message | AgentMessage:
    if isinstance(message, Message | AgentMessage):
        return cast("Message | AgentMessage", message)
    if not isinstance(message, Mapping):
        raise ConfigurationError(
            f"history[{place}] must be a Message, an AgentMessage or a dictionary with a role, not"
            f" {quote(message)}"
        )
    fields = cast("Mapping[str, Any]", message)
    if "tool_call_id" in fields:
        fields = {"role": "tool", **fields}  # a dump without defaults has no role
    try:
        if not _is_dump(fields):
            return Message.from_wire(fields)
        kind = ToolResult if fields.get("role") == "tool" else Message
        return kind.model_validate(fields)
    except READ_ERRORS as error:
        shown = f"{error.error_count()} errors" if isinstance(error, ValidationError) else error
        raise ConfigurationError(
            f"history[{place}] is no message with a role and a content: {quote(fields)} ({shown})"
        ) from error


def _is_dump(fields: Mapping[str, Any]) -> bool:
    """Return whether pydantic has written a message, with names that the wire does not have."""
    calls = fields.get("tool_calls")
    is_flat = isinstance(calls, list) and any(
        isinstance(call, Mapping) and "function" not in call for call in cast("list[Any]", calls)
    )
    usage = fields.get("usage")
    return "parts" in fields or is_flat or (isinstance(usage, Mapping) and "input_tokens" in usage)


def _check_system(agent: Agent[Any], message: Message, place: int) -> None:
    """Raise `ConfigurationError` unless a system message is the agent's, which it sends anyway."""
    instructions = agent.instructions
    if callable(instructions):
        return  # the function writes those of the present call
    opening = agent.aggregator.opening(agent.output_format, instructions)
    own = [*read_system(instructions), *opening]
    if any(each.content == message.content for each in own if each.role != "user"):
        return
    raise ConfigurationError(
        f"history[{place}] is a system message that differs from the one of {agent.name}, which"
        " sends its own. Leave it out, or give it to the agent as instructions="
    )


def _as_remembered(message: Message, name: str) -> AgentMessage:
    """Return a message of the user or of an agent as a memory has it."""
    text, sender = message.content or message.refusal or "", message.name
    if message.role == "user":
        sender = "user" if sender in (None, name) else sender
        return AgentMessage(content=text, parts=message.parts, sender=sender)
    if message.tool_calls:
        text = message.content or ""
        return AgentMessage(content=text, sender=name, output=[message], type=TOOLS)
    reason = message.finish_reason
    extra = {"status": reason} if reason in STOPPED else {}
    return AgentMessage(
        content=text,
        parts=message.parts,
        sender=sender or name,
        extra=extra | ({"refusal": message.refusal} if message.refusal else {}),
        reasoning=message.reasoning,
        provider_items=message.provider_items,
    )


def as_messages(
    remembered: Iterable[AgentMessage], name: str, answer: AgentMessage | None
) -> list[Message]:
    """Return messages of the memory of the agent `name` as `read_history` reads them.

    All are plain `Message`s, also results of tools, so that they are equal after they were stored.
    """
    messages: list[Message] = []
    for each in remembered:
        is_own = each.sender == name
        if is_own and each.type == TOOLS:
            messages += _as_plain(each.output)
        elif is_own or each is answer:
            status, refusal = each.extra.get("status"), each.extra.get("refusal")
            messages.append(
                Message(
                    role="assistant",
                    content=None if each.text == refusal else each.text,
                    parts=[*each.parts],
                    name=None if is_own else each.sender,
                    reasoning=each.reasoning,
                    refusal=refusal,
                    finish_reason=status if status in STOPPED else None,
                    provider_items=[*each.provider_items],
                )
            )
        else:
            sender = None if each.sender == "user" else each.sender
            messages.append(
                Message(role="user", content=each.text, parts=[*each.parts], name=sender)
            )
    return messages


def _as_plain(exchange: Sequence[Message]) -> list[Message]:
    """Return a reply with tool calls and the results, one for each call."""
    fields = [{name: getattr(each, name) for name in Message.model_fields} for each in exchange]
    plain = [Message(**each).model_copy(deep=True) for each in fields]
    answered = {each.tool_call_id for each in plain}
    for call in (call for each in exchange for call in each.tool_calls):
        if call.id not in answered:  # the call of the agent ended before
            text = "Error: the call was interrupted"
            plain.append(Message(role="tool", content=text, tool_call_id=call.id, name=call.name))
    return plain
