"""`Request`: messages, tools and options for one request to a model."""

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
    """The description of a tool that a backend sends to a model. Each `anabranch.Tool` is one."""

    @property
    def name(self) -> str:
        """The name in a model's calls."""
        ...

    @property
    def description(self) -> str:
        """The purpose of the tool, for the model."""
        ...

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema of the arguments, of type `object`."""
        ...


def has_parameter(tool: ToolSchema, name: str) -> bool:
    """Return whether a tool has a parameter of this name that `with_narration` did not add.

    Accepts invalid schemas too, because a schema can come from a server.
    """
    properties: object = tool.parameters.get("properties")
    own = isinstance(properties, Mapping) and name in properties
    return own and getattr(tool, "narration", None) != name


@dataclass(frozen=True, slots=True)
class WireTool:
    """A tool that was given as a mapping, as on the wire. The code that reads the reply runs its
    calls.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool | None = None


def read_tool(tool: ToolSchema | Mapping[str, Any]) -> ToolSchema:
    """Return the tool, or the `WireTool` of a mapping. Raises `ConfigurationError` for others."""
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
        f"not a tool: {quote(tool)}. It must be a Tool, or the wire's"
        " {'type': 'function', 'function': {'name': ..., 'description': ..., 'parameters': ...}}"
    )


@dataclass(frozen=True, slots=True)
class Request:
    """One request to a model.

    `options` have the wire's names (`temperature`, `top_p`, `stop`, `max_tokens`, `seed`,
    `tool_choice`, ...) and override the backend's defaults. The option `extra` is a mapping of
    fields that only your server knows. A tool may be a mapping, as on the wire. Raises
    `ConfigurationError` for an invalid message or tool, for two tools with the same name, and for
    an unknown option.

        Request([Message(role="user", content="Hello")], options={"max_tokens": 100})
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        for message in self.messages:
            if not isinstance(message, Message):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ConfigurationError(
                    f"the messages of a request must be Messages, not {quote(message)}. Use a"
                    " Conversation to make a request from texts or mappings"
                )
        check_options(self.options, "a request")
        tools = tuple(map(read_tool, self.tools))
        object.__setattr__(self, "tools", tools)
        names = [tool.name for tool in tools]
        if len(set(names)) < len(names):
            twice = next(name for name, count in Counter(names).items() if count > 1)
            raise ConfigurationError(f"there are two tools called {twice!r}: rename one")


def require_request(given: object) -> None:
    """Raise `TypeError` for anything but a `Request`."""
    require(given, Request, "a backend takes a Request, such as Conversation.request() returns")
