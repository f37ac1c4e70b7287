"""`AgentMessage`: the message that agents and tool executors exchange."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeAlias, cast

from pydantic import BaseModel, Field, model_validator
from typing_extensions import TypeVar

from ...commander.errors import ConfigurationError
from ...commander.other_names import OTHER_FIELDS
from ...messages import Message, Part, ProviderItem, Usage
from ...messages.options import nearest
from ...messages.text import quote
from ...tools import ToolResult, result_text

__all__ = [
    "NEW_MESSAGES",
    "STORED_OUTPUT",
    "TOOLS",
    "AgentMessage",
    "StoredOutput",
    "StreamState",
    "copy_message",
    "first_in_handoff",
    "has_run",
    "own_output",
    "read_inputs",
    "reply_message",
    "with_text_output",
]

F = TypeVar("F", default=Any)

StreamState: TypeAlias = Literal["begin", "streaming", "end", "failed"]

TOOLS = "tools"
"""The `type` of a message with one reply that calls tools, and the results.

Its `output` is the list of `Message`s that a model reads. So no limit and no filter can separate
a call from its result.
"""


# An attribute of an answer, a function. It is not a field, so it is neither saved nor compared.
NEW_MESSAGES = "_new_messages"


STORED_OUTPUT = "_stored_output"
"""An attribute of a message, its `StoredOutput`. It is not a field, as `NEW_MESSAGES`."""


class StoredOutput(NamedTuple):
    """The stored form of an output whose JSON alone does not restore it.

    `json` is the output as JSON, to notice a later change. `stored` is stored instead. With
    `from_text` the text restores the output, and `stored` does not.
    """

    json: Any
    stored: Any
    from_text: bool


class AgentMessage(BaseModel, Generic[F]):
    """A message of an agent to another, to a tool executor or to a person.

        message = AgentMessage(content="Hello", sender="alice", receiver="bob")

    `content` is mostly text, `parts` are images and files beside it. `output` is the value that
    an agent or an executor made of it, or None. In the answer of an agent without a type of output
    it is the text. `sender` and `receiver` are names. `type` and
    `extra` are the application's. `stream_state` is "begin" or "streaming" for a message that still
    grows, "end" for a complete one, "failed" for one that broke off. In an agent's answer, `usage`
    is that of the whole call, which no memory stores, `reasoning` is the model's reasoning before
    the answer, and `provider_items` are data that the model's provider expects back with it.
    """

    content: Any = None
    parts: list[Part] = Field(default_factory=list[Part])
    sender: str = "user"
    output: F = cast("Any", None)
    extra: dict[str, Any] = Field(default_factory=dict[str, Any])
    type: str | None = None
    receiver: str | None = None
    stream_state: StreamState = "end"
    usage: Usage = Usage()
    reasoning: str | None = None
    provider_items: list[ProviderItem] = Field(default_factory=list[ProviderItem])

    if not TYPE_CHECKING:  # a type checker reads the fields

        def __init__(self, **fields: Any) -> None:
            """Make a message; raise `ConfigurationError` for an unknown field.

            Reading stored data skips this: it may have fields of other versions.
            """
            if not fields.keys() <= MESSAGE_FIELDS:
                _check_fields(type(self), fields)
            super().__init__(**fields)

        # pydantic calls the `__init__` of a class without this when it reads data.
        __init__.__pydantic_base_init__ = True

    @property
    def text(self) -> str:
        """The text that a person or a model reads, with tool calls and their results."""
        if self.type != TOOLS:
            return result_text(self.content)
        lines: list[str] = []
        for part in cast("list[Message]", self.output):
            if part.role == "tool":
                lines.append(f"[{part.name} gave: {part.content}]")
            elif part.content:
                lines.append(part.content)
            lines += [f"[calls {call.name}({call.text})]" for call in part.tool_calls]
        return "\n".join(lines)

    @model_validator(mode="before")
    @classmethod
    def _accept_stored_names(cls, value: Any) -> Any:
        return (
            _rename_stored(cast("Mapping[Any, Any]", value))
            if isinstance(value, Mapping)
            else value
        )

    def __stored_fields__(self) -> dict[str, Any]:
        """Return the fields for the identity of a stored run, as earlier releases name them."""
        fields = {**dict(self), "formatted": own_output(self)}
        del fields["output"]
        return fields

    def __eq__(self, other: object) -> bool:
        return super(AgentMessage, _own(self)).__eq__(_own(other))

    def new_messages(self) -> list[Message]:
        """Return the messages of this call, to store them in a database of your own.

            stored += [each.model_dump(mode="json") for each in answer.new_messages()]
            answer = await agent("And why?", history=stored)

        These are the messages that the agent's memory got: the question, replies with tool calls,
        their results, steering messages and the answer. Raises `RuntimeError` for a message that is
        no answer, and for one that was pickled, copied or read from a journal.
        """
        make: Callable[[], list[Message]] | None = vars(self).get(NEW_MESSAGES)
        if make is None:
            raise RuntimeError(
                "this message has no new messages. Only the answer that a call of an agent returned"
                " has them, in the process of the call"
            )
        return make()

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic makes `AgentMessage[City]` at run time. Another process cannot import that class,
        # so the pickle names the generic class.
        kind = type(self).__pydantic_generic_metadata__["origin"] or type(self)
        state = self.__getstate__()
        state["__dict__"] = dict(self)  # the fields, without caches and the like
        return _restore, (kind, state)


MESSAGE_FIELDS = {"formatted", *AgentMessage.model_fields}


def _check_fields(kind: type[AgentMessage], fields: Mapping[str, Any]) -> None:
    if kind.model_config.get("extra") == "allow":
        return
    aliases = (each.alias for each in kind.model_fields.values())
    known = {"formatted", *kind.model_fields, *filter(None, aliases)}
    for name in fields.keys() - known:
        guess = OTHER_FIELDS.get(name) or nearest(name, sorted(kind.model_fields))
        advice = "" if guess is None else f" (did you mean {guess!r}?)"
        raise ConfigurationError(
            f"an {kind.__name__} has no field {name!r}{advice}. Put your own values into extra="
        )


def reply_message(reply: Message, sender: str, **extra: Any) -> AgentMessage:
    """Return a model's reply as a message of the agent `sender`.

    A reply with tool calls becomes a `TOOLS` message, to which the results are added.
    """
    if reply.tool_calls:
        content = reply.content or ""
        return AgentMessage(content=content, sender=sender, output=[reply], type=TOOLS)
    return AgentMessage(
        content=reply.content or reply.refusal or "",
        sender=sender,
        extra=extra | ({"refusal": reply.refusal} if reply.refusal else {}),
        reasoning=reply.reasoning,
        provider_items=reply.provider_items,
    )


def with_text_output(message: AgentMessage) -> AgentMessage:
    """Set the `output` of a message without one to its text. Nothing stores the text again."""
    if "output" not in message.model_fields_set and message.type != TOOLS:
        vars(message)["output"] = message.text  # an assignment would add it to the fields set
    return message


def _own(value: Any) -> Any:
    """Return a message without the output of `with_text_output`, and any other value itself."""
    message: Any = value
    if isinstance(value, AgentMessage) and "output" not in value.model_fields_set:
        return message.model_copy(update={"output": None})
    return message


def own_output(message: AgentMessage) -> Any:
    """Return the `output` to store, which is None for one of `with_text_output`."""
    return message.output if "output" in message.model_fields_set else None


def first_in_handoff(message: AgentMessage) -> str | None:
    """Return the agent that handed its conversation to the sender of an answer, None if none."""
    path = message.extra.get("handoff")
    return cast("list[Any]", path)[0] if isinstance(path, list) and path else None


def has_run(message: AgentMessage) -> bool:
    """Return whether a message has tool calls that have run, or results of calls."""
    if message.type == TOOLS:
        return True
    results = message.output
    return isinstance(results, list) and any(
        isinstance(each, ToolResult) for each in cast("list[Any]", results)
    )


def _rename_stored(fields: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return fields by their names, given by their stored names."""
    if "formatted" not in fields:
        return fields
    return {("output" if name == "formatted" else name): each for name, each in fields.items()}


