"""A conversation: an ordered list of messages that can be asked about, saved and loaded."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

from ..commander.errors import ConfigurationError
from ._message import Message
from ._request import Request, ToolSchema

__all__ = ["Conversation"]


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

    def add(self, *messages: Message | str) -> None:
        """Append messages; a plain string is said by the user."""
        self.messages.extend(
            Message(role="user", content=message) if isinstance(message, str) else message
            for message in messages
        )

    def request(self, *, tools: Sequence[ToolSchema] = (), **options: Any) -> Request:
        """Make what a backend takes: the messages as they are now, tools, and wire options."""
        return Request(tuple(self.messages), tuple(tools), options)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the conversation as JSON in the wire's own shape.

        The file is replaced in one step: whoever reads it, even after a crash or a full disk,
        finds the old conversation or the new one, never a part. Raises `OSError` if that cannot be
        done, also where something stands that is no file: a folder, a pipe, a device; and
        `ConfigurationError` if no file can have this name.
        """
        record = {
            "thread_id": self.thread_id,
            "messages": [message.to_record() for message in self.messages],
        }
        # ASCII only: a lone surrogate, which a model can send, has no UTF-8.
        text = json.dumps(record, indent=2)
        target = Path(path)
        try:
            if target.exists() and not target.is_file():
                raise OSError(errno.EINVAL, "this is no file that could be replaced", str(path))
            target = target.resolve()  # a link keeps pointing at the file it names
        except (ValueError, RuntimeError) as error:  # a NUL in it; a link to itself
            raise ConfigurationError(f"{str(path)!r} cannot name a file: {error}") from None
        descriptor, name = tempfile.mkstemp(prefix=".conversation.", dir=target.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            os.unlink(name)
            raise

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Conversation:
        """Read what `save` wrote, or a plain JSON list of wire messages.

        Raises `OSError` if the file cannot be read, `ConfigurationError` if it holds something
        else.
        """
        try:
            record: Any = json.loads(Path(path).read_text("utf-8"))
            thread_id, messages = None, record
            if isinstance(record, dict):
                fields = cast("dict[str, Any]", record)
                thread_id, messages = fields.get("thread_id"), fields["messages"]
            conversation = cls(thread_id=thread_id)
            conversation.messages = [Message.from_wire(wire) for wire in messages]
            return conversation
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
            raise ConfigurationError(
                f"{os.fspath(path)!r} is not a saved conversation"
                f" ({type(error).__name__}: {str(error).splitlines()[0]})"
            ) from error

    def __iter__(self) -> Iterator[Message]:
        return iter(self.messages)

    def __len__(self) -> int:
        return len(self.messages)

    def __repr__(self) -> str:
        return f"<Conversation {self.thread_id} of {len(self)} messages>"
