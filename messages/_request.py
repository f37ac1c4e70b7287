"""What a backend takes: messages, the tools on offer, and options with the wire's names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from ..commander.errors import ConfigurationError
from ..commander.kinds import require
from ._message import Message
from .options import check_options
from .text import quote

__all__ = ["Request", "ToolSchema", "has_parameter", "read_tool", "require_request"]


class ToolSchema(Protocol):
    """What a backend needs to know of a tool; `anabranch.Tool` is one."""

    @property
    def name(self) -> str:
        """The name the model calls it by."""
        ...

    @property
    def description(self) -> str:
        """What it does, for the model."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of its arguments, an object."""
        ...


def has_parameter(tool: ToolSchema, name: str) -> bool:
    """Whether a tool has a parameter of this name itself, not by `with_narration`.

    A schema comes from anywhere and may be anything.
    """
    properties: object = tool.parameters.get("properties")
    own = isinstance(properties, Mapping) and name in properties
    return own and getattr(tool, "narration", None) != name


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool as the wire has it: a model may call it, and whoever reads the reply runs it."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool | None = None


def read_tool(tool: ToolSchema | Mapping[str, Any]) -> ToolSchema:
    """Return a tool, also one that is written as on the wire.

    Raises `ConfigurationError` for what is none.
    """
    if isinstance(tool, Mapping):
        function: Any = tool.get("function", tool)
        match function:
            case {"name": str(name)} if name:
                parameters: Any = function.get("parameters") or {"type": "object", "properties": {}}
                description = function.get("description") or ""
                strict: Any = function.get("strict")
                if (
                    isinstance(parameters, Mapping)
                    and isinstance(description, str)
                    and isinstance(strict, bool | None)
                ):
                    mapping = cast("Mapping[str, Any]", parameters)
                    return WireTool(name, description, mapping, strict)
            case _:
                pass
    elif all(hasattr(tool, each) for each in ("name", "description", "parameters")):
        return tool
    raise ConfigurationError(
        f"this is no tool: {quote(tool)}; expected a Tool, or the wire's"
        " {'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': ...}}"
    )


@dataclass(frozen=True, slots=True)
class Request:
    """One question to a model.

    `options` have the wire's names (`temperature`, `top_p`, `stop`, `max_tokens`, `seed`,
    `tool_choice`, ...) and win over the backend's defaults; `extra`, a mapping, holds fields that
    only your server knows. A tool may be a mapping, as on the wire; `Conversation` makes messages
    of such. Raises `ConfigurationError` for what is no `Message` and no tool, for two tools of one
    name, since a call says which it means by its name alone, and for an option of any other name.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for message in self.messages:
            if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"the request cannot be written: it takes Messages, not {quote(message)}; a"
                    " Conversation makes them of texts and the wire's mappings, and its request()"
                )
        check_options(self.options, "a request")
        tools = tuple(map(read_tool, self.tools))
        object.__setattr__(self, "tools", tools)
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ConfigurationError(f"there are two tools called {twice!r}: rename one")


def require_request(given: object) -> None:
    """Raise `TypeError` unless a `Request` was given."""
    require(given, Request, "a backend takes a Request, as Conversation.request() gives")
