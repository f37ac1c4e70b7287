"""`Agent`: a model with a prompt, tools and a memory; agents are layers of larger agents."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, cast, get_args

from typing_extensions import TypeVar

from ...backends import Backend
from ...commander import Node, NodeLimits, run
from ...commander.awaitable import require_awaitable
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked, require
from ...dispatch import Format
from ...dispatch.assembly import STOPPED
from ...handlers import View
from ...messages import Message, Part, Usage
from ...messages.options import WIRE_OPTIONS, check_options, parameters_of
from ...tools import AnyTool, Approve, Toolkit
from ...tools.sessions import ToolSessions, close_all, do_all
from ...tools.toolkits import flatten
from ._actions import AgentStep, check_formats, list_steps
from ._aggregators import Aggregator, System, read_system
from ._answer import Knowledge, answer
from ._call import OUTER_SESSION, AgentCall, JournalCall, UsageTotals, run_in_tree, stream_call
from ._hooks import (
    AgentHook,
    AgentHookHandle,
    Hook,
    HookedTool,
    HookHandle,
    Hooks,
    Moment,
    methods_of,
)
from ._memory import Memory, SessionId, SummaryMemory, TemporarySession
from ._message import AgentMessage, read_inputs
from ._parsers import Parser
from ._state import mark_own, read_again, read_records, read_state

if TYPE_CHECKING:
    from ...store import Journal
    from ._interrupted import InterruptedCall
    from ._sessions import JournalSessions


__all__ = ["Agent", "describe_agent"]

F = TypeVar("F", default=Any)

ODD_KEY = re.compile(r"[.\[\]\ud800-\udfff]")  # cannot stand in a path as it is


class Agent(Generic[F]):
    """Takes messages and answers with one, and remembers all of them.

        agent = Agent(backend, "You answer in one word.")
        answer = await agent("Which is the longest river?")

    Called inside a node, or in a commander's block, it is a child of that, so that cancellation,
    timeouts, limits and events reach it; outside it runs under a commander of its own.

    A call remembers its messages in the session that `session_id` names, and the next call in it
    reads them; calls in different sessions may run at once. A call without a session remembers
    nothing beyond itself, so that users of one agent never read each other's messages; with a
    `memory` of your own it is in session 0.

    By default an agent asks its model, with its tools, until there is an answer: after `max_rounds`
    replies with tool calls the model has to answer without (then the answer's `extra["status"]` is
    "max_rounds"; else it is "ok", or "length" or "content_filter" for one that was cut off). A
    subclass does something else in `forward`, mostly with agents that it holds as attributes.

    - `system`: a string, a message, or a list of messages.
    - `knowledge`: documents, as an `anabranch.knowledge.Index`. They are searched for each question
      before the model is asked, which may search on by a tool; what it cites as `[7]` stands in the
      answer's `extra["citations"]`.
    - `memory`, `aggregator`: what is remembered, and how it becomes a request.
    - `output_format`: a parser, which gives the answer its `formatted`.
    - `formats`: how the model writes calls into its text, see `respond`; None: the backend's.
    - `hooks`: objects with some of the methods of `AgentHook`.
    - `view`: sees text, calls and results as they come, and is asked whether a tool may run.
    - `approve`: is asked in its place, also for agents below that name neither: a function of a
      `ToolQuestion`, or an `Approvals`.
    - `journal`: a file's name or a `Journal`, which keeps each session under "NAME/SESSION": a call
      goes on where an earlier process was ended in it. Every call names its session then.
    - `options`: for the model, by the wire's names; those of a call win, where what a subclass's
      `forward` names is taken too. Any other name is a `ConfigurationError` with the nearest one.

    `description` says what the agent is for, to those who choose among agents.

    In its memory the messages of its `name` are its own, the assistant's for the model. Without a
    name it is called after its class, as others may be: then what it is given by one of that name
    is another's. The name "user" is a `ConfigurationError`.
    """

    # Who sends messages to all agents of this class: none of them can have such a name.
    _reserved_names: ClassVar[Sequence[str]] = ("user",)

    @checked(approve="a function that is asked, Approvals() or None")
    def __init__(
        self,
        backend: Backend | None = None,
        system: System | None = None,
        *,
        tools: Iterable[AnyTool | Toolkit] = (),
        knowledge: Knowledge | None = None,
        name: str | None = None,
        description: str = "",
        memory: Memory | None = None,
        aggregator: Aggregator | None = None,
        output_format: Parser[F] | None = None,
        formats: Sequence[Format] | None = None,
        hooks: Iterable[AgentHook | object] = (),
        max_rounds: int = 10,
        view: View | None = None,
        approve: Approve | None = None,
        journal: str | Journal | None = None,
        **options: Any,
    ) -> None:
        reserved = [
            *self._reserved_names,
            *(["memory"] if isinstance(memory, SummaryMemory) else []),
        ]
        if name in reserved:
            raise ConfigurationError(
                f"no agent can be called {name!r}: it would take the messages of the {name} for its"
                " own; give it another name="
            )
        read_system(system)  # what is none is refused here
        check_options(options, f"the agent {name or type(self).__name__!r}", of=type(self))
        check_formats(formats)
        require(journal, str | None, "journal must be a file's name or a Journal", like="session")
        self.backend = backend
        self.system = system
        self.knowledge = knowledge
        self.knowledge_tool = None if knowledge is None else knowledge.as_tool()
        own = () if self.knowledge_tool is None else (self.knowledge_tool,)
        self.tools = flatten([*flatten(tools), *own])
        self.name = name or type(self).__name__
        # Whether whoever bears this name is this agent: not so for a class's name, nor for "user",
        # which a person among conversable agents may have.
        self._has_own_name = self.name not in ("user", type(self).__name__)
        self.description = description
        self._default_memory = Memory()
        self.memory = memory or self._default_memory
        self.aggregator = aggregator or Aggregator()
        self.output_format = output_format
        self.formats = formats
        self.max_rounds = max_rounds
        self.view = view
        self.approve = approve
        self.journal = journal
        self._kept: JournalSessions | None = None
        self.options = options
        self.usage_totals = UsageTotals()
        self.tool_sessions = ToolSessions()
        self._hooks: dict[Moment, Hooks] = {moment: Hooks() for moment in get_args(Moment)}
        for each in hooks:
            self.add_hook(each)

    # --- calls

    async def __call__(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        **options: Any,
    ) -> AgentMessage[F]:
        """Take messages (strings and parts are the user's) and return the answer.

        A `Message` of the assistant is one that this agent has said before, so a history can be
        given, but not as the last; results of tools follow the message that calls them.

        Raises what its backend, its hooks or its `forward` raise, `BadResponse` if the model gives
        no answer that `output_format` can use, `TypeError` for what is no message, `ValueError` for
        tool calls without their results. Cancelling it cancels everything below, and waits.
        """
        return await run_in_tree(self.call(*messages, session_id=session_id, **options))

    def call(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        **options: Any,
    ) -> AgentCall[F]:
        """Make the same call as a node that has not started.

        For `node.call_handler(agent.call("..."), timeout=20)` and `commander.run(...)`.
        """
        if not options.keys() <= WIRE_OPTIONS:
            takes = ["session_id", *parameters_of(type(self).forward)]
            check_options(options, f"a call of {self.name!r}", takes=takes)
        nameless = session_id is None and not self.has_own_memory
        kind: type[AgentCall[F]] = AgentCall
        if self.journal is not None and not (nameless and OUTER_SESSION.get() is not None):
            if nameless or isinstance(session_id, TemporarySession):
                raise ConfigurationError(
                    f"{self.name} keeps its sessions in a journal, and a call without a name for"
                    " one would be lost: give it session_id="
                )
            kind = JournalCall
        return kind(self, read_inputs(messages, self.name), session_id, options)

    def run_sync(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        **options: Any,
    ) -> AgentMessage[F]:
        """Answer in a program without a loop, and block meanwhile."""
        return run(self.call(*messages, session_id=session_id, **options))

    def stream(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        parent: Node[Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
        **options: Any,
    ) -> AsyncGenerator[AgentMessage, None]:
        """Answer, and give all messages on the way, while they grow; the answer comes last.

        A reply comes as messages whose `stream_state` is "begin", then "streaming"; each has the
        text so far, and what is new in `extra["delta"]`. "failed" ends one that broke off or could
        not be used, and the failure of the call is raised at the end. Calls and results of tools
        are messages of type "tool_call" and "tool_result"; agents below say their own, and each
        answer is a message in state "end".

        The call is a child of `parent`, as of a commander whose limits are to hold, by default of
        the current node. `timeout`, in seconds, and `limits` are as in `call_handler`: they hold
        for the call and all below it. Closing the generator cancels the call: use
        `contextlib.aclosing` if you may leave early.
        """
        call = self.call(*messages, session_id=session_id, **options)
        return stream_call(call, parent, timeout=timeout, limits=limits)

    async def forward(self, *messages: Any, **options: Any) -> AgentMessage[F] | str:
        """Answer messages that are in the memory already; subclasses write their own.

        It is called with the messages, `session_id=` and the options of the call. Pass the session
        on to agents below that are to remember as long as this call does. A string that is returned
        becomes the agent's message. Without messages the model continues the session as it stands.
        """
        # Declared so loosely that type checkers let a subclass name what it takes.
        session_id: SessionId = options.pop("session_id", 0)
        if self.backend is None:
            raise ConfigurationError(f"{self.name} has no backend: give it one, or write forward()")
        await require_awaitable(self.memory.prepare(session_id), self.memory, "prepare")
        return await answer(self, self.backend, self.aggregate(session_id), session_id, options)

    def aggregate(self, session_id: SessionId = 0) -> list[Message]:
        """Return the request to the model in this session."""
        return self.aggregator.aggregate(
            self.memory.get(session_id), self.name, self.output_format, self.system
        )

    # --- hooks

    def before_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)`, plain or async, with each message that comes.

        A message that it returns takes the place of the one it was given. The handle removes it.
        """
        return self._hooks["before_agent"].add(hook)

    def after_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, answer, session_id)` with each answer; see `before_agent`."""
        return self._hooks["after_agent"].add(hook)

    def before_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)` before each call of a tool, its `formatted`."""
        return self._hooks["before_action"].add(hook)

    def after_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)` with what each tool gave, as `content`."""
        return self._hooks["after_action"].add(hook)

    def add_hook(self, hook: AgentHook | object) -> AgentHookHandle:
        """Add those of the four methods that an object has; the handle removes them.

        Raises `ConfigurationError` if it has none, or one whose name is misspelt.
        """
        methods = methods_of(hook)
        return AgentHookHandle([self._hooks[moment].add(each) for moment, each in methods.items()])

    def hooks_of(self, moment: Moment) -> Hooks:
        """Return the hooks for one moment."""
        return self._hooks[moment]

    def hooked_tools(self, session_id: SessionId) -> Sequence[AnyTool]:
        """Return the tools as the model's calls reach them in a session, through the hooks."""
        return [self.hooked(tool, session_id) for tool in flatten(self.tools)]

    def hooked(self, tool: AnyTool, session_id: SessionId) -> AnyTool:
        """Return a tool as a call of it reaches it in a session."""
        before, after = self._hooks["before_action"], self._hooks["after_action"]
        if not (before or after):
            return tool
        return HookedTool.around(tool, self, session_id, before, after)

    # --- usage

    def usage(self, session_id: SessionId | None = None) -> dict[str, Usage]:
        """Return the usage of all its calls, or of those in one session, by model.

        Tools, retries, failed and cancelled calls and the agents below are included. A session
        counts from its last `reset` on, and one that a journal keeps from its beginning, as far as
        it was read here, by a call or `recall`. `cost(agent.usage(), prices)` is the money.
        """
        usage_totals = self.usage_totals
        if session_id is None:
            return dict(usage_totals.total)
        return dict(usage_totals.sessions.get(session_id, {}))

    # --- the structure

    @property
    def has_own_memory(self) -> bool:
        """Whether it was given a memory: then calls that name no session are remembered too."""
        return self.memory is not self._default_memory

    def state_dict(self, session_id: SessionId = 0) -> dict[str, Any]:
        """Return the memories of this agent and all below it in one session, as JSON values.

        The keys are attribute paths: `memory`, `writer.memory`, `critics.0.memory`. What an agent
        has said itself is marked as its `own`.
        """
        saved = self.save_memories(session_id)
        return {key: mark_own(agent, saved[key]) for key, agent in self._memories().items()}

    def save_memories(self, session_id: SessionId) -> dict[str, Any]:
        """Return the memories as `state_dict` does, without a mark at what an agent has said."""
        return {key: agent.memory.save(session_id) for key, agent in self._memories().items()}

    def load_state_dict(
        self, state: Mapping[str, Any], session_id: SessionId = 0, *, strict: bool = True
    ) -> list[str]:
        """Put what `state_dict` returned in the place of a session.

        What an agent had said is its own whatever its name was then. Raises `ConfigurationError`,
        and changes nothing, if the keys or the values do not fit. With `strict=False` it takes what
        fits, an agent that the state lacks remembers nothing, and the paths of all else, which was
        dropped, are returned: `critic.memory`, `memory[3]`, `memory[3].colour`; no message's
        `formatted` that the agent's parser does not know any more is kept.
        """
        agents = self._memories()
        restored, dropped = read_state(self, agents, state, strict=strict)
        for key, messages in restored.items():
            agents[key].memory.replace(messages, session_id)
        return dropped

    def receive_as(self, message: AgentMessage) -> AgentMessage:
        """Return a message as it is remembered: what another of its name has said is another's."""
        if self._has_own_name or message.sender != self.name or message.receiver == "user":
            return message
        return message.model_copy(update={"sender": f"another {self.name}"})

    def restore(self, records: Iterable[Mapping[str, Any]]) -> list[AgentMessage]:
        """Read a saved memory; what the parser had made of replies is made again."""
        messages = read_records(records)
        for message in messages:
            self.restore_formatted(message)
        return messages

    def restore_formatted(self, message: AgentMessage, *, strict: bool = True) -> bool:
        """Make again what the parser had made of a saved reply; False if it cannot any more.

        With `strict` that is a `ConfigurationError`, else the message has nothing `formatted`.
        """
        parser = self.output_format
        own = message.sender == self.name and message.type is None
        if parser is None or not own or message.formatted is None:
            return True
        cut = message.extra.get("status") in STOPPED
        try:
            message.formatted = read_again(parser, message.text, message.formatted, cut)
        except ValueError as error:
            if strict:
                raise ConfigurationError(f"this is no memory of {self.name}: {error}") from error
            message.formatted = None
            return False
        return True

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Forget a session, in all agents below too unless not `recursive`.

        What tools keep for it goes as well: its Python kernel begins to end, and nobody waits. All
        of it is forgotten, also if something raises: that is raised at the end, several failures as
        an `ExceptionGroup`.
        """
        agents = self.named_agents().values() if recursive else (self,)
        for agent in agents:
            if agent.journal is not None:
                name = f"{agent.name}/{session_id}"
                raise ConfigurationError(
                    f"{agent.name} keeps its sessions in a journal, and that forgets nothing: begin"
                    f" another session, or end this one, await journal.cancel({name!r})"
                )
        do_all(partial(agent.forget, session_id) for agent in agents)

    async def recall(self, session_id: SessionId = 0) -> list[AgentMessage]:
        """Return the messages of a session as its next call finds them; a journal is read for that.

        Raises `RunBusy` while another process is in the session.
        """
        if self.journal is not None:
            await self.journal_sessions().recall(session_id)
        return self.memory.messages(session_id)

    async def keep(self, session_id: SessionId) -> None:
        """Store at once how the memory of a session was changed since its last call.

        On disk when this returns; without it, the next call stores that. Raises
        `ConfigurationError` without a journal, or if the last call was cut; `RunBusy` as `recall`.
        """
        await self._journaled().keep(session_id)

    async def find_interrupted(self, session_id: SessionId) -> list[AgentMessage] | None:
        """Return the messages of the call that a crash interrupted in a session; None if none.

        The same call again resumes it; `end_interrupted` ends it. Raises as `keep`.
        """
        return await self._journaled().find_interrupted(session_id)

    async def end_interrupted(self, session_id: SessionId) -> bool:
        """End the interrupted call of a session as it is; return whether there was one.

        Its messages, replies, results of tools and steering messages are remembered, as of a
        cancelled call; nothing runs for it. If the journal stores `partials`, so is the beginning
        of its next reply. Raises as `keep`.
        """
        return await self._journaled().end_interrupted(session_id)

    def remember_interrupted(
        self, asked: Sequence[AgentMessage], cut: InterruptedCall, session_id: SessionId
    ) -> None:
        """Put a call that was cut into the memory that the model reads."""
        self.memory.add(*asked, *cut.said, session_id=session_id)

    def _journaled(self) -> JournalSessions:
        if self.journal is None:
            raise ConfigurationError(
                f"{self.name} keeps its sessions in no journal: give it journal="
            )
        return self.journal_sessions()

    def journal_sessions(self) -> JournalSessions:
        """Return the sessions that `journal` keeps."""
        if self._kept is None or self._kept.journal is not self.journal:
            from ._sessions import JournalSessions

            assert self.journal is not None
            self._kept = JournalSessions(self, self.journal)
        return self._kept

    def forget(self, session_id: SessionId) -> None:
        """Forget a session, here alone; also what a call without a session leaves behind.

        A journal still has it, and the next call reads it from there. If a call in it runs, it is
        forgotten after that.
        """
        kept = self._kept
        if kept is not None and kept.is_busy(session_id):
            return
        self.usage_totals.sessions.pop(session_id, None)
        every = [self.memory.reset, self.tool_sessions.forget]
        every += [] if kept is None else [kept.note_forgotten]
        do_all(partial(forget, session_id) for forget in every)

    async def aclose(self) -> None:
        """Close what tools hold open in any session, here and in all agents below.

        Memories stay, and the next call opens what it needs again. Twice is harmless.
        """
        agents = self.named_agents().values()
        await close_all(pair for agent in agents for pair in agent.tool_sessions.open_states())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def get_steps(self, session_id: SessionId = 0) -> list[AgentStep]:
        """Return the thoughts, calls and results of a session; the last thought is the answer."""
        return list_steps(self.memory.messages(session_id), self.name)

    def named_children(self) -> Iterator[tuple[str, Agent[Any]]]:
        """Give the agents among the attributes, also those in lists, tuples and mappings in these.

        Each comes with the path that leads to it, `writer`, `critics.0` or `roles.editor.1`, in the
        order in which the attributes were set. A key that is no string, or has a dot, a bracket or
        half a surrogate pair in it, is written as Python writes it: `roles[7]` is not `roles.7`.
        """
        waiting: list[tuple[str, Any]] = [*vars(self).items()][::-1]
        containers: dict[int, Any] = {}  # that were looked into, kept so that ids stay theirs
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, Agent):
                yield path, cast("Agent[Any]", value)
            elif id(value) not in containers and isinstance(value, Mapping | list | tuple):
                named = isinstance(value, Mapping)
                container: Any = cast("Any", value)
                containers[id(container)] = container
                parts: Any = container.items() if named else enumerate(container)
                for key, each in reversed([*parts]):
                    if isinstance(each, Agent | Mapping | list | tuple):
                        plain = isinstance(key, str) and key and not ODD_KEY.search(key)
                        step = f".{key}" if plain or not named else f"[{key!r}]"
                        waiting.append((path + step, cast("Any", each)))

    def named_agents(self) -> dict[str, Agent[Any]]:
        """Return this agent and all below by their paths, this under ""; each agent once."""
        found: dict[str, Agent[Any]] = {}
        seen: set[int] = set()
        waiting: list[tuple[str, Agent[Any]]] = [("", self)]
        while waiting:
            path, agent = waiting.pop()
            if id(agent) in seen:
                continue
            seen.add(id(agent))
            if found.setdefault(path, agent) is not agent:
                raise ConfigurationError(f"{self.name} has two agents at {path!r}")
            below = [
                (f"{path}.{name}" if path else name, each) for name, each in agent.named_children()
            ]
            waiting += reversed(below)
        return found

    def _memories(self) -> dict[str, Agent[Any]]:
        return {
            f"{path}.memory" if path else "memory": each
            for path, each in self.named_agents().items()
        }

    def __repr__(self) -> str:
        return describe_agent(self)


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
