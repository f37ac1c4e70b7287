"""Prompt engineers make a model's prompt of the state and read its answer; `PromptedAgent`."""

from __future__ import annotations

import asyncio
import json
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from inspect import isawaitable
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from ...backends import Backend
from ...commander.durable import scope_here
from ...commander.errors import BadResponse, ConfigurationError, ContextTooLong
from ...commander.kinds import checked, require_awaitable
from ...commander.other_names import NO_TEXT_ADVICE
from ...dispatch import Format
from ...dispatch.assembly import STOPPED
from ...handlers import View
from ...messages import Message, Part
from ...tools.sessions import do_all
from ..layers import Agent, AgentHook, AgentMessage, JsonParser, Memory, SessionId
from ..layers._answer import answer, why_final
from ..layers._memory import cut_middle
from ..layers._message import TOOLS, copy_message
from ..layers._override import A_BACKEND, require_backend
from ..layers._parsers import parse_reply
from ..layers._prompt import fill_template
from ._modules import Module
from ._state import State

__all__ = ["JsonEngineer", "PromptEngineer", "PromptedAgent", "Prompts", "resolve"]

logger = logging.getLogger("anabranch.agents")

S = TypeVar("S", bound=State)
T = TypeVar("T")


class Prompts:
    """Prompts in files `NAME.md`: those in `folder`, else those of this package.

        Prompts("prompts").fill("single_agent", task="Open the chest.", notes="")

    They are templates as for `str.format`. A brace itself is written twice.
    """

    def __init__(self, folder: str | Path | None = None) -> None:
        self.folder: Path | None = None if folder is None else Path(folder)
        if self.folder is not None and not self.folder.is_dir():
            raise FileNotFoundError(f"there is no folder of prompts {str(self.folder)!r}")

    def text(self, name: str) -> str:
        """Return the text of a prompt's file; raise `FileNotFoundError` if there is none."""
        override = None if self.folder is None else self.folder / f"{name}.md"
        if override is not None and override.is_file():
            return override.read_text(encoding="utf-8")
        return files(__package__ or "").joinpath("prompts", f"{name}.md").read_text("utf-8")

    def fill(self, name: str, **values: Any) -> str:
        """Return a prompt with its fields filled in; raise `LookupError` for an unknown field."""
        return fill_template(self.text(name), values, name).strip()


