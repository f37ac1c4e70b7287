"""An agent's structure: the agents it holds as attributes, theirs, and so on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ..commander.errors import ConfigurationError
from ._memory import read_records
from ._message import AgentMessage

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["describe_structure", "held_agents", "restore", "walk"]


def held_agents(agent: Agent[Any]) -> Iterator[tuple[str, Agent[Any]]]:
    """Give the agents among an agent's attributes, also those in its lists, tuples and mappings.

    Each comes with the path that leads to it, `writer`, `critics.0` or `roles.editor`, in the
    order in which the attributes were set.
    """
    from ._agent import Agent

    for name, value in vars(agent).items():
        for path, each in _parts(name, value):
            if isinstance(each, Agent):
                yield path, cast("Agent[Any]", each)


def _parts(name: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        parts = cast("Mapping[Any, Any]", value).items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(cast("list[Any]", value))
    else:
        return iter([(name, value)])
    return ((f"{name}.{key}", each) for key, each in parts)


def walk(agent: Agent[Any]) -> dict[str, Agent[Any]]:
    """Return an agent and all below it by their paths, the first under ""; each agent once."""
    found: dict[str, Agent[Any]] = {}
    seen: set[int] = set()
    waiting = [("", agent)]
    while waiting:
        path, each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        found[path] = each
        held = [(f"{path}.{name}" if path else name, part) for name, part in held_agents(each)]
        waiting += reversed(held)
    return found


def restore(agent: Agent[Any], records: Any) -> list[AgentMessage]:
    """Read a saved memory of an agent; what its parser had made of its replies is made again."""
    messages = read_records(records)
    parser = agent.output_format
    if parser is None:
        return messages
    for message in messages:
        if message.sender == agent.name and message.type is None and message.formatted is not None:
            try:
                message.formatted = parser.restore(message.formatted)
            except ValueError as error:
                raise ConfigurationError(f"this is no memory of {agent.name}: {error}") from error
    return messages


def describe_structure(agent: Agent[Any], above: tuple[int, ...] = ()) -> str:
    """Return the lines of an agent's `repr`, one for each agent below it, indented."""
    told = [repr(agent.name)]
    told += [repr(agent.backend)] if agent.backend is not None else []
    told += [f"tools={[tool.name for tool in agent.tools]}"] if agent.tools else []
    head = f"{type(agent).__name__}({', '.join(told)})"
    if id(agent) in above:
        return f"{head} ..."
    lines = [
        f"({name}): {describe_structure(held, (*above, id(agent)))}"
        for name, held in held_agents(agent)
    ]
    return head + "".join("\n  " + line.replace("\n", "\n  ") for line in lines)
