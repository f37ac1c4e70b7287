"""The type of an agent's output: how the model is asked for it, validators, stored values."""

from __future__ import annotations

import pickle
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from inspect import isasyncgenfunction, isgeneratorfunction
from typing import Any, Generic, TypeVar, cast

from ...backends import Backend
from ...backends.typed_output import FINAL_ANSWER, TypedOutput, check_retries
from ...commander.context import call_with_context
from ...commander.errors import (
    ConfigurationError,
    ContentFiltered,
    OutputInvalid,
    Refused,
    ReplyTruncated,
)
from ...commander.kinds import require
from ...dispatch import Format
from ...dispatch.assembly import STOPPED
from ...messages import Message, OutputMode, OutputSchema, ToolCall
from ...tools import AnyTool
from ._message import STORED_OUTPUT, AgentMessage, StoredOutput, own_output
from ._parsers import Parser
from ._state import json_value, output_json

__all__ = ["NO_OUTPUT", "AgentOutput", "check_format", "without_answer_calls"]

F = TypeVar("F")

FROM_TEXT_WARNING = (
    "cannot be stored as JSON. It was read from the text of the answer again, without the changes"
    " of output validators"
)

NO_OUTPUT = (Refused, ContentFiltered, ReplyTruncated, OutputInvalid)


class AgentOutput(Generic[F]):
    """The type of an agent's output. Raises `ConfigurationError` for arguments that do not fit."""

    def __init__(self, output_type: object, mode: OutputMode | None, retries: int) -> None:
        if isinstance(output_type, Parser):
            raise ConfigurationError(
                f"output_type must be a type, not the parser {output_type!r:.200}. Give a parser as"
                " output_format="
            )
        check_retries(retries)
        self.schema: OutputSchema[F] = OutputSchema.of(output_type)
        self.mode: OutputMode | None = mode
        self.retries = retries
        self.validators: list[Callable[..., Any]] = []

    @property
    def is_text(self) -> bool:
        """Whether the output is the text of the reply."""
        return self.schema.output_type is str

    def check(
        self, backend: object, tools: Sequence[AnyTool], formats: Sequence[Format] | None
    ) -> None:
        """Raise `ConfigurationError` for a mode that is not possible with this backend."""
        if self.mode is not None and isinstance(backend, Backend):
            formats = backend.formats if formats is None else formats
            writes_calls = any(each.instruction for each in formats)
            names = [tool.name for tool in tools]
            TypedOutput(self.schema, backend, self.mode, names, writes_calls=writes_calls)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for `respond`."""
        return {
            "output_type": self.schema,
            "output_mode": self.mode,
            "output_retries": self.retries,
            "output_validators": [_Validator(each) for each in self.validators],
        }

    def add_validator(self, validator: Callable[..., Any]) -> None:
        """Add a validator after the others."""
        if not callable(validator) or isinstance(validator, type):
            raise ConfigurationError(
                f"an output validator must be a function of the output, not {validator!r:.200}"
            )
        if isasyncgenfunction(validator) or isgeneratorfunction(validator):
            raise ConfigurationError(
                f"the output validator {validator!r:.200} must return the output, not yield it"
            )
        self.validators.append(validator)

    def choose_stored(self, message: AgentMessage) -> None:
        """Choose the form in which an answer's output is stored: JSON that reads back to it.

        If there is none, as for a secret, the text restores the output as the model wrote it.
        """
        vars(message).pop(STORED_OUTPUT, None)
        output: F | None = own_output(message)
        if output is None:
            return
        written = output_json(output)
        for saved in (written, *self.schema.dumps(output)):
            with suppress(Exception):  # of the type's own validators
                if _is_same(self._read(message, saved), output):
                    if saved is not written:
                        vars(message)[STORED_OUTPUT] = StoredOutput(written, saved, False)
                    return
        saved = message.text if written is None else written  # a serializer failed
        vars(message)[STORED_OUTPUT] = StoredOutput(written, saved, True)

    def restore(self, message: AgentMessage) -> str:
        """Replace the saved JSON of an output by the output; return what a person must know.

        Raises `ValueError` if it fits no longer.
        """
        saved, stored = message.output, vars(message).get(STORED_OUTPUT)
        from_text = stored is not None and stored.from_text
        if from_text:
            message.output = self._read_text(message)
        else:
            message.output = self._read(message, saved)
        written = output_json(message.output)
        if from_text or written != saved:
            vars(message)[STORED_OUTPUT] = StoredOutput(written, saved, from_text)
        return FROM_TEXT_WARNING if from_text else ""

    def only_answers(self, messages: Sequence[AgentMessage], name: str) -> list[AgentMessage]:
        """Return the messages of an interrupted call without replies that are no answers.

        The model was asked again after each text reply that another message follows.
        """
        found: list[AgentMessage] = []
        for place, message in enumerate(messages):
            is_text = message.sender == name and message.type is None
            if is_text and message.stream_state == "end":
                if any(each.sender == name for each in messages[place + 1 :]):
                    continue
                try:
                    output = self._read_text(message)
                except ValueError:
                    continue
                if not self.validators:  # which may have refused it
                    message.output = output
                    self.choose_stored(message)
            found.append(message)
        return found

    def _read(self, message: AgentMessage, saved: object) -> F:
        """Return the output of an answer, given its saved JSON."""
        with suppress(ValueError):
            value = self._read_text(message)
            if json_value(value) == saved:
                return value
        return self.schema.read_stored(saved)

    def _read_text(self, message: AgentMessage) -> F:
        text, is_cut = message.text, message.extra.get("status") in STOPPED
        try:
            return self.schema.parse(text, is_cut=is_cut, is_wrapped=True)
        except ValueError:
            if not is_cut:
                with suppress(ValueError):
                    return self.schema.read_bare(text)
            raise


def _is_same(one: object, other: object) -> bool:
    """Return whether a restored value equals the stored one."""
    if type(one) is not type(other):
        return False
    # A value without an `__eq__`, or with a NaN, does not equal its copy.
    return one == other or pickle.dumps(one) == pickle.dumps(other)


class _Validator:
    """Calls a validator, with the context if it takes it. Its name is the validator's."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, value: Any) -> Awaitable[Any]:
        return call_with_context(self.function, value)

    def __repr__(self) -> str:
        return f"the output validator {getattr(self.function, '__qualname__', self.function)}"


