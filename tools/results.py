"""What a call of a tool gave, as the message that goes back to the model.

The class methods of `ToolResult` make the answer to a call, whoever ran it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal, TypeAlias

from pydantic import Field

from ..commander.errors import NodeCancelled, ToolError
from ..messages import Message, Part, Role, ToolCall, ToolCallError
from ._schema import InvalidArguments

__all__ = ["Illustrated", "ToolResult", "describe_error", "shorten"]

logger = logging.getLogger("anabranch.tools")

Status: TypeAlias = Literal["ok", "failed", "invalid"]


class Illustrated(str):
    """A tool's text with images beside it; a tool may return one.

    `files` are the paths of what it has saved, for the person; the text tells the model of them.
    """

    parts: tuple[Part, ...]
    files: tuple[str, ...]

    def __new__(
        cls, text: str, parts: Iterable[Part] = (), files: Iterable[str] = ()
    ) -> Illustrated:
        """Make a text that brings images, as `parts`, and the paths of `files` along."""
        self = super().__new__(cls, text)
        self.parts = tuple(parts)
        self.files = tuple(files)
        return self


class ToolResult(Message):
    """The answer to one tool call; its `content` is what the model reads.

    `status` is "ok", "failed" (the tool raised, was too slow, was stopped or not allowed) or
    "invalid" (the call itself was wrong, and the model may mend it). `parts` are the images
    that the tool made, `files` the paths of what it has saved.
    """

    role: Role = "tool"
    status: Status = "ok"
    files: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, call: ToolCall | ToolCallError, text: str, status: Status = "ok") -> ToolResult:
        """Make the answer to `call`; the parts of an `Illustrated` text come with it."""
        return cls(
            content=str(text),
            parts=list(text.parts) if isinstance(text, Illustrated) else [],
            files=list(text.files) if isinstance(text, Illustrated) else [],
            tool_call_id=call.id,
            name=call.name or None,
            status=status,
        )

    @classmethod
    def of_error(
        cls, call: ToolCall, error: BaseException | None, timeout: float | None = None
    ) -> ToolResult:
        """Tell the model why a call gave no result; `timeout` is the tool's own."""
        match error:
            case InvalidArguments():
                return cls.of(call, f"Error: {_text(error)}", "invalid")
            case ToolError():
                why = _text(error)
            case NodeCancelled():
                why = f"the call was cancelled{error.reason and ': '}{error.reason}"
            case TimeoutError() if timeout is not None:
                why = f"{call.name} did not finish within {timeout:g} seconds"
            case _:
                logger.info("tool %s raised", call.name, exc_info=error)
                why = describe_error(error)
        return cls.of(call, f"Error: {why}", "failed")

    @classmethod
    def of_unknown_tool(cls, call: ToolCall, known: Iterable[str]) -> ToolResult:
        """Tell the model that there is no such tool, and which there are."""
        names = ", ".join(known) or "none"
        text = f"Error: there is no tool {call.name!r}; the tools are: {names}"
        return cls.of(call, text, "invalid")


def shorten(text: str, limit: int) -> str:
    """Return `text`, its middle left out if it is longer than `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit - limit // 2) :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}"


def describe_error(error: BaseException | None) -> str:
    """Return the kind of an exception and its text, whatever its methods do."""
    # The class's own attribute: that of a metaclass may be anything.
    return f"{type.__dict__['__name__'].__get__(type(error))}: {_text(error)}"


def _text(error: BaseException | None) -> str:
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as second:  # noqa: BLE001 - whatever a `__str__` does
        return f"<its text cannot be read: {type(second).__name__}>"
