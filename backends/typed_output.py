"""Ask a model for typed output, and read it: one policy for `Backend.complete` and `respond`.

Public for the package `handlers`, whose `respond` runs this policy with tools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

from ..commander.errors import (
    BadResponse,
    ConfigurationError,
    ContentFiltered,
    OutputInvalid,
    Refused,
    ReplyTruncated,
)
from ..dispatch.assembly import STOPPED
from ..messages import Message, OutputMessage, OutputMode, OutputSchema, Request, ToolCall
from ..messages.output import INSTRUCTION, GrowingOutput, GrowingText
from ..messages.text import quote

if TYPE_CHECKING:
    from ._backend import Backend

__all__ = [
    "FILTERED",
    "FINAL_ANSWER",
    "OutputTool",
    "TypedOutput",
    "check_retries",
    "correction",
    "mode_of",
    "with_output",
]

T = TypeVar("T")

FINAL_ANSWER = "final_answer"
FILTERED = "a content filter stopped the reply"
MAX_QUOTED_CHARS = 300


def correction(fault: str) -> str:
    """Return the message to the model after an answer that does not fit."""
    return f"That answer cannot be used: {fault}\nAnswer again, correctly."


@dataclass(frozen=True, slots=True)
class OutputTool:
    """The schema of the tool whose call is the answer."""

    name: str
    parameters: Mapping[str, Any]
    description: str = "Give the final answer. Call this when you have it, and only once."


class TypedOutput(Generic[T]):
    """One way to ask a model for a type, and to read its reply.

    `schema` may be shared by any number of these. `tools` are the names of the request's other
    tools. `modes` are the possible modes, the best first. Raises `ConfigurationError` for another
    `mode`, with the possible ones.
    """

    def __init__(
        self,
        schema: OutputSchema[T],
        backend: Backend,
        mode: OutputMode | None = None,
        tools: Sequence[str] = (),
        *,
        writes_calls: bool = False,
    ) -> None:
        self.schema = schema
        self.mode: OutputMode = _choose(backend, mode, bool(tools), writes_calls=writes_calls)
        # Any text is a `str`: the model needs no instruction, and the reply is the value.
        self.is_text: bool = schema.output_type is str
        if self.is_text:
            self.mode = "text"
        # Whether the server is unknown, so that the error suggests another mode.
        is_unknown = mode is None and not self.is_text and "schema" in backend.output_modes
        self._suggests_schema: bool = (
            is_unknown and self.mode == "text" and not (tools and writes_calls)
        )
        self.is_wrapped: bool = self.mode in ("schema", "tool")
        self.tool: OutputTool | None = None
        if self.mode == "tool":
            name, number = FINAL_ANSWER, 2
            while name in tools:
                name, number = f"{FINAL_ANSWER}_{number}", number + 1
            self.tool = OutputTool(name, schema.object_schema)

    def prepare(self, request: Request, *, only_answer: bool = False) -> Request:
        """Return the request with what the mode adds to it.

        With `only_answer` the model may call no other tool. Raises `ConfigurationError` if the
        request has its own `response_format`.
        """
        options = dict(request.options)
        if "response_format" in options:
            raise ConfigurationError("give response_format or output_type, not both")
        if self.tool is not None:
            forced = {"type": "function", "function": {"name": self.tool.name}}
            if only_answer or not request.tools:
                options["tool_choice"] = forced
            else:
                options.setdefault("tool_choice", "required")
            return Request(request.messages, [*request.tools, self.tool], options)
        if self.mode != "text":
            options["response_format"] = self.schema.response_format(wrap=self.is_wrapped)
        messages = request.messages
        if self.mode != "schema" and not self.is_text:
            messages = with_system(messages, self.schema.instruction())
        return Request(messages, request.tools, options)

    def calls(self, message: Message) -> list[ToolCall]:
        """Return the calls of a reply that are its answer."""
        if self.tool is None:
            return []
        return [call for call in message.tool_calls if call.name == self.tool.name]

    def read_call(self, call: ToolCall) -> T:
        """Return the value of a call; raise `ValueError` with a text for the model."""
        if call.error is not None:
            raise ValueError(f"the arguments are not JSON: {call.error}")
        return self.schema.read(call.arguments, is_wrapped=True)

    def read_text(self, message: Message) -> T:
        """Return the value of a reply's text; raise `ValueError` with a text for the model."""
        text = message.content or ""
        if self.is_text:
            if message.refusal or message.finish_reason in STOPPED:
                raise ValueError("the reply is not complete")
            return cast("T", text)
        if message.finish_reason == "content_filter":
            raise ValueError(FILTERED)
        is_cut = message.finish_reason in STOPPED
        try:
            return self.schema.parse(text, is_cut=is_cut, is_wrapped=self.is_wrapped)
        except ValueError:
            if self.mode == "text" and text and not is_cut and not message.refusal:
                with suppress(ValueError):
                    return self.schema.read_bare(text)
            raise

    def read(self, message: Message) -> OutputMessage[T]:
        """Return a reply with its value; raise `ValueError` with a text for the model."""
        if calls := self.calls(message):
            if message.finish_reason == "content_filter":
                raise ValueError(FILTERED)
            return with_output(message, self.read_call(calls[0]), calls[0].text)
        return with_output(message, self.read_text(message), message.content or "")

    def correct(self, message: Message, fault: str) -> list[Message]:
        """Return the messages after a reply without a value: the reply, and what is wrong."""
        if not message.tool_calls:
            return [message, Message(role="user", content=correction(fault))]
        return [message] + [
            Message(role="tool", content=f"Error: {fault}", tool_call_id=call.id, name=call.name)
            for call in message.tool_calls
        ]

    def failure(self, message: Message, fault: str, retries: int) -> BadResponse | None:
        """Return the error of a reply without a value; None if the model may be asked again."""
        words = message.content or "".join(c.raw or c.text for c in self.calls(message))
        words = words if len(words) <= MAX_QUOTED_CHARS else f"...{words[-MAX_QUOTED_CHARS:]}"
        if message.refusal:
            return Refused(f"the model refused: {message.refusal}", message=message)
        if message.finish_reason == "content_filter":
            what = f"a content filter stopped the reply: {words!r}"
            return ContentFiltered(what, message=message)
        if message.finish_reason == "length":
            what = f"the reply was cut off before the output was complete: {words!r}."
            return ReplyTruncated(f"{what} Raise max_tokens.", message=message)
        if retries > 0:
            return None
        name = self.schema.name
        what = f"the reply is not a valid {name}: {fault}. The reply was {words!r}"
        if self.is_text:
            return OutputInvalid(what, message=message)
        advice = " (output_mode=)"
        if self._suggests_schema:
            advice = "; if the server takes JSON schemas, pass output_mode='schema'"
        what += f", in mode {self.mode!r}{advice}"
        return OutputInvalid(what, message=message)

    def growing(self) -> GrowingOutput[T]:
        """Return a reader of the value while its text grows."""
        if self.is_text:
            return cast("GrowingOutput[T]", GrowingText(cast("OutputSchema[str]", self.schema)))
        return GrowingOutput(self.schema, is_wrapped=self.is_wrapped)