def _restore(kind: type[AgentMessage], state: dict[Any, Any]) -> AgentMessage:
    message = kind.__new__(kind)
    state["__dict__"] = _rename_stored(state["__dict__"])  # from an earlier release
    if "formatted" in (given := state["__pydantic_fields_set__"]):
        state["__pydantic_fields_set__"] = {*given, "output"} - {"formatted"}
    message.__setstate__(state)
    return message


def copy_message(message: AgentMessage | Message | Part | str) -> AgentMessage:
    """Return a copy of a message, or a user's message made of a string, a part or a `Message`.

    Raises `TypeError` for another type, and for a `Message` that is not the user's.
    """
    if isinstance(message, str):
        return AgentMessage(content=message)
    if isinstance(message, Part):
        return AgentMessage(content="", parts=[message])
    if isinstance(message, Message) and message.role == "user":
        text, sender = message.content or "", message.name or "user"
        return AgentMessage(content=text, parts=message.parts, sender=sender)
    if not isinstance(message, AgentMessage):  # pyright: ignore[reportUnnecessaryIsInstance]
        kinds = "a string, a Part, an AgentMessage or a Message of the user"
        raise TypeError(f"a message to an agent must be {kinds}, not {quote(message)}")
    copy = message.model_copy(
        update={
            "extra": dict(message.extra),
            "parts": list(message.parts),
            "provider_items": list(message.provider_items),
            "usage": Usage(),
        }
    )
    vars(copy).pop(NEW_MESSAGES, None)  # or the memory of one agent would hold another's
    return copy