class PromptEngineer(ABC, Generic[S]):
    """Makes the prompts of one agent of an orchestrator, and reads its answers.

        class Greeter(PromptEngineer[State]):
            def render_prompt(self, obs, history, state):
                history[:] = [Message(role="user", content=f"Say hello. You see: {obs}")]

    Its methods may be plain or async.
    """

    @abstractmethod
    def render_prompt(
        self, obs: str | None, history: list[Message], state: S
    ) -> Awaitable[None] | None:
        """Change `history`, the messages of the next request.

        `obs` is the observation since the last answer, None without one. The model's answer is
        added to the history. The history stays for the next answer.
        """

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: S
    ) -> Awaitable[str] | str:
        """Read the model's answer, and return the agent's answer, here the same.

        Store data for other agents in `state`. If the answer cannot be used, call
        `state.signal_error(log, improve)`: the model then reads `improve` and answers again.
        """
        return response

    def shorten(self, history: list[Message]) -> bool:
        """Shorten a prompt that did not fit the model; return False if that is impossible.

        Here it removes the older half of the messages, except for the system's and the last one.
        Without others, the longest of these loses its middle.
        """
        middle = [each for each in history[:-1] if each.role != "system"]
        if middle:
            removed = {id(each) for each in middle[: (len(middle) + 1) // 2]}
            history[:] = [each for each in history if id(each) not in removed]
            return True
        return _cut_longest(history)

    def reset(self) -> None:
        """Forget everything that this object stores outside of the state."""


class JsonEngineer(PromptEngineer[S], Generic[S, T]):
    """Fills the prompt `name`, and reads answers as `model`, any type that pydantic knows.

    The prompt's `{form}` is the instruction about the JSON. An answer that does not fit is signaled
    as an error. A refusal, or a reply that a content filter stopped, is a `BadResponse`.
    `parser.options()` are for the agent's model: with `parser.constrain` the server allows nothing
    but this JSON.
    """

    def __init__(self, name: str, model: type[T], prompts: Prompts) -> None:
        self.name = name
        self.prompts = prompts
        self.parser: JsonParser[T] = JsonParser(model)

    def render_prompt(self, obs: str | None, history: list[Message], state: S) -> None:
        """Make the prompt again, from its file."""
        values = {"form": self.parser.instruction(), **self.values(obs, state)}
        history[:] = [Message(role="user", content=self.prompts.fill(self.name, **values))]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: S
    ) -> str:
        """Read the JSON, and pass the value to `accept`."""
        reply = history[-1] if history else Message(role="assistant")
        try:
            value = parse_reply(self.parser, response, reply.finish_reason)
            accepted = self.accept(value, state)
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
    def accept(self, value: T, state: S) -> str | None:
        """Store the value, or raise `ValueError`; return the agent's answer if it differs."""


class PromptedAgent(Agent[Any], Generic[S]):
    """An agent of an orchestrator. A `PromptEngineer` makes its prompts of the state.

        poet = PromptedAgent("poet", PoetEngineer(), backend)
        orchestrator = Orchestrator([poet], transition, PoetState())

    `modules` run before the prompt is made, in their order, and after a usable answer. A prompt
    that does not fit the model (`ContextTooLong`) is shortened and sent again, until it fits or the
    prompt engineer cannot shorten it. An answer that fails leaves the history in the state
    unchanged. Tool calls that ran for it follow the next prompt. `formats`, `hooks`, `view` and
    `options` are as in `Agent`.

    The state has the agent's history, under `histories`. Its memory stores nothing.
    """

    hands_off = False  # the transition chooses the next agent

    @checked(backend=A_BACKEND)
    def __init__(
        self,
        name: str,
        prompt_engineer: PromptEngineer[S],
        backend: Backend | str,
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
        self.modules: list[Module] = list(modules)

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
            raise ConfigurationError(
                f"{self.name} needs the state of an Orchestrator. Call it there."
            )
        # The tool calls of this answer, and of earlier ones that failed. In `kept`, because a field
        # of their own would change the identities of nodes in journals of earlier releases.
        calls, key = Memory(), f"calls of {self.name}"
        for text in state.kept.get(key, {}).values():
            calls.load(json.loads(text), session_id)
        try:
            reply = await self._answer(obs, state, calls, session_id, options)
        except BaseException as error:
            # A resumed run does not repeat the calls of an answer that was cancelled here, so the
            # state must not have them either.
            is_cancelled = isinstance(error, asyncio.CancelledError) and scope_here() is not None
            calls_that_ran = [
                each for each in calls.messages(session_id) if each.stream_state == "end"
            ]
            calls.replace(calls_that_ran, session_id)
            if calls_that_ran and not is_cancelled:
                state.kept[key] = {state.steps: json.dumps(calls.save(session_id))}
            raise
        state.kept.pop(key, None)
        return reply

    async def _answer(
        self,
        obs: str | None,
        state: S,
        calls: Memory,
        session_id: SessionId,
        options: Mapping[str, Any],
    ) -> AgentMessage[Any]:
        """Answer. The model reads `calls` after the prompt; new tool calls are added to them."""
        engineer, history = self.prompt_engineer, list(state.histories.get(self.name, ()))
        if state.mistake is not None:
            history.append(Message(role="user", content=state.mistake.improve))
        else:
            for module in self.modules:
                await require_awaitable(module.before(obs, state), module, "before")
            await resolve(engineer.render_prompt(obs, history, state))
            if not history or not all(isinstance(m, Message) for m in cast("list[Any]", history)):
                raise TypeError(
                    f"render_prompt of {self.name} must leave Messages in the history, not"
                    f" {history!r:.200}"
                )
        backend = require_backend(self)
        while True:
            request = [*history, *_as_read(calls.messages(session_id))]
            try:
                reply = await answer(self, backend, request, session_id, options, calls)
                break
            except ContextTooLong as error:
                reply = calls.messages(session_id)
                executed = [each.output for each in reply if each.type == TOOLS]
                if not (engineer.shorten(history) or _cut_longest(*executed)):
                    raise
                logger.info("Shortening the prompt of %s: %s", self.name, error)
        state.mistake = None
        status = reply.extra["status"]
        reason = status if status in STOPPED else None
        refusal = reply.extra.get("refusal")
        history.append(
            Message(role="assistant", content=reply.content, refusal=refusal, finish_reason=reason)
        )
        response = await resolve(engineer.process_response(obs, reply.content, history, state))
        if state.mistake is not None:
            response = reply.content
        elif not isinstance(response, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(
                f"process_response of {self.name} must return a text, not {response!r:.200}"
                + (f". {NO_TEXT_ADVICE}" if response is None else "")
            )
        else:
            for module in self.modules:
                await require_awaitable(module.after(response, state), module, "after")
        state.histories[self.name] = history
        return reply.model_copy(update={"content": response})

    @property
    def conversant(self) -> None:
        """None: the state has its history."""

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Reset the prompt engineer and the modules, which may store data outside of the state."""
        resets = (each.reset for each in (self.prompt_engineer, *self.modules))
        do_all([partial(super().reset, session_id, recursive=recursive), *resets])


class NoMemory(Memory):
    """A memory that stores nothing, for an agent with its history in a state."""

    def add(
        self, *messages: AgentMessage | Message | Part | str, session_id: SessionId = 0
    ) -> list[AgentMessage]:
        """Return the messages in their stored form."""
        return [copy_message(message) for message in messages]


async def resolve(value: Awaitable[T] | T) -> T:
    """Return a value, or the result of an awaitable."""
    return await cast("Awaitable[T]", value) if isawaitable(value) else value


def _cut_longest(*lists: list[Message]) -> bool:
    """Remove the middle of the longest message; return False if all are short."""
    places = ((each, place) for each in lists for place in range(len(each)))
    longest = max(
        places, key=lambda position: len(position[0][position[1]].content or ""), default=None
    )
    if longest is None:
        return False
    messages, position = longest
    if (shorter := cut_middle(messages[position].content or "")) is None:
        return False
    messages[position] = messages[position].model_copy(update={"content": shorter})
    return True


def _as_read(calls: Iterable[AgentMessage]) -> list[Message]:
    """Return tool calls, and the messages between them, as the model reads them."""
    messages: list[Message] = []
    for each in calls:
        if each.type == TOOLS:
            messages += each.output
        elif each.stream_state == "end":
            messages.append(Message(role="user", content=each.text, parts=each.parts))
    return messages
