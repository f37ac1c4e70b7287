"""The result of a tool call, as the message for the model."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Literal, TypeAlias

from pydantic import Field

from ..commander.errors import ModelRetry, NodeCancelled, ToolError
from ..messages import Message, Part, Role, ToolCall, ToolCallError
from ._schema import InvalidArguments

__all__ = ["Illustrated", "ToolResult", "describe_error", "shorten"]

logger: logging.Logger = logging.getLogger("anabranch.tools")

Status: TypeAlias = Literal["ok", "failed", "invalid"]


class Illustrated(str):
    """A tool's text with images; a tool may return one.

        @tool
        def plot(expression: str) -> Illustrated:
            return Illustrated("The plot:", [Part.from_path(draw(expression))])

    `parts` are the images, `files` the paths of saved files, for the person. The text should
    mention them, because the model reads only the text and the images.
    """

    parts: tuple[Part, ...]
    files: tuple[str, ...]

    def __new__(
        cls, text: str, parts: Iterable[Part] = (), files: Iterable[str] = ()
    ) -> Illustrated:
        """Make a text with images and paths of files."""
        self = super().__new__(cls, text)
        self.parts = tuple(parts)
        self.files = tuple(files)
        return self


class ToolResult(Message):
    """The answer to one tool call; the model reads its `content` and `parts`.

    `status` is "ok", "failed" (the tool raised, timed out, was cancelled or was not allowed) or
    "invalid" (the call was wrong or the tool raised `ModelRetry`, and the model may correct it).
    `parts` are images of the tool, `files` the paths of files that it saved.
    """

    role: Role = "tool"
    status: Status = "ok"
    files: list[str] = Field(default_factory=list)

    @classmethod
    def of(cls, call: ToolCall | ToolCallError, text: str, status: Status = "ok") -> ToolResult:
        """Make the answer to `call`, with the parts and files of an `Illustrated` text."""
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
        """Make the answer to a call that failed; `timeout` is the tool's own limit in seconds."""
        match error:
            case InvalidArguments() | ModelRetry():
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
        """Make the answer to a call of an unknown tool, with the names of the known ones."""
        names = ", ".join(known) or "none"
        text = f"Error: there is no tool {call.name!r}; the tools are: {names}"
        return cls.of(call, text, "invalid")


def shorten(text: str, limit: int) -> str:
    """Return `text`, shortened in the middle to `limit` characters."""
    if len(text) <= limit:
        return text
    head, tail = text[: limit // 2], text[-(limit - limit // 2) :]
    return f"{head}\n[... {len(text) - limit} characters left out ...]\n{tail}"


def describe_error(error: BaseException | None) -> str:
    """Return the class name and the text of an exception, even if its methods raise."""
    # Not `type(error).__name__`: a metaclass can replace it.
    return f"{type.__dict__['__name__'].__get__(type(error))}: {_text(error)}"


def _text(error: BaseException | None) -> str:
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as second:  # noqa: BLE001 - `__str__` may raise anything
        return f"<its text cannot be read: {type(second).__name__}>"
