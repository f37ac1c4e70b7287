"""`Conversation`: an ordered list of messages that can be sent to a model, saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast
from uuid import uuid4

from ..commander.errors import ConfigurationError
from ..files.replacing import replace_private_file
from ._message import Message
from ._request import Request, ToolSchema
from .text import quote

__all__ = ["Conversation"]

# Raised by `Message.from_wire` and by the JSON reader for invalid input.
READ_ERRORS = (AttributeError, KeyError, TypeError, ValueError, RecursionError)


class Conversation:
    """The messages of a conversation, oldest first.

    `thread_id` names the conversation; the default is a new, unique name. `messages` is a plain
    list that you may edit.

        conversation = Conversation(system="You are brief.")
        conversation.add("What is an anabranch?")
        request = conversation.request(temperature=0.0)
    """

    def __init__(self, system: str | None = None, thread_id: str | None = None) -> None:
        self.thread_id: str = thread_id or uuid4().hex
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append(Message(role="system", content=system))

    def add(self, *messages: Message | Mapping[str, Any] | str) -> None:
        """Append messages: a string as a message of the user, a mapping as a message of the wire.

        Appends all or none. Raises `ConfigurationError` for a mapping that is not a message, and
        `TypeError` for other types.
        """
        added: list[Message] = []
        for message in messages:
            if isinstance(message, Message):
                added.append(message)
            elif isinstance(message, str):
                added.append(Message(role="user", content=message))
            elif isinstance(message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                try:
                    added.append(Message.from_wire(message))
                except READ_ERRORS as error:
                    what = f"not a message of the wire: {quote(message)} ({_describe(error)})"
                    raise ConfigurationError(what) from error
            else:
                kinds = "Messages, strings and the wire's mappings"
                raise TypeError(f"a conversation takes {kinds}, not {quote(message)}")
        self.messages += added

    def request(
        self, *, tools: Sequence[ToolSchema | Mapping[str, Any]] | None = None, **options: Any
    ) -> Request:
        """Make a request of the current messages, with tools and wire options.

        A mapping among the tools is a tool of the wire. Raises `ConfigurationError` for an invalid
        tool, for two tools with one name, and for unknown options.
        """
        return Request(tuple(self.messages), cast("Sequence[ToolSchema]", tools or ()), options)

    def to_record(self) -> dict[str, Any]:
        """Return the conversation as JSON values, with its messages in the form of the wire.

        `from_record` reads it back. Use it to store conversations in a database.
        """
        messages = [message.to_record() for message in self.messages]
        return {"thread_id": self.thread_id, "messages": messages}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Self:
        """Make a conversation from the result of `to_record`, or from a list of wire messages.

        Raises `ConfigurationError` for anything else.
        """
        try:
            return cls._of_record(record)
        except READ_ERRORS as error:
            raise ConfigurationError(f"not a saved conversation ({_describe(error)})") from error

    @classmethod
    def _of_record(cls, record: Any) -> Self:
        thread_id, messages = None, record
        if isinstance(record, Mapping):
            fields = cast("Mapping[str, Any]", record)
            thread_id, messages = fields.get("thread_id"), fields["messages"]
        if not isinstance(thread_id, str | None):
            raise TypeError("its thread_id must be a string")
        if not isinstance(messages, (list, tuple)):
            raise TypeError("its messages must be a list")
        conversation = cls(thread_id=thread_id)
        wires = cast("Sequence[Any]", messages)
        conversation.messages = [Message.from_wire(wire) for wire in wires]
        return conversation

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation to a JSON file, with its messages in the form of the wire.

        Replaces the file in one step: after a crash or on a full disk, it holds the old
        conversation or the new one, never a part. Raises `OSError` if the file cannot be written or
        is a folder, a pipe or a device, and `ConfigurationError` for an invalid name.
        """
        # ASCII only: a lone surrogate, which a model can send, has no UTF-8 encoding.
        replace_private_file(path, json.dumps(self.to_record(), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file of `save`, or a JSON list of wire messages.

        Raises `OSError` if the file cannot be read, and `ConfigurationError` for other content.
        """
        try:
            return cls._of_record(json.loads(Path(path).read_text("utf-8")))
        except READ_ERRORS as error:
            raise ConfigurationError(
                f"{os.fspath(path)!r} is not a saved conversation ({_describe(error)})"
            ) from error

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Conversation {self.thread_id} of {len(self)} messages>"


def _describe(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
