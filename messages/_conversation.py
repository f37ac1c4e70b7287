"""A conversation: an ordered list of messages that can be asked about, saved and loaded."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, cast
from uuid import uuid4

from ..commander.errors import ConfigurationError
from ._message import Message
from ._request import Request, ToolSchema
from .text import quote
from .whole import write_whole

__all__ = ["Conversation"]

# What `Message.from_wire` raises for what is no message, and the JSON reader for what is no JSON.
FAULTS = (AttributeError, KeyError, TypeError, ValueError, RecursionError)


class Conversation:
    """What was said so far, oldest first.

    `thread_id` names the conversation; without one it gets a new, unique name. `messages` is an
    ordinary list and may be edited.
    """

    def __init__(self, system: str | None = None, thread_id: str | None = None) -> None:
        self.thread_id = thread_id or uuid4().hex
        self.messages: list[Message] = []
        if system is not None:
            self.messages.append(Message(role="system", content=system))

    def add(self, *messages: Message | Mapping[str, Any] | str) -> None:
        """Append messages; a plain string is said by the user, a mapping is one of the wire's.

        Raises `ConfigurationError` for a mapping that is no message, `TypeError` for anything else,
        and adds nothing then.
        """
        taken: list[Message] = []
        for message in messages:
            if isinstance(message, Message):
                taken.append(message)
            elif isinstance(message, str):
                taken.append(Message(role="user", content=message))
            elif isinstance(message, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                try:
                    taken.append(Message.from_wire(message))
                except FAULTS as error:
                    what = f"this is no message of the wire: {quote(message)} ({_fault(error)})"
                    raise ConfigurationError(what) from error
            else:
                kinds = "Messages, strings and the wire's mappings"
                raise TypeError(f"a conversation takes {kinds}, not {quote(message)}")
        self.messages += taken

    def request(
        self, *, tools: Sequence[ToolSchema | Mapping[str, Any]] | None = None, **options: Any
    ) -> Request:
        """Make what a backend takes: the messages as they are now, tools, and wire options.

        A mapping among the tools is one of the wire's. Raises `ConfigurationError` for what is no
        tool, for two tools of one name, and for options that the wire has not.
        """
        return Request(tuple(self.messages), cast("Sequence[ToolSchema]", tools or ()), options)

    def to_record(self) -> dict[str, Any]:
        """Return all there is to keep as JSON values, the messages in the wire's own shape.

        For a row of a database, whose lists it may hold as JSON; `from_record` reads it back.
        """
        messages = [message.to_record() for message in self.messages]
        return {"thread_id": self.thread_id, "messages": messages}

    @classmethod
    def from_record(cls, record: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> Self:
        """Read what `to_record` returned, or a plain list of wire messages.

        Raises `ConfigurationError` for anything else.
        """
        try:
            return cls._of_record(record)
        except FAULTS as error:
            raise ConfigurationError(f"this is no saved conversation ({_fault(error)})") from error

    @classmethod
    def _of_record(cls, record: Any) -> Self:
        thread_id, messages = None, record
        if isinstance(record, Mapping):
            fields = cast("Mapping[str, Any]", record)
            thread_id, messages = fields.get("thread_id"), fields["messages"]
        if not isinstance(thread_id, str | None):
            raise TypeError("its thread_id is no text")
        if not isinstance(messages, (list, tuple)):
            raise TypeError("its messages are no list")
        conversation = cls(thread_id=thread_id)
        wires = cast("Sequence[Any]", messages)
        conversation.messages = [Message.from_wire(wire) for wire in wires]
        return conversation

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation as JSON in the wire's own shape.

        The file is replaced in one step: whoever reads it, even after a crash or a full disk,
        finds the old conversation or the new one, never a part. Raises `OSError` if that cannot be
        done, also where something stands that is no file: a folder, a pipe, a device; and
        `ConfigurationError` if no file can have this name.
        """
        # ASCII only: a lone surrogate, which a model can send, has no UTF-8.
        write_whole(path, json.dumps(self.to_record(), indent=2))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read what `save` wrote, or a plain JSON list of wire messages.

        Raises `OSError` if the file cannot be read, `ConfigurationError` if it holds something
        else.
        """
        try:
            return cls._of_record(json.loads(Path(path).read_text("utf-8")))
        except FAULTS as error:
            raise ConfigurationError(
                f"{os.fspath(path)!r} is not a saved conversation ({_fault(error)})"
            ) from error

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Conversation {self.thread_id} of {len(self)} messages>"


def _fault(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
