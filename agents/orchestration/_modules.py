"""Modules: code that runs before an agent's prompt is made, and after its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from ...backends import Backend
from ...backends.override import replaced
from ...commander.kinds import require_awaitable
from ..layers._answer import Knowledge
from ..layers._memory import ask_summary
from ..layers._override import read_backend
from ._state import State

__all__ = ["ListMemory", "Module", "Retrieval", "RunningSummary"]

Search = Callable[[str], Awaitable[Sequence[str]]]
Query = Callable[[str | None, Any], Awaitable[str | None] | str | None]

SUMMARY_PROMPT = """You are the memory of an agent. Add what it did and saw to what you remember:
{memory}

Answer with all that is worth remembering, each fact once, and with nothing else."""


class Module:
    """An addition to the agents of an orchestrator. It puts its results into `state.notes`.

        class Clock(Module):
            async def before(self, obs, state):
                state.notes[self.name] = f"Step {state.steps}"

    `name` is its key there. Store data in `state.kept`, which a saved run includes. Then several
    agents and orchestrators may share the module.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def before(self, obs: str | None, state: State) -> None:
        """Run with the observation, before the prompt is made."""

    async def after(self, response: str, state: State) -> None:
        """Run after a usable answer."""

    def reset(self) -> None:
        """Forget everything that this object stores outside of the state."""


class ListMemory(Module):
    """A module that notes the `last` actions with their observations.

    Each observation is cut to `max_output` characters.
    """

    def __init__(self, name: str = "memory", *, last: int = 10, max_output: int = 2000) -> None:
        super().__init__(name)
        if last < 1 or max_output < 1:
            raise ValueError(
                f"last and max_output must be at least 1, not {last!r} and {max_output!r}"
            )
        self.last = last
        self.max_output = max_output

    async def before(self, obs: str | None, state: State) -> None:
        """Note the last action and its observation."""
        if obs is None or state.response is None:
            return
        output = obs if len(obs) <= self.max_output else f"{obs[: self.max_output]} [...]"
        steps = state.kept.setdefault(self.name, {})
        steps[state.steps] = f"> {state.response}\n{output.strip() or '(no output)'}"
        while len(steps) > self.last:
            del steps[min(steps)]
        state.notes[self.name] = "\n".join(steps.values())


class RunningSummary(Module):
    """A module that notes a summary. A model adds each action and its observation to it.

    Raises the errors of `backend`, and `BadResponse` for an empty summary.
    """

    def __init__(
        self, backend: Backend | str, name: str = "summary", *, prompt: str = SUMMARY_PROMPT
    ) -> None:
        super().__init__(name)
        self.backend: Backend = read_backend(backend)
        self.prompt = prompt

    async def before(self, obs: str | None, state: State) -> None:
        """Add the last action and its observation to the summary."""
        if obs is None or state.response is None:
            return
        if state.steps in state.kept.get(self.name, ()):
            return  # the summary has this step: only the agent's answer is repeated
        memory = state.notes.get(self.name, "(nothing yet)")
        prompt = self.prompt.replace("{memory}", memory)
        step = f"It did: {state.response}\nIt saw: {obs}"
        state.notes[self.name] = await ask_summary(replaced(self.backend), prompt, step)
        state.kept[self.name] = {state.steps: ""}


class Retrieval(Module):
    """A module that notes the first `limit` passages that a search finds for the observation.

    `search` is an `anabranch.knowledge.Index`, whose passages have marks for citation, or an async
    function that takes a question and returns texts. `query`, plain or async, takes the observation
    and the state, and returns the question. If it returns None, the module does not search.
    """

    def __init__(
        self,
        search: Search | Knowledge,
        name: str = "knowledge",
        *,
        limit: int = 3,
        query: Query = lambda obs, _: obs,
    ) -> None:
        super().__init__(name)
        self.search: Search = search if callable(search) else _search_in(search, limit)
        self.limit = limit
        self.query = query

    async def before(self, obs: str | None, state: State) -> None:
        """Search, and note the passages."""
        question = self.query(obs, state)
        if isawaitable(question):
            question = await question
        if question:
            passages = await require_awaitable(self.search(question), self, "search")
            state.notes[self.name] = "\n\n".join(passages[: self.limit])


def _search_in(knowledge: Knowledge, limit: int) -> Search:
    tool = knowledge.as_tool(k=limit)

    async def search(question: str) -> list[str]:
        return [await tool.run({"query": question})]

    return search
