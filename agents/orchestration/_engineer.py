"""`PromptEngineer` makes what an agent's model reads and reads what it says; `PromptedAgent`."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from ...backends import Backend
from ...commander.awaitable import require_awaitable
from ...commander.errors import BadResponse, ConfigurationError, ContextTooLong
from ...commander.kinds import checked
from ...commander.scope import scope_here
from ...dispatch import Format
from ...dispatch.assembly import STOPPED
from ...handlers import View
from ...messages import Message, Part
from ...tools.sessions import do_all
from ..layers import Agent, AgentHook, AgentMessage, JsonParser, Memory, SessionId
from ..layers._answer import answer, why_final
from ..layers._memory import cut_middle
from ..layers._message import TOOLS, copy_message
from ._modules import Module
from ._state import State
from ._strategy import Prompts

__all__ = ["JsonEngineer", "PromptEngineer", "PromptedAgent", "resolve", "shorten"]

logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)
T = TypeVar("T")


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


class JsonEngineer(PromptEngineer[S], Generic[S, T]):
    """Fills the prompt `name`, and reads answers as `model`, any type that pydantic knows.

    The prompt's `{form}` is what the model is told about the JSON. An answer that does not fit is
    signalled; a refusal, or a reply that a content filter stopped, is a `BadResponse`.
    `parser.options()` are for the agent's model: once `parser.constrain` is set, the server allows
    nothing but what fits.
    """

    def __init__(self, name: str, model: type[T], prompts: Prompts) -> None:
        self.name = name
        self.prompts = prompts
        self.parser: JsonParser[T] = JsonParser(model)

    def render_prompt(self, obs: str | None, history: list[Message], state: S) -> None:
        """Make the prompt anew."""
        values = {"form": self.parser.instruction(), **self.values(obs, state)}
        history[:] = [Message(role="user", content=self.prompts.fill(self.name, **values))]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: S
    ) -> str:
        """Read it, and let `accept` take it."""
        reply = history[-1] if history else Message(role="assistant")
        parse = self.parser.parse_cut if reply.finish_reason in STOPPED else self.parser.parse
        try:
            accepted = self.accept(parse(response), state)
        except ValueError as error:
            if final := why_final(reply):
                raise BadResponse(f"{self.name} gave no usable answer: {final}") from error
            improve = f"That cannot be used: {error}\nAnswer again, correctly."
            state.signal_error(str(error), improve)
            return response
        return response if accepted is None else accepted

    @abstractmethod
    def values(self, obs: str | None, state: S) -> Mapping[str, Any]:
        """Return the values for the prompt's fields."""

    @abstractmethod
    def accept(self, said: T, state: S) -> str | None:
        """Take what was said, or raise `ValueError`; return the agent's answer if it is another."""


