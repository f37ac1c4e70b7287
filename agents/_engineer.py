"""`PromptEngineer` makes what an agent's model reads and reads what it says; `PromptedAgent`."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Sequence
from contextvars import ContextVar
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from ..backends import Backend
from ..commander.errors import ConfigurationError, ContextTooLong
from ..handlers import View
from ..messages import Message
from ._agent import Agent
from ._answer import answer
from ._hook import AgentHook
from ._memory import SessionId
from ._message import AgentMessage
from ._module import Module
from ._state import State

__all__ = ["PromptEngineer", "PromptedAgent", "settled", "shorten"]

logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)
T = TypeVar("T")

_DRAFT: ContextVar[Sequence[Message]] = ContextVar("anabranch_agents_draft", default=())
"""The prompt that is asked in this context, so that orchestrators may share an agent."""

_SHORTEST = 400  # characters of a message that is not cut any more
_LEFT_OUT = "\n[... left out ...]\n"


class PromptEngineer(ABC, Generic[S]):
    """Steers one agent of an orchestrator. Its methods may be plain or async."""

    @abstractmethod
    def render_prompt(
        self, obs: str | None, history: list[Message], state: S
    ) -> Awaitable[None] | None:
        """Change `history`, which is what the model will read, to what it should read now.

        `obs` is what the environment showed since the last answer, None if it was not asked. What
        the model answers is added to the history; without a change it stays for the next time.
        """

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: S
    ) -> Awaitable[str] | str:
        """Read the model's answer and return the agent's, which is the same here.

        What others should know goes into `state`. An answer that cannot be used is told with
        `state.signal_error(log, improve)`: the model is then asked again, and reads `improve`.
        """
        return response

    def shorten(self, history: list[Message]) -> bool:
        """Make a prompt that did not fit the model shorter; return False if it cannot be.

        Here the older half of the messages goes, the system's and the last one excepted; when no
        others are left, the longest of these loses its middle.
        """
        return shorten(history)

    def reset(self) -> None:
        """Forget what this object keeps outside the state."""


class PromptedAgent(Agent[Any], Generic[S]):
    """An agent of an orchestrator, whose prompt is made of the state by a `PromptEngineer`.

    `modules` run before the prompt is made, in their order, and after an answer that can be used.
    A prompt that does not fit the model (`ContextTooLong`) is made shorter and asked again, until
    it fits or the prompt engineer cannot shorten it. An answer that fails leaves the history in
    the state as it was. `hooks`, `view` and `options` are those of `Agent`.
    """

    def __init__(
        self,
        name: str,
        prompt_engineer: PromptEngineer[S],
        backend: Backend,
        *,
        modules: Iterable[Module] = (),
        description: str = "",
        hooks: Iterable[AgentHook] = (),
        view: View | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            backend, name=name, description=description, hooks=hooks, view=view, **options
        )
        self.prompt_engineer = prompt_engineer
        self.modules = list(modules)

    async def forward(
        self,
        *messages: Any,
        session_id: SessionId = 0,
        state: S | None = None,
        obs: str | None = None,
        **options: Any,
    ) -> AgentMessage[Any]:
        """Make the prompt, ask the model, and read its answer."""
        if state is None:
            raise ConfigurationError(f"{self.name} takes its prompt from an Orchestrator's state")
        history = list(state.histories.get(self.name, ()))
        if state.mistake is None:
            await self._render(obs, history, state)
        else:
            history.append(Message(role="user", content=state.mistake.improve))
        said = await self._ask(history, session_id, options)
        state.mistake = None
        history.append(Message(role="assistant", content=said.content))
        response = await self._processed(obs, said.content, history, state)
        state.histories[self.name] = history
        return said.model_copy(update={"content": response})

    async def _render(self, obs: str | None, history: list[Message], state: S) -> None:
        for module in self.modules:
            await module.before(obs, state)
        await settled(self.prompt_engineer.render_prompt(obs, history, state))
        if not history or not all(isinstance(each, Message) for each in cast("list[Any]", history)):
            raise TypeError(
                f"the prompt engineer of {self.name} made no prompt of messages: {history!r:.200}"
            )

    async def _ask(
        self, history: list[Message], session_id: SessionId, options: dict[str, Any]
    ) -> AgentMessage[Any]:
        assert self.backend is not None
        token = _DRAFT.set(history)
        try:
            while True:
                try:
                    return await answer(self, self.backend, session_id, options)
                except ContextTooLong as error:
                    if not self.prompt_engineer.shorten(history):
                        raise
                    logger.info("the prompt of %s is made shorter: %s", self.name, error)
        finally:
            _DRAFT.reset(token)

    async def _processed(self, obs: str | None, said: str, history: list[Message], state: S) -> str:
        response = await settled(self.prompt_engineer.process_response(obs, said, history, state))
        if state.mistake is not None:
            return said
        if not isinstance(response, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"process_response of {self.name} gave no text: {response!r:.200}")
        for module in self.modules:
            await module.after(response, state)
        return response

    def aggregate(self, session_id: SessionId = 0) -> list[Message]:
        """Return what the model is asked just now."""
        return list(_DRAFT.get())

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Forget a session, and what the prompt engineer and the modules keep of any."""
        super().reset(session_id, recursive=recursive)
        self.prompt_engineer.reset()
        for module in self.modules:
            module.reset()


async def settled(value: Awaitable[T] | T) -> T:
    """Return a value, or what an awaitable gives."""
    return await cast("Awaitable[T]", value) if isawaitable(value) else value


def shorten(history: list[Message]) -> bool:
    """Make a prompt shorter, see `PromptEngineer.shorten`."""
    middle = [each for each in history[:-1] if each.role != "system"]
    if middle:
        gone = {id(each) for each in middle[: (len(middle) + 1) // 2]}
        history[:] = [each for each in history if id(each) not in gone]
        return True
    at = max(range(len(history)), key=lambda each: len(history[each].content or ""))
    content = history[at].content or ""
    if len(content) <= _SHORTEST:
        return False
    keep = len(content) // 4
    shorter = content[:keep] + _LEFT_OUT + content[-keep:]
    history[at] = history[at].model_copy(update={"content": shorter})
    return True
