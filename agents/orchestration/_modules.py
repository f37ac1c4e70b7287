"""Modules: what happens before an agent's prompt is made, and after its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from inspect import isawaitable
from typing import Any

from ...backends import Backend
from ...commander.awaitable import require_awaitable
from ..layers._answer import Knowledge
from ..layers._memory import ask_summary
from ._state import State

__all__ = ["ListMemory", "Module", "Retrieval", "RunningSummary"]

Search = Callable[[str], Awaitable[Sequence[str]]]
Query = Callable[[str | None, Any], Awaitable[str | None] | str | None]

SUMMARISE = """You are the memory of an agent. Add what it did and saw to what you remember:
{memory}

Answer with all that is worth remembering, each fact once, and with nothing else."""


class Module:
    """Adds something to the agents that have it; what it finds it puts into `state.notes`.

    `name` is its key there. What it keeps belongs into `state.kept`: then a saved run has it, and a
    module may be given to several agents and orchestrators.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def before(self, obs: str | None, state: State) -> None:
        """See what the environment showed, before the prompt is made."""

    async def after(self, response: str, state: State) -> None:
        """See an answer that can be used."""

    def reset(self) -> None:
        """Forget what this object keeps outside the state."""


class ListMemory(Module):
    """Notes the last environment steps: what was done and, cut to `max_output`, what came of it."""

    def __init__(self, name: str = "memory", *, last: int = 10, max_output: int = 2000) -> None:
        super().__init__(name)
        if last < 1 or max_output < 1:
            raise ValueError(f"last={last!r}, max_output={max_output!r}: must be at least 1")
        self.last = last
        self.max_output = max_output

    async def before(self, obs: str | None, state: State) -> None:
        """Note a step."""
        if obs is None or state.response is None:
            return
        shown = obs if len(obs) <= self.max_output else f"{obs[: self.max_output]} [...]"
        kept = state.kept.setdefault(self.name, {})
        kept[state.steps] = f"> {state.response}\n{shown.strip() or '(no output)'}"
        while len(kept) > self.last:
            del kept[min(kept)]
        state.notes[self.name] = "\n".join(kept.values())


class RunningSummary(Module):
    """Notes a summary, to which a model adds each environment step.

    Raises what `backend` raises, and `BadResponse` for an empty summary.
    """

    def __init__(self, backend: Backend, name: str = "summary", *, prompt: str = SUMMARISE) -> None:
        super().__init__(name)
        self.backend = backend
        self.prompt = prompt

    async def before(self, obs: str | None, state: State) -> None:
        """Add a step to the summary."""
        if obs is None or state.response is None:
            return
        if state.steps in state.kept.get(self.name, ()):
            return  # the answer after it failed, and is asked for again
        memory = state.notes.get(self.name, "(nothing yet)")
        prompt = self.prompt.replace("{memory}", memory)
        step = f"It did: {state.response}\nIt saw: {obs}"
        state.notes[self.name] = await ask_summary(self.backend, prompt, step)
        state.kept[self.name] = {state.steps: ""}


class Retrieval(Module):
    """Notes what is found for what the environment shows.

    `search` is an `anabranch.knowledge.Index`, whose first `limit` passages are noted as data that
    can be cited, or an async function from a question to texts, of which the first `limit` are
    noted. `query`, plain or async, makes the question of the observation and the state; None does
    not ask.
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
        self.search = search if callable(search) else _search_in(search, limit)
        self.limit = limit
        self.query = query

    async def before(self, obs: str | None, state: State) -> None:
        """Search."""
        question = self.query(obs, state)
        if isawaitable(question):
            question = await question
        if question:
            found = await require_awaitable(self.search(question), self, "search")
            state.notes[self.name] = "\n\n".join(found[: self.limit])


def _search_in(knowledge: Knowledge, limit: int) -> Search:
    tool = knowledge.as_tool(k=limit)

    async def search(question: str) -> list[str]:
        return [await tool.run({"query": question})]

    return search