def check_format(output_format: object, output_type: object) -> None:
    """Raise `ConfigurationError` unless `output_format` is a parser or None, and the only one."""
    if output_format is None:
        return
    is_class = isinstance(output_format, type)
    if not callable(getattr(cast("Any", output_format), "parse", None)):
        name = cast("Any", output_format).__name__ if is_class else repr(output_format)
        raise ConfigurationError(
            f"output_format must be a Parser, not {output_format!r:.200}. For a type, write"
            f" output_type={name:.200}"
        )
    require(output_format, Parser, "output_format must be a Parser or None", like="parse")
    if output_type is not None:
        raise ConfigurationError(
            "give output_type= or output_format=, not both: output_format is for a parser of your"
            " own, and output_type= for all types"
        )


def without_answer_calls(messages: Iterable[Message], tools: Sequence[AnyTool]) -> list[Message]:
    """Return the messages without calls of `final_answer` and their results.

    The agent remembers the answer as text.
    """
    names = {tool.name for tool in tools}

    def is_answer(call: ToolCall) -> bool:
        return call.name.startswith(FINAL_ANSWER) and call.name not in names

    found: list[Message] = []
    left_out: set[str | None] = set()
    for message in messages:
        answers = {call.id for call in message.tool_calls if is_answer(call)}
        if answers:
            left_out |= answers
            calls = [call for call in message.tool_calls if call.id not in answers]
            if calls:
                found.append(message.model_copy(update={"tool_calls": calls}))
        elif message.role != "tool" or message.tool_call_id not in left_out:
            found.append(message)
    return found
