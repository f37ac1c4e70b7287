"""`Agent`: a model with a prompt, tools and a memory; agents are layers of larger agents."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeAlias, get_args

from typing_extensions import TypeVar

from ..backends import Backend
from ..commander import run
from ..commander.errors import ConfigurationError
from ..handlers import View
from ..messages import Message
from ..tools import AnyTool, Toolkit
from ..tools.toolkits import flatten
from ._aggregator import Aggregator, System, read_system
from ._answer import answer
from ._call import AgentCall, listen, run_call
from ._hook import AgentHook, AgentHookHandle, hooked
from ._memory import Memory, SessionId, copied
from ._message import AgentMessage
from ._message_hooks import Hook, HookHandle, Hooks
from ._parser import Parser
from ._steps import Step, steps_of
from ._structure import describe_structure, restore, walk

__all__ = ["Agent"]

F = TypeVar("F", default=Any)

Moment: TypeAlias = Literal["before_agent", "after_agent", "before_action", "after_action"]


class Agent(Generic[F]):
    """Takes messages and answers with one; what it heard and said is its memory.

        agent = Agent(backend, "You answer in one word.")
        answer = await agent("Which is the longest river?")

    Called inside a node it is a child of that node, so that cancellation, timeouts, limits and
    events reach it; outside it runs under a commander of its own. `session_id` keeps conversations
    apart: calls in different sessions may run at once.

    By default an agent asks its model, with its tools, until there is an answer: after `max_turns`
    replies with tool calls the model has to answer without (then the answer's `extra["status"]` is
    "max_turns"; else it is "ok", or "length" for one that was cut off). A subclass does something
    else in `forward`, mostly with agents that it holds as attributes.

    - `system`: a string, a message, or a list of messages.
    - `memory`, `aggregator`: what is remembered, and how it becomes a request.
    - `output_format`: a parser, which gives the answer its `formatted`.
    - `hooks`: objects with some of the methods of `AgentHook`.
    - `view`: sees text, calls and results as they come, and is asked whether a tool may run.
    - `options`: for the model, by the wire's names; those of a call win.

    `description` says what the agent is for, to those who choose among agents.
    """

    def __init__(
        self,
        backend: Backend | None = None,
        system: System | None = None,
        *,
        tools: Iterable[AnyTool | Toolkit] = (),
        name: str | None = None,
        description: str = "",
        memory: Memory | None = None,
        aggregator: Aggregator | None = None,
        output_format: Parser[F] | None = None,
        hooks: Iterable[AgentHook] = (),
        max_turns: int = 10,
        view: View | None = None,
        **options: Any,
    ) -> None:
        read_system(system)  # what is none is refused here
        self.backend = backend
        self.system = system
        self.tools = flatten(tools)
        self.name = name or type(self).__name__
        self.description = description
        self.memory = memory or Memory()
        self.aggregator = aggregator or Aggregator()
        self.output_format = output_format
        self.max_turns = max_turns
        self.view = view
        self.options = options
        self._hooks: dict[Moment, Hooks] = {moment: Hooks() for moment in get_args(Moment)}
        for each in hooks:
            self.add_hook(each)

    # --- calls

    async def __call__(
        self, *messages: AgentMessage | str, session_id: SessionId = 0, **options: Any
    ) -> AgentMessage[F]:
        """Take messages (strings are the user's) and return the answer.

        Raises what its backend, its hooks or its `forward` raise, `BadResponse` if the model gives
        no answer that `output_format` can use, `TypeError` for what is no message. Cancelling it
        cancels everything below, and waits for that.
        """
        return await run_call(self.call(*messages, session_id=session_id, **options))

    def call(
        self, *messages: AgentMessage | str, session_id: SessionId = 0, **options: Any
    ) -> AgentCall[F]:
        """Make the same call as a node that has not started.

        For `node.call_handler(agent.call("..."), timeout=20)` and `commander.run(...)`.
        """
        return AgentCall(self, [copied(each) for each in messages], session_id, options)

    def run_sync(
        self, *messages: AgentMessage | str, session_id: SessionId = 0, **options: Any
    ) -> AgentMessage[F]:
        """Answer in a program without a loop, and block meanwhile."""
        return run(self.call(*messages, session_id=session_id, **options))

    def stream(
        self, *messages: AgentMessage | str, session_id: SessionId = 0, **options: Any
    ) -> AsyncGenerator[AgentMessage, None]:
        """Answer, and give all that is said on the way, as it grows; the answer comes last.

        A reply comes as messages whose `stream_state` is "begin", then "streaming"; each has the
        text so far, and what is new in `extra["delta"]`. "failed" ends one that broke off or could
        not be used, and the failure of the call is raised at the end. Calls and results of tools
        are messages of type "tool_call" and "tool_result"; agents below say their own, and each
        answer is a message in state "end".

        Closing the generator cancels the call: use `contextlib.aclosing` if you may leave early.
        """
        return listen(self.call(*messages, session_id=session_id, **options))

    async def forward(self, *messages: Any, **options: Any) -> AgentMessage[F] | str:
        """Answer messages that are in the memory already; subclasses write their own.

        It is called with the messages, `session_id=` and the options of the call. A string that is
        returned becomes the agent's message. Without messages the model continues the session as
        it stands.
        """
        # Declared so loosely that type checkers let a subclass name what it takes.
        session_id: SessionId = options.pop("session_id", 0)
        if self.backend is None:
            raise ConfigurationError(f"{self.name} has no backend: give it one, or write forward()")
        return await answer(self, self.backend, session_id, options)

    def aggregate(self, session_id: SessionId = 0) -> list[Message]:
        """Return what the model would be asked in this session."""
        return self.aggregator.aggregate(
            self.memory.get(session_id), self.name, self.output_format, self.system
        )

    # --- hooks

    def before_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message)`, plain or async, with each message that comes.

        A message that it returns takes the place of the one it was given. The handle removes it.
        """
        return self._hooks["before_agent"].add(hook)

    def after_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, answer)` with each answer; the rest is as in `before_agent`."""
        return self._hooks["after_agent"].add(hook)

    def before_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message)` before each call of a tool, its `formatted`."""
        return self._hooks["before_action"].add(hook)

    def after_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message)` with what each tool gave, as `content`."""
        return self._hooks["after_action"].add(hook)

    def add_hook(self, hook: AgentHook) -> AgentHookHandle:
        """Add all four methods of an object; the handle removes them."""
        handles = [hooks.add(getattr(hook, moment)) for moment, hooks in self._hooks.items()]
        return AgentHookHandle(handles)

    def hooks_of(self, moment: Moment) -> Hooks:
        """Return the hooks for one moment."""
        return self._hooks[moment]

    def hooked_tools(self) -> Sequence[AnyTool]:
        """Return the tools as the model's calls reach them, through the hooks."""
        return hooked(self, self.tools, self._hooks["before_action"], self._hooks["after_action"])

    # --- the structure

    def state_dict(self, session_id: SessionId = 0) -> dict[str, Any]:
        """Return the memories of this agent and all below it in one session, as JSON values.

        The keys are attribute paths: `memory`, `writer.memory`, `critics.0.memory`.
        """
        return {key: agent.memory.save(session_id) for key, agent in self._memories().items()}

    def load_state_dict(self, state: Mapping[str, Any], session_id: SessionId = 0) -> None:
        """Put what `state_dict` returned in the place of a session.

        Raises `ConfigurationError`, and changes nothing, if the keys or the values do not fit.
        """
        agents = self._memories()
        if missing := sorted(agents.keys() - state.keys()):
            raise ConfigurationError(f"the state lacks {missing}")
        if unknown := sorted(state.keys() - agents.keys()):
            raise ConfigurationError(f"{self.name} has nothing of the state's {unknown}")
        restored = {key: restore(agent, state[key]) for key, agent in agents.items()}
        for key, messages in restored.items():
            agents[key].memory.replace(messages, session_id)

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Forget a session, in all agents below too unless not `recursive`."""
        for agent in walk(self).values() if recursive else (self,):
            agent.memory.reset(session_id)

    def get_steps(self, session_id: SessionId = 0) -> list[Step]:
        """Return the thoughts, calls and results of a session; the last thought is the answer."""
        return steps_of(self.memory.messages(session_id), self.name)

    def _memories(self) -> dict[str, Agent[Any]]:
        return {f"{path}.memory" if path else "memory": agent for path, agent in walk(self).items()}

    def __repr__(self) -> str:
        return describe_structure(self)