class PromptedAgent(Agent[Any], Generic[S]):
    """An agent of an orchestrator, whose prompt is made of the state by a `PromptEngineer`.

    `modules` run before the prompt is made, in their order, and after an answer that can be used.
    A prompt that does not fit the model (`ContextTooLong`) is made shorter and asked again, until
    it fits or the prompt engineer cannot shorten it. An answer that fails leaves the history in
    the state as it was; calls of tools that have run for it stand behind its next prompt.
    `formats`, `hooks`, `view` and `options` are those of `Agent`.

    All that it has read and said stands in the state, under `histories`: its memory keeps nothing.
    """

    @checked
    def __init__(
        self,
        name: str,
        prompt_engineer: PromptEngineer[S],
        backend: Backend,
        *,
        modules: Iterable[Module] = (),
        description: str = "",
        formats: Sequence[Format] | None = None,
        hooks: Iterable[AgentHook | object] = (),
        view: View | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            backend,
            name=name,
            description=description,
            memory=NoMemory(),
            formats=formats,
            hooks=hooks,
            view=view,
            **options,
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
        # Of this answer, and of those before it that have failed. Not a field of its own: that
        # would change the identities of nodes in journals of earlier releases.
        calls, key = Memory(), f"calls of {self.name}"
        for text in state.kept.get(key, {}).values():
            calls.load(json.loads(text), session_id)
        try:
            said = await self._answer(obs, state, calls, session_id, options)
        except BaseException as error:
            # A later life of a durable run does not come to what was cut short in this one.
            cut = isinstance(error, asyncio.CancelledError) and scope_here() is not None
            ran = [each for each in calls.messages(session_id) if each.stream_state == "end"]
            calls.replace(ran, session_id)
            if ran and not cut:
                state.kept[key] = {state.steps: json.dumps(calls.save(session_id))}
            raise
        state.kept.pop(key, None)
        return said

    async def _answer(
        self,
        obs: str | None,
        state: S,
        calls: Memory,
        session_id: SessionId,
        options: Mapping[str, Any],
    ) -> AgentMessage[Any]:
        """Answer; the model reads `calls` behind the prompt, and those of this answer are added."""
        engineer, history = self.prompt_engineer, list(state.histories.get(self.name, ()))
        if state.mistake is not None:
            history.append(Message(role="user", content=state.mistake.improve))
        else:
            for module in self.modules:
                await require_awaitable(module.before(obs, state), module, "before")
            await resolve(engineer.render_prompt(obs, history, state))
            if not history or not all(isinstance(m, Message) for m in cast("list[Any]", history)):
                raise TypeError(
                    f"the prompt engineer of {self.name} made no prompt of messages: "
                    f"{history!r:.200}"
                )
        assert self.backend is not None
        while True:
            request = [*history, *_as_read(calls.messages(session_id))]
            try:
                said = await answer(self, self.backend, request, session_id, options, calls)
                break
            except ContextTooLong as error:
                said = calls.messages(session_id)
                ran = [each.formatted for each in said if each.type == TOOLS]
                if not (engineer.shorten(history) or _cut_longest(*ran)):
                    raise
                logger.info("the prompt of %s is made shorter: %s", self.name, error)
        state.mistake = None
        status = said.extra["status"]
        reason = status if status in STOPPED else None
        refusal = said.extra.get("refusal")
        history.append(
            Message(role="assistant", content=said.content, refusal=refusal, finish_reason=reason)
        )
        response = await resolve(engineer.process_response(obs, said.content, history, state))
        if state.mistake is not None:
            response = said.content
        elif not isinstance(response, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"process_response of {self.name} gave no text: {response!r:.200}")
        else:
            for module in self.modules:
                await require_awaitable(module.after(response, state), module, "after")
        state.histories[self.name] = history
        return said.model_copy(update={"content": response})

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Forget what the prompt engineer and the modules keep outside the state."""
        own = (each.reset for each in (self.prompt_engineer, *self.modules))
        do_all([partial(super().reset, session_id, recursive=recursive), *own])


class NoMemory(Memory):
    """Keeps nothing, for an agent whose history stands elsewhere."""

    def add(
        self, *messages: AgentMessage | Message | Part | str, session_id: SessionId = 0
    ) -> list[AgentMessage]:
        """Return the messages as they would be kept."""
        return [copy_message(message) for message in messages]


async def resolve(value: Awaitable[T] | T) -> T:
    """Return a value, or what an awaitable gives."""
    return await cast("Awaitable[T]", value) if isawaitable(value) else value


def shorten(history: list[Message]) -> bool:
    """Make a prompt shorter, see `PromptEngineer.shorten`."""
    middle = [each for each in history[:-1] if each.role != "system"]
    if middle:
        gone = {id(each) for each in middle[: (len(middle) + 1) // 2]}
        history[:] = [each for each in history if id(each) not in gone]
        return True
    return _cut_longest(history)


def _cut_longest(*lists: list[Message]) -> bool:
    """Let the longest message of these lists lose its middle; return False if all are short."""
    places = ((each, place) for each in lists for place in range(len(each)))
    found = max(places, key=lambda at: len(at[0][at[1]].content or ""), default=None)
    if found is None:
        return False
    messages, at = found
    if (shorter := cut_middle(messages[at].content or "")) is None:
        return False
    messages[at] = messages[at].model_copy(update={"content": shorter})
    return True


def _as_read(calls: Iterable[AgentMessage]) -> list[Message]:
    """Return calls of tools, and what the model was told between them, as the model reads them."""
    found: list[Message] = []
    for each in calls:
        if each.type == TOOLS:
            found += each.formatted
        elif each.stream_state == "end":
            found.append(Message(role="user", content=each.text, parts=each.parts))
    return found
