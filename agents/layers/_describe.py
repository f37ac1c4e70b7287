"""An agent and all below it, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["describe_agent"]


def describe_agent(agent: Agent[Any], above: tuple[int, ...] = ()) -> str:
    """Return a line for the agent and for each below it; one that is above itself ends there."""
    parts = [repr(agent.name)]
    parts += [repr(agent.backend)] if agent.backend is not None else []
    parts += [f"tools={[tool.name for tool in agent.tools]}"] if agent.tools else []
    head = f"{type(agent).__name__}({', '.join(parts)})"
    if id(agent) in above:
        return f"{head} ..."
    below = (
        f"({name}): {describe_agent(each, (*above, id(agent)))}"
        for name, each in agent.named_children()
    )
    return head + "".join("\n  " + lines.replace("\n", "\n  ") for lines in below)
