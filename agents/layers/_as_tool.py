"""An agent as a tool of another agent: `Agent.as_tool`."""

from __future__ import annotations

import re
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ...commander.durable import IS_ASIDE, scope_here
from ...commander.errors import ConfigurationError
from ...tools import Illustrated, Tool, result_text
from ._call import OUTER_SESSION, run_in_tree
from ._memory import TemporarySession

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["make_tool", "tool_name"]

# The names of functions that all providers accept.
NOT_IN_TOOL_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")
MAX_TOOL_NAME_CHARS = 64

RESULT_NOTE = "result of an agent"  # the name of a call's note in a journal


def tool_name(agent: Agent[Any], prefix: str = "") -> str:
    """Return the agent's name as the name of a tool; raise `ConfigurationError` if none is left."""
    name = NOT_IN_TOOL_NAMES.sub("_", agent.name).strip("_")
    if not name:
        raise ConfigurationError(
            f"the name {agent.name!r} has no letters for the name of a tool: give name="
        )
    return f"{prefix}{name}"[:MAX_TOOL_NAME_CHARS]


class _AgentTool(Tool[[str], Coroutine[Any, Any, str]]):
    """A tool that calls an agent."""

    # Such as an agent without a backend. The model cannot correct it.
    fatal_errors = (ConfigurationError,)


def make_tool(
    agent: Agent[Any], name: str | None, description: str | None
) -> Tool[[str], Coroutine[Any, Any, str]]:
    """Return the tool of `Agent.as_tool`."""
    description = description or agent.description
    if not description.strip():
        raise ConfigurationError(
            f"{agent.name} has no description, and a model must know when to call it. Give it"
            " description=, or as_tool(description=)"
        )
    if agent.journal is not None:
        raise ConfigurationError(
            f"{agent.name} stores its sessions in a journal, and the calls of a tool have no"
            " session. Make the tool of an agent without journal="
        )

    async def ask(request: str) -> str:
        """Ask the agent.

        Args:
            request: The task or the question, with everything that is needed to answer it.
        """
        # A session of its own for each call. Else all users of the outer agent would share
        # session 0 of an agent with `memory=`.
        session = TemporarySession()
        call = agent.call(request, session_id=session)
        call.at_done(lambda _: session.end())
        is_aside = IS_ASIDE.get()
        token = IS_ASIDE.set(True)
        try:
            answer = await run_in_tree(call)
        finally:
            IS_ASIDE.reset(token)
        # Validators may have changed the output, so that it differs from the reply.
        is_typed = agent.output_type is not None and not agent.has_text_output
        text = result_text(answer.output) if is_typed else answer.text
        scope = None if is_aside or OUTER_SESSION.get() is None else scope_here()
        if scope is not None and not scope.notes(RESULT_NOTE):
            # For `end_interrupted`: no other entry has the result with its tool and request.
            scope.note(RESULT_NOTE, {"tool": made.name, "request": request, "result": text})
        return Illustrated(text, answer.parts) if answer.parts else text

    made = _AgentTool(ask, name=name or tool_name(agent), description=description, effect="nested")
    made.source = f"the agent {agent.name}"
    return made
