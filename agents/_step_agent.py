"""`StepAgent`: it thinks, uses plugins or runs code, and goes on until it has an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

from ..backends import Backend
from ..tools import AnyTool, Toolkit, describe
from ._agent import Agent
from ._aggregator import Aggregator, System, ToolAggregator
from ._executor import ToolExecutor
from ._hook import AgentHook, text_action
from ._memory import SessionId
from ._message import AgentMessage
from ._parser import Parser
from ._steps import Step
from ._tool_parser import InterpreterParser, MixedToolParser, PluginParser, ToolAction

__all__ = ["StepAgent"]


def no_tool(message: AgentMessage[ToolAction]) -> bool:
    """Say whether a reply has no action in it."""
    return message.formatted["status"] == "none"


class StepAgent(Agent[ToolAction]):
    """An agent whose model writes its calls as text; it works with any model that can write.

    `plugins` are tools, called with JSON. `interpreter` makes a toolkit that runs code, mostly
    `PythonKernel`: each session gets one of its own, which ends with `aclose` (or `async with`),
    or with what the toolkit itself is bound to. A call that cannot be used, or that failed, is
    told to the model, which may mend it.

    It goes on until a reply is `finished` (without a call, if nothing else is said), at most for
    `max_turns` replies; then the last one is the answer, its `extra["status"]` "max_turns", and
    what it calls does not run. Action hooks see each call. `options` go to the inner agent, whose
    memory has it all: `get_steps` reads it.
    """

    def __init__(
        self,
        backend: Backend,
        system: System | None = None,
        *,
        plugins: Iterable[AnyTool | Toolkit] = (),
        interpreter: Callable[[], Toolkit] | None = None,
        output_format: Parser[ToolAction] | None = None,
        aggregator: Aggregator | None = None,
        finished: Callable[[AgentMessage[ToolAction]], bool] = no_tool,
        name: str | None = None,
        description: str = "",
        hooks: Iterable[AgentHook] = (),
        max_turns: int = 4,
        **options: Any,
    ) -> None:
        if max_turns < 1:
            raise ValueError(f"max_turns must be at least 1, not {max_turns!r}")
        super().__init__(name=name, description=description, hooks=hooks, max_turns=max_turns)
        self.finished = finished
        self.interpreter = interpreter
        plugins = list(plugins)
        self._plugins = self._executor("plugin", plugins) if plugins else None
        self._kernels: dict[SessionId, tuple[Toolkit, ToolExecutor]] = {}
        self.agent = Agent(
            backend,
            system,
            name=self.name,
            output_format=output_format or default_parser(plugins, code=interpreter is not None),
            aggregator=aggregator or ToolAggregator(),
            **options,
        )

    async def forward(
        self, *messages: Any, session_id: SessionId = 0, **options: Any
    ) -> AgentMessage[ToolAction]:
        """Think, act, and think again."""
        answer = await self.agent(*messages, session_id=session_id, **options)
        for _ in range(self.max_turns - 1):
            if self.finished(answer):
                return answer
            result = await self.act(answer, session_id)
            answer = await self.agent(result, session_id=session_id, **options)
        if not self.finished(answer):
            answer.extra["status"] = "max_turns"
        return answer

    async def act(
        self, message: AgentMessage[ToolAction], session_id: SessionId = 0
    ) -> AgentMessage:
        """Run the action of a reply; whatever goes wrong is told in what is returned."""
        action = message.formatted
        executor = self.executor(action["tool_type"], session_id)
        if action["status"] == "invalid":
            said = f"Error: {action['error']}"
        elif action["tool_type"] is None:
            said = "Go on."
        elif executor is None:
            said = f"Error: there is no {action['tool_type']!r} here"
        else:
            return await executor(message)
        return AgentMessage(content=said, sender="tools", receiver=self.name, type="tool_result")

    def executor(self, tool_type: str | None, session_id: SessionId = 0) -> ToolExecutor | None:
        """Return what runs the actions of this type in a session, None if nothing does."""
        if tool_type == "plugin":
            return self._plugins
        if tool_type != "interpreter" or self.interpreter is None:
            return None
        if session_id not in self._kernels:
            toolkit = self.interpreter()
            self._kernels[session_id] = toolkit, self._interpreter(toolkit)
        return self._kernels[session_id][1]

    def _interpreter(self, toolkit: Toolkit) -> ToolExecutor:
        executor = self._executor("interpreter", [toolkit])
        tool = toolkit.tools[0]
        executor.before_action(text_action(tool.name, next(iter(tool.parameters["properties"]))))
        return executor

    def _executor(self, name: str, tools: Iterable[AnyTool | Toolkit]) -> ToolExecutor:
        executor = ToolExecutor(tools, name=name)
        executor.before_action(lambda _, sent: self.hooks_of("before_action").run(self, sent))
        executor.after_action(lambda _, given: self.hooks_of("after_action").run(self, given))
        return executor

    def get_steps(self, session_id: SessionId = 0) -> list[Step]:
        """Return the thoughts, calls and results of a session."""
        return self.agent.get_steps(session_id)

    async def aclose(self) -> None:
        """End the interpreters; twice is harmless, and the next call starts another."""
        while self._kernels:
            _, (toolkit, _) = self._kernels.popitem()
            await toolkit.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


def default_parser(plugins: Iterable[AnyTool | Toolkit], *, code: bool) -> MixedToolParser:
    """Return a parser for JSON calls of `plugins` and for Python code, as there are."""
    known = describe(plugins, "list")
    template = f"You have these tools:\n{known}" if known else ""
    parsers = [*([PluginParser()] if known else []), *([InterpreterParser()] if code else [])]
    return MixedToolParser(parsers, template=template)
