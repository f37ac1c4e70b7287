"""What a backend takes: messages, the tools on offer, and options with the wire's names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..commander.errors import ConfigurationError
from ._message import Message
from .options import check_options

__all__ = ["Request", "ToolSchema", "has_parameter"]


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
class Request:
    """One question to a model.

    `options` have the wire's names (`temperature`, `top_p`, `stop`, `max_tokens`, `seed`,
    `tool_choice`, ...) and win over the backend's defaults; `extra`, a mapping, holds fields that
    only your server knows. A `ConfigurationError` are two tools of one name, since a call says
    which it means by its name alone, and an option of any other name.
    """

    messages: Sequence[Message]
    tools: Sequence[ToolSchema] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        check_options(self.options, "a request")
        names = [tool.name for tool in self.tools]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ConfigurationError(f"there are two tools called {twice!r}: rename one")