def read_inputs(
    messages: Iterable[AgentMessage | Message | Part | str], name: str
) -> list[AgentMessage]:
    """Return the messages of a call as the agent called `name` remembers them.

    A `Message` of the assistant is an earlier reply of the agent. If it has tool calls, it becomes
    one message with the results, which have to follow. Raises `TypeError` for another type or role
    and if the last message is the assistant's, `ValueError` for calls and results that do not
    match.
    """
    result: list[AgentMessage] = []
    open_calls: list[str] = []  # the calls of the last message that have no result yet
    message = None
    for message in messages:
        role = message.role if isinstance(message, Message) else None
        if open_calls and role != "tool":
            break
        if not isinstance(message, Message) or role == "user":
            given = copy_message(message)
            if role == "user" and given.sender == name:
                given.sender = "user"
            result.append(given)
        elif role == "assistant":
            reply = AgentMessage(
                content=message.content or message.refusal or "",
                parts=message.parts,
                sender=name,
                receiver="user",
            )
            if message.tool_calls:
                open_calls = [call.id for call in message.tool_calls]
                reply = reply.model_copy(update={"output": [message], "type": TOOLS, "parts": []})
            result.append(reply)
        elif role == "tool":
            if message.tool_call_id not in open_calls:
                raise ValueError(f"a result must follow its call: {quote(message)}")
            open_calls.remove(message.tool_call_id)
            result[-1].output.append(ToolResult.model_validate(message.model_dump()))
        else:
            raise TypeError(
                f"a system prompt must be the agent's, Agent(instructions=...): {quote(message)}"
            )
    if open_calls:
        raise ValueError(f"the results of the calls {open_calls} must follow them")
    if isinstance(message, Message) and message.role == "assistant":
        raise TypeError(
            "the last message must be a user's, and not an earlier reply of the agent:"
            f" {quote(message)}"
        )
    return result