def check_retries(retries: object) -> None:
    """Raise `ConfigurationError` unless `retries` is a number of retries."""
    if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
        raise ConfigurationError(f"output_retries must be 0 or more, not {retries!r}")


def with_output(message: Message, output: T, text: str) -> OutputMessage[T]:
    """Return a copy of a message with its output, which is not validated again."""
    fields = {name: getattr(message, name) for name in Message.model_fields}
    given = {*message.model_fields_set, "output", "output_text"}
    # The plain class: a pickle cannot name a class that pydantic makes for a type argument.
    construct: Any = cast("Any", OutputMessage).model_construct
    return construct(given, **fields, output=output, output_text=text)


def with_system(messages: Sequence[Message], text: str) -> list[Message]:
    """Return the messages with `text` at the end of the system prompt."""
    if messages and messages[0].role in ("system", "developer"):
        content = "\n\n".join(filter(None, [messages[0].content, text]))
        return [messages[0].model_copy(update={"content": content}), *messages[1:]]
    return [Message(role="system", content=text), *messages]


def mode_of(body: Mapping[str, Any]) -> OutputMode | None:
    """Return the mode of typed output in which a request body asks; None if it does not."""
    names = [tool["function"]["name"] for tool in body.get("tools", ())]
    if any(name.startswith(FINAL_ANSWER) for name in names):
        return "tool"
    first = INSTRUCTION.partition("{")[0]
    messages: Any = body.get("messages")
    is_told = bool(messages) and first in str(messages[0]["content"])
    response_format: dict[str, Any] = body.get("response_format") or {}
    if response_format.get("type") == "json_schema":
        return "grammar" if is_told else "schema"
    return "text" if is_told else None


def _choose(
    backend: Backend, mode: OutputMode | None, has_tools: bool, *, writes_calls: bool
) -> OutputMode:
    possible = [*dict.fromkeys((*backend.output_modes, "text"))]
    # A grammar for the answer leaves no room for calls. A format that describes tools in the
    # prompt does not know a tool that must be called.
    excluded = {"grammar"} if has_tools else set[str]()
    if writes_calls:
        excluded |= {"tool", "schema"} if has_tools else {"tool"}
    possible = [each for each in possible if each not in excluded]
    if mode is None:
        # An unknown server: one that takes tools can also take the answer as a call.
        if has_tools and possible[:2] == ["text", "tool"]:
            return "tool"
        return cast("OutputMode", possible[0])
    if mode not in possible:
        with_tools = " with these tools" if mode in excluded else ""
        raise ConfigurationError(
            f"output_mode={quote(mode)} is not possible for {backend!r}{with_tools}. Use"
            f" {' or '.join(map(repr, possible))}"
        )
    return mode
