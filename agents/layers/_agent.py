"""`Agent`: a model with a prompt, tools and a memory. Agents are layers of larger agents."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    cast,
    get_args,
    overload,
)

from typing_extensions import TypeVar

from ...backends import Backend, as_backend
from ...backends.typed_output import check_retries
from ...commander import Node, NodeLimits, run
from ...commander.context import INHERITED
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked, require, require_awaitable, require_no_loop
from ...dispatch import Format
from ...handlers import View
from ...messages import Message, OutputMode, OutputSchema, Part, Usage
from ...messages.options import WIRE_OPTIONS, check_options, parameters_of
from ...tools import AnyTool, Approve, Tool, ToolLike
from ...tools.sessions import ToolSessions, close_all, do_all
from ...tools.toolkits import flatten
from ._actions import AgentStep, check_formats, list_steps
from ._agent_stream import AgentStream
from ._aggregators import Aggregator, System
from ._answer import Knowledge, answer
from ._as_tool import make_tool
from ._call import (
    OUTER_SESSION,
    AgentCall,
    JournalCall,
    UsageTotals,
    names_sync_form,
    run_in_tree,
)
from ._guards import Guard, check_guards
from ._handoff import check_handoffs
from ._history import History, read_history
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
from ._instructions import Instructions, check_instructions, read_instructions
from ._memory import Memory, SessionId, SummaryMemory, TemporarySession
from ._message import (
    STORED_OUTPUT,
    AgentMessage,
    StoredOutput,
    first_in_handoff,
    read_inputs,
    with_text_output,
)
from ._output import AgentOutput, check_format
from ._override import BACKEND_OR_NONE, override_backend, read_backend, require_backend
from ._parsers import Parser
from ._state import mark_own, read_again, read_records, read_state

if TYPE_CHECKING:
    from ...store import Journal
    from ._interrupted import InterruptedCall
    from ._sessions import JournalSessions


__all__ = ["Agent", "describe_agent"]

logger = logging.getLogger("anabranch.agents")

F = TypeVar("F", default=str)
P = ParamSpec("P")

QUOTED_KEY = re.compile(r"[.\[\]\ud800-\udfff]")  # would be ambiguous or unwritable in a path


class Agent(Generic[F]):
    """An agent: it takes messages, answers with one, and remembers all of them.

        agent = Agent(backend, "You answer in one word.")
        answer = await agent("Which is the longest river?")

    A call inside a node, or in a commander's block, is a child of that. So cancellation, timeouts,
    limits and events reach it. Outside of a tree it runs under a commander of its own.

    A call stores its messages in the session `session_id`, and the next call in that session reads
    them. Calls in different sessions may run at the same time. A call without a session starts with
    an empty memory and leaves nothing, so that users of one agent never read each other's messages.
    If you give a `memory`, such a call is in session 0.

    By default an agent asks its model, with its tools, until there is an answer. After `max_rounds`
    replies with tool calls the model has to answer without tools. The answer's `extra["status"]` is
    then "max_rounds", else "ok", or "length" or "content_filter" for a reply that was cut off. A
    subclass with another `forward` mostly calls agents that are its attributes.

    - `instructions`: a text, a message, a list of messages, or a function that returns one of
      these for each call: `instructions=lambda ctx: f"You help {ctx.value.name}."`. It may be
      async, and gets the `Context` of the call if it has a parameter for it.
    - `knowledge`: documents, as an `anabranch.knowledge.Index`. The agent searches them for each
      question before it asks the model, and gives the model a tool to search on. The answer's
      `extra["citations"]` has the passages that the answer cites, as `[7]`.
    - `memory`, `aggregator`: the store of messages, and the way to make a request of them.
    - `output_type`: the type of the answer's `output`: a model, a dataclass, a `TypedDict`, a
      union, a list, a `Literal`, or anything else that pydantic reads from JSON. Without it the
      output is the text. An answer that does not fit is sent back to the model with the reason,
      `output_retries` times. `output_mode` is the way to ask, by default the best of the backend.
    - `output_format`: a `Parser` of your own instead, which makes the `output` of the text.
    - `formats`: how the model writes calls into its text, see `respond`; None: the backend's
      formats.
    - `hooks`: objects with some of the methods of `AgentHook`.
    - `guards`: functions, plain or async, that check each message while the model already answers.
      Until all have returned, no text is shown, no tool starts and the memory does not show the
      message to others. One that raises cancels the reply, and the call fails with its exception.
    - `view`: receives text, calls and results while they arrive, and decides whether a tool may
      run.
    - `approve`: decides instead of the view, also for agents below that have neither. A function of
      a `ToolQuestion`, or an `Approvals`.
    - `journal`: a file name or a `Journal`, which stores each session under "NAME/SESSION". A call
      continues where an earlier process ended in it. Every call must then name its session.
    - `options`: for the model, by the names of the wire. Options of a call override them. A call
      also takes the parameters of `forward`. Any other name is a `ConfigurationError` with the
      nearest one.

    `description` says what the agent is for, to models that choose among agents.

    The model reads messages of the agent's own `name` as the assistant's. Without a `name` it is
    called after its class. Then a message from another agent of that name is not its own. The name
    "user" is a `ConfigurationError`.
    """

    # Senders of messages to all agents of this class. An agent with such a name would take their
    # messages for its own.
    _reserved_names: ClassVar[Sequence[str]] = ("user",)

    # Whether its calls can end with a handoff.
    hands_off: ClassVar[bool] = True

    @overload
    def __init__(
        self,
        backend: Backend | str | None = None,
        instructions: Instructions | None = None,
        *,
        tools: Iterable[ToolLike] = (),
        knowledge: Knowledge | None = None,
        name: str | None = None,
        description: str = "",
        memory: Memory | None = None,
        aggregator: Aggregator | None = None,
        output_type: type[F] | OutputSchema[F] | None = None,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        output_format: Parser[F] | None = None,
        formats: Sequence[Format] | None = None,
        hooks: Iterable[AgentHook | object] = (),
        guards: Iterable[Guard] = (),
        max_rounds: int = 10,
        view: View | None = None,
        approve: Approve | None = None,
        journal: str | Journal | None = None,
        **options: Any,
    ) -> None: ...
    # A type checker cannot infer the type from a union, a `Literal` and other special forms.
    # Annotate the variable: `agent: Agent[City | Fault] = Agent(..., output_type=City | Fault)`.
    @overload
    def __init__(
        self: Agent[Any],
        backend: Backend | str | None = None,
        instructions: Instructions | None = None,
        *,
        tools: Iterable[ToolLike] = (),
        knowledge: Knowledge | None = None,
        name: str | None = None,
        description: str = "",
        memory: Memory | None = None,
        aggregator: Aggregator | None = None,
        output_type: object,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        formats: Sequence[Format] | None = None,
        hooks: Iterable[AgentHook | object] = (),
        guards: Iterable[Guard] = (),
        max_rounds: int = 10,
        view: View | None = None,
        approve: Approve | None = None,
        journal: str | Journal | None = None,
        **options: Any,
    ) -> None: ...

    @checked(backend=BACKEND_OR_NONE, approve="a function that is asked, Approvals() or None")
    def __init__(
        self,
        backend: Backend | str | None = None,
        instructions: Instructions | None = None,
        *,
        tools: Iterable[ToolLike] = (),
        knowledge: Knowledge | None = None,
        name: str | None = None,
        description: str = "",
        memory: Memory | None = None,
        aggregator: Aggregator | None = None,
        output_type: Any = None,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        output_format: Any = None,
        formats: Sequence[Format] | None = None,
        hooks: Iterable[AgentHook | object] = (),
        guards: Iterable[Guard] = (),
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
                f"an agent cannot be called {name!r}: it would take the messages of the {name} for"
                " its own. Give it another name="
            )
        check_instructions(instructions)  # here, and not at the first call
        check_options(options, f"the agent {name or type(self).__name__!r}", of=type(self))
        check_formats(formats)
        require(journal, str | None, "journal must be a file's name or a Journal", like="session")
        self.backend: Backend | None = None if backend is None else as_backend(backend)
        self.instructions: Instructions | None = instructions
        self.knowledge = knowledge
        self.knowledge_tool: AnyTool | None = None if knowledge is None else knowledge.as_tool()
        knowledge_tools = () if self.knowledge_tool is None else (self.knowledge_tool,)
        self.tools: list[AnyTool] = flatten([*flatten(tools), *knowledge_tools])
        self.name: str = name or type(self).__name__
        # Whether a message with this sender is certainly its own. Not so for a class's name, which
        # other agents may have, nor for "user", the name of a person among conversable agents.
        self._has_own_name = self.name not in ("user", type(self).__name__)
        self.description = description
        self._default_memory = Memory()
        self.memory: Memory = memory or self._default_memory
        self.aggregator: Aggregator = aggregator or Aggregator()
        check_format(output_format, output_type)
        check_retries(output_retries)
        self.output_format: Parser[F] | None = output_format
        self._typed_output: AgentOutput[F] | None = None
        if output_type is not None:
            if self._is_team:
                raise ConfigurationError(
                    f"{self.name} has its own forward() and no backend, so output_type= would"
                    " change nothing. Give it to the agent that answers in forward()"
                )
            self._typed_output = AgentOutput(output_type, output_mode, output_retries)
            self._typed_output.check(self.backend, self.tools, formats)
        elif output_mode is not None:
            raise ConfigurationError("output_mode= needs output_type=, the type of the output")
        check_handoffs(self, self.tools)
        self.formats = formats
        self.max_rounds = max_rounds
        self.view = view
        self.approve = approve
        self.journal = journal
        self._journal_sessions: JournalSessions | None = None
        self.options = options
        self.guards: list[Guard] = check_guards(guards, self.name)
        self.usage_totals: UsageTotals = UsageTotals()
        self.tool_sessions: ToolSessions = ToolSessions()
        self._hooks: dict[Moment, Hooks] = {moment: Hooks() for moment in get_args(Moment)}
        for each in hooks:
            self.add_hook(each)

    # --- calls

    @names_sync_form("await agent(...); in a program without a loop use agent.run_sync(...)")
    async def __call__(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        context: object = INHERITED,
        history: History | None = None,
        backend: Backend | str | None = None,
        **options: Any,
    ) -> AgentMessage[F]:
        """Answer messages. Strings and parts are the user's.

        A `Message` of the assistant is an earlier reply of this agent, so you can pass a history.
        It cannot be the last message. Results of tools follow the message with the calls.

        `context` is a value that all tools, hooks, instructions and agents below can read, typed;
        see `Context`. By default it is that of the calling code.

        Raises the errors of its backend, its hooks and its `forward`; `BadResponse` if
        `output_format` can use no answer of the model; `TypeError` for another type; `ValueError`
        for tool calls without results. Cancelling the call cancels everything below it, and waits
        for that.
        """
        return await run_in_tree(
            self.call(
                *messages,
                session_id=session_id,
                context=context,
                history=history,
                backend=backend,
                **options,
            )
        )

    def call(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        context: object = INHERITED,
        history: History | None = None,
        backend: Backend | str | None = None,
        **options: Any,
    ) -> AgentCall[F]:
        """Make the same call as a node that has not started.

        For `node.call_handler(agent.call("..."), timeout=20)` and `commander.run(...)`.
        """
        if not options.keys() <= WIRE_OPTIONS:
            takes = ["session_id", "context", "history", "backend"]
            takes += parameters_of(type(self).forward)
            check_options(options, f"a call of {self.name!r}", takes=takes)
        if session_id == "":
            raise ConfigurationError(
                "session_id must not be empty, because all users without a name would share that"
                " session. Leave it out for a call without a session"
            )
        nameless = session_id is None and not self.has_own_memory
        kind: type[AgentCall[F]] = AgentCall
        if self.journal is not None and not (nameless and OUTER_SESSION.get() is not None):
            if nameless or isinstance(session_id, TemporarySession):
                raise ConfigurationError(
                    f"{self.name} stores its sessions in a journal, so each call needs a name for"
                    " its session. Give it session_id="
                )
            kind = JournalCall
            if history is not None:
                raise ConfigurationError(
                    f"{self.name} stores its sessions in a journal, which has the earlier messages"
                    " of session_id=. Leave out history="
                )
        own = None
        if history is not None and session_id is None:
            session_id = own = TemporarySession()
        call = kind(self, read_inputs(messages, self.name), session_id, options)
        if own is not None:
            call.at_done(lambda _: own.end())
        if context is not INHERITED:
            call._node_context = context
        if history is not None:
            call._node_stored = read_history(self, history)
        if backend is not None:
            call._node_backend = read_backend(backend)
        return call

    def run_sync(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
        context: object = INHERITED,
        history: History | None = None,
        backend: Backend | str | None = None,
        **options: Any,
    ) -> AgentMessage[F]:
        """Answer in a program without a loop, and block until then.

            print(agent.run_sync("Hello", timeout=60).text)

        `timeout`, in seconds, and `limits` hold for the call and all below it, as in `run`. Raises
        `RuntimeError` inside a running loop.
        """
        require_no_loop("run_sync", "await agent(...)")
        call = self.call(
            *messages,
            session_id=session_id,
            context=context,
            history=history,
            backend=backend,
            **options,
        )
        return run(call, timeout=timeout, limits=limits)

    def stream(
        self,
        *messages: AgentMessage | Message | Part | str,
        session_id: SessionId | None = None,
        history: History | None = None,
        backend: Backend | str | None = None,
        parent: Node[Any] | None = None,
        timeout: float | None = None,
        limits: NodeLimits | None = None,
        context: object = INHERITED,
        **options: Any,
    ) -> AgentStream[F]:
        """Return a call that is read while it runs: as text, as output or as messages.

            async for text in agent.stream("Tell me a story.").text():
                print(text, end="", flush=True)

        `text()` yields the new text of the agent's replies, `output()` the output while it grows,
        and `await stream.answer()` returns the answer. `AgentStream` has the details.

        The stream itself yields all messages of the call; the answer comes last. A reply comes as
        messages whose `stream_state` is "begin", then "streaming". Each has the
        text so far, and the new text in `extra["delta"]`. "failed" ends a reply that broke off or
        could not be used. The failure of the call is raised at the end. Calls and results of tools
        are messages of type "tool_call" and "tool_result". Messages of agents below have the names
        of these as their senders. Each answer is a message in state "end".

        The call is a child of `parent`, for example a commander with limits, by default of the
        current node. `timeout`, in seconds, and `limits` hold for the call and all below it, as in
        `call_handler`. Closing the stream cancels the call: use `async with` if you may leave
        early.
        """
        call = self.call(
            *messages,
            session_id=session_id,
            context=context,
            history=history,
            backend=backend,
            **options,
        )
        return AgentStream(call, parent, timeout=timeout, limits=limits)

    def as_tool(
        self, name: str | None = None, description: str | None = None
    ) -> Tool[[str], Coroutine[Any, Any, str]]:
        """Return a tool with which the model of another agent asks this one.

            boss = Agent(backend, tools=[researcher.as_tool()])

        The model writes a `request`, and reads the answer. Each call of the tool is a call of this
        agent without a session, below the node of the tool. So its usage also counts for the agent
        that has the tool, and a stream of that agent has its messages. `approve` of that agent
        decides on its tools, unless it has a view or `approve` itself. A failure is a failure of
        the tool. In a durable run only the replies and the tools below it are repeated that the
        journal does not have.

        `name` is by default the agent's, with "_" for characters that a tool's name cannot have.
        `description` is by default the agent's. Raises `ConfigurationError` without a description,
        and for an agent with `journal=`.
        """
        return make_tool(self, name, description)

    async def forward(self, *messages: Any, **options: Any) -> AgentMessage[F] | str:
        """Answer messages that are in the memory already. Subclasses write their own.

        It gets the messages, `session_id=` and the options of the call. Pass the session to agents
        below that should remember as long as this call does. A returned string becomes the agent's
        message. Without messages the model continues the session.
        """
        # Declared with Any, so that type checkers accept a subclass with other parameters.
        session_id: SessionId = options.pop("session_id", 0)
        backend = require_backend(self)
        await require_awaitable(self.memory.prepare(session_id), self.memory, "prepare")
        if callable(self.instructions):
            instructions = await read_instructions(self.instructions, self.name)
            request = self.aggregate(session_id, instructions)
        else:
            request = self.aggregate(session_id)
        return await answer(self, backend, request, session_id, options)

    def aggregate(
        self, session_id: SessionId = 0, instructions: System | None = None
    ) -> list[Message]:
        """Return the messages of the next request to the model in this session.

        `instructions` replaces a function of instructions, which is only called in a call.
        """
        if not callable(self.instructions):
            instructions = self.instructions
        return self.aggregator.aggregate(
            self.memory.get(session_id), self.name, self.output_format, instructions
        )

    def override(self, *, backend: Backend | str) -> AbstractContextManager[None]:
        """Let all calls in a block ask another backend, mostly in a test.

            with agent.override(backend=ScriptedBackend("Hello")):
                answer = await agent("Hi")

        It holds for calls of this agent that begin in the block, also in tasks that are started
        there, and for all agents below these calls. Blocks may be nested, and a call may have a
        `backend=` too: the innermost wins. The end of the block restores what was before.
        """
        return override_backend(self, read_backend(backend))

    # --- output

    @property
    def output_type(self) -> Any:
        """The type of the answer's `output`, None if it is the text or a parser's value."""
        typed = self._typed_output
        return None if typed is None else typed.schema.output_type

    @property
    def has_text_output(self) -> bool:
        """Whether the answer's `output` is its text."""
        typed = self._typed_output
        return self.output_format is None and (typed is None or typed.is_text)

    @property
    def _is_team(self) -> bool:
        """Whether it asks no model itself."""
        return self.backend is None and type(self).forward is not Agent.forward

    def typed_output(self) -> AgentOutput[F] | None:
        """Return how the agent asks for typed output, None without `output_type`."""
        return self._typed_output

    def typed_output_of(self, message: AgentMessage) -> AgentOutput[Any] | None:
        """Return the typed output of the agent that wrote an answer: this one, or one below."""
        names = (message.sender, first_in_handoff(message))
        if not self._is_team:
            return self._typed_output if self.name in names else None
        below = (each for each in self.named_agents().values() if each.name in names)
        return next(filter(None, (each.typed_output() for each in below)), None)

    @overload
    def output_validator(
        self, function: Callable[Concatenate[F, P], Coroutine[Any, Any, F]]
    ) -> Callable[Concatenate[F, P], Coroutine[Any, Any, F]]: ...
    @overload
    def output_validator(
        self, function: Callable[Concatenate[F, P], F]
    ) -> Callable[Concatenate[F, P], F]: ...
    def output_validator(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Add a function that checks each answer's output, as a decorator.

            @agent.output_validator
            async def known(invoice: Invoice) -> Invoice:
                if not await exists(invoice.customer):
                    raise ModelRetry(f"There is no customer {invoice.customer!r}.")
                return invoice

        It is plain or async, takes the output, and returns it, perhaps changed. A second parameter
        gets the `Context` of the call. After a `ModelRetry` the model reads the reason and answers
        again; this counts as one of `output_retries`. Several run in their order. Raises
        `ConfigurationError` for an agent that has a parser or does not ask a model itself.
        """
        if self.output_format is not None or self._is_team:
            why = "has its own forward()" if self._is_team else "has output_format="
            raise ConfigurationError(
                f"{self.name} {why}, so no output validator runs for it. Add the validator to an"
                " agent with output_type="
            )
        if self._typed_output is None:
            self._typed_output = AgentOutput(str, None, 2)
        self._typed_output.add_validator(function)
        return function

    # --- hooks

    def before_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)`, plain or async, with each received message.

        A message that the hook returns replaces its argument. The handle removes the hook.
        """
        return self._hooks["before_agent"].add(hook)

    def after_agent(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, answer, session_id)` with each answer; see `before_agent`."""
        return self._hooks["after_agent"].add(hook)

    def before_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)` before each tool call, its `output`."""
        return self._hooks["before_action"].add(hook)

    def after_action(self, hook: Hook) -> HookHandle:
        """Call `hook(agent, message, session_id)` with each tool's result, as `content`."""
        return self._hooks["after_action"].add(hook)

    def add_hook(self, hook: AgentHook | object) -> AgentHookHandle:
        """Add those of the four methods that an object has; the handle removes them.

        Raises `ConfigurationError` if it has none, or a misspelt one.
        """
        methods = methods_of(hook)
        return AgentHookHandle([self._hooks[moment].add(each) for moment, each in methods.items()])

    def hooks_of(self, moment: Moment) -> Hooks:
        """Return the hooks for one moment."""
        return self._hooks[moment]

    def hooked_tools(self, session_id: SessionId) -> Sequence[AnyTool]:
        """Return the tools for the model's calls in a session, with the hooks around them."""
        return [self.hooked(tool, session_id) for tool in flatten(self.tools)]

    def hooked(self, tool: AnyTool, session_id: SessionId) -> AnyTool:
        """Return a tool for calls in a session, with the hooks around it."""
        before, after = self._hooks["before_action"], self._hooks["after_action"]
        if not (before or after):
            return tool
        return HookedTool.around(tool, self, session_id, before, after)

    # --- usage

    def usage(self, session_id: SessionId | None = None) -> dict[str, Usage]:
        """Return the usage of all its calls, or of those in one session, by model.

        It includes tools, retries, failed and cancelled calls and the agents below. A session
        counts from its last `reset`. A session in a journal counts from its beginning, once a call
        or `recall` has read it in this process. `cost(agent.usage(), prices)` is the money.
        """
        usage_totals = self.usage_totals
        if session_id is None:
            return dict(usage_totals.total)
        return dict(usage_totals.sessions.get(session_id, {}))

    # --- the structure

    @property
    def has_own_memory(self) -> bool:
        """Whether it was given a memory. Then it also remembers calls without a session."""
        return self.memory is not self._default_memory

    @property
    def conversant(self) -> Agent[Any] | None:
        """The agent whose memory the model reads: itself, or one below; None for several."""
        return self

    def state_dict(self, session_id: SessionId = 0) -> dict[str, Any]:
        """Return the memories of this agent and all below it in one session, as JSON values.

            state = agent.state_dict()
            other.load_state_dict(state)

        The keys are attribute paths: `memory`, `writer.memory`, `critics.0.memory`. A mark, `own`,
        distinguishes the agent's own messages.
        """
        saved = self.save_memories(session_id)
        return {key: mark_own(agent, saved[key]) for key, agent in self._memories().items()}

    def save_memories(self, session_id: SessionId) -> dict[str, Any]:
        """Return the memories as `state_dict` does, but without the mark at own messages."""
        return {key: agent.memory.save(session_id) for key, agent in self._memories().items()}

    def load_state_dict(
        self, state: Mapping[str, Any], session_id: SessionId = 0, *, strict: bool = True
    ) -> list[str]:
        """Replace a session by a result of `state_dict`.

        The agent's own messages stay its own if its name has changed. Raises `ConfigurationError`,
        and changes nothing, if the keys or the values do not fit. With `strict=False` it takes the
        values that fit. An agent that the state lacks then remembers nothing. It returns the paths
        of all values that it dropped: `critic.memory`, `memory[3]`, `memory[3].colour`, and the
        `output` of a message that the agent's parser cannot restore.
        """
        return self._load(state, session_id, strict=strict)

    def load_from_journal(self, state: Mapping[str, Any], session_id: SessionId) -> None:
        """Replace a session by a state of the journal, which keeps outputs that do not fit."""
        self._load(state, session_id, strict=True, keep_outputs=True)

    def _load(
        self,
        state: Mapping[str, Any],
        session_id: SessionId,
        *,
        strict: bool,
        keep_outputs: bool = False,
    ) -> list[str]:
        agents = self._memories()
        restored, dropped = read_state(
            self, agents, state, strict=strict, keep_outputs=keep_outputs
        )
        for key, messages in restored.items():
            agents[key].memory.replace(messages, session_id)
        return dropped

    def receive_as(self, message: AgentMessage) -> AgentMessage:
        """Return a message for the memory, where another agent of this name gets another sender."""
        if self._has_own_name or message.sender != self.name or message.receiver == "user":
            return message
        return message.model_copy(update={"sender": f"another {self.name}"})

    def restore(self, records: Iterable[Mapping[str, Any]]) -> list[AgentMessage]:
        """Return the messages of a saved memory, with their outputs restored.

        An output that no longer fits `output_type` becomes None.
        """
        messages = read_records(records)
        for message in messages:
            is_strict = self.typed_output_of(message) is None
            self.restore_output(message, strict=is_strict, keep=True, quiet=True)
        return messages

    def restore_output(
        self,
        message: AgentMessage,
        *,
        strict: bool = True,
        keep: bool = False,
        quiet: bool = False,
    ) -> bool:
        """Restore the output of a saved reply; return False if that is not possible.

        With `strict` that is a `ConfigurationError`, else `output` becomes None. With `keep` the
        message is then saved again with its saved output. `quiet` logs no warning.
        """
        parser, typed = self.output_format, self.typed_output_of(message)
        is_own = self.name in (message.sender, first_in_handoff(message))
        if not (is_own or typed) or message.type is not None:
            return True
        if message.output is None:
            if is_own and self.has_text_output and message.stream_state == "end":
                message.model_fields_set.discard("output")
                with_text_output(message)
            return True
        if parser is None and typed is None:
            return True
        saved, status, warning, result = message.output, message.extra.get("status"), "", True
        try:
            if typed is not None:
                warning = typed.restore(message)
            elif parser is not None:
                message.output = read_again(parser, message.text, saved, status)
        except ValueError as error:
            if strict:
                raise ConfigurationError(f"not a saved memory of {self.name}: {error}") from error
            stored: StoredOutput | None = vars(message).pop(STORED_OUTPUT, None)
            message.output = None
            if keep:
                from_text = stored is not None and stored.from_text
                vars(message)[STORED_OUTPUT] = StoredOutput(None, saved, from_text)
                warning = f"no longer fits its output type, so it is None: {error}"
            result = False
        if warning and not quiet:
            logger.warning("The stored output of an answer of %s %s", self.name, warning)
        return result

    def reset(self, session_id: SessionId = 0, *, recursive: bool = True) -> None:
        """Forget a session, with `recursive` also in all agents below.

        This also drops the state of tools in the session: a Python kernel starts to end, without a
        wait. An error in one part does not stop the others. It is raised at the end, several as an
        `ExceptionGroup`.
        """
        agents = self.named_agents().values() if recursive else (self,)
        for agent in agents:
            if agent.journal is not None:
                name = f"{agent.name}/{session_id}"
                raise ConfigurationError(
                    f"{agent.name} stores its sessions in a journal, which forgets nothing. Use"
                    f" another session, or end this one: await journal.cancel({name!r})"
                )
        do_all(partial(agent.forget, session_id) for agent in agents)

    async def recall(self, session_id: SessionId = 0) -> list[AgentMessage]:
        """Return the messages of a session as its next call finds them, also from the journal.

        Raises `RunBusy` while another process is in the session.
        """
        if self.journal is not None:
            await self.journal_sessions().recall(session_id)
        return self.memory.messages(session_id)

    async def keep(self, session_id: SessionId) -> None:
        """Store the changes of a session's memory since its last call at once.

        They are on disk when this returns. Without it, the next call stores them. Raises
        `ConfigurationError` without a journal, or if the last call was interrupted; `RunBusy` as
        `recall`.
        """
        await self._journaled().keep(session_id)

    async def find_interrupted(self, session_id: SessionId) -> list[AgentMessage] | None:
        """Return the messages of the call that a crash interrupted in a session; None if none.

        The same call again resumes it; `end_interrupted` ends it. Raises as `keep`.
        """
        return await self._journaled().find_interrupted(session_id)

    async def resume_interrupted(
        self,
        *,
        parent: Node[Any] | None = None,
        context: Callable[[Any], object] | None = None,
    ) -> dict[SessionId, AgentCall[F]]:
        """Resume the interrupted calls of all sessions, and return them by session.

            async with Commander() as commander:
                await agent.resume_interrupted(parent=commander)  # when the application starts
                print(approvals.pending)

        `context` is a function, plain or async, from a session's id to the context of its call:
        `context=lambda session_id: load_user(session_id)`. It is called for all sessions before any
        call starts. Without it, the calls have the context of `parent`.

        If `approve` is an `Approvals`, it returns when the questions that were open in the journal
        wait in `pending` again. The calls go on as children of `parent`, by default of the current
        node. Each is that of its first execution: recorded parts are replayed, and a new call in
        its session waits for it. It leaves out sessions that another process uses. It reads the
        entries of all sessions that were not cancelled. Raises what `context` raises, and
        `ConfigurationError` without a journal or a tree, or if `context` is no function.
        """
        self._journaled()
        from ._resume import resume_interrupted

        return await resume_interrupted(self, parent, context)

    async def end_interrupted(self, session_id: SessionId) -> bool:
        """End the interrupted call of a session where it is; return False if there is none.

        The agent remembers its messages, replies, results of tools and steering messages, as of a
        cancelled call. Nothing runs again. If the journal stores `partials`, the beginning of its
        next reply is remembered too. Raises as `keep`.
        """
        return await self._journaled().end_interrupted(session_id)

    def remember_interrupted(
        self, asked: Sequence[AgentMessage], call: InterruptedCall, session_id: SessionId
    ) -> None:
        """Add an interrupted call to the memory that the model reads."""
        messages, typed = call.messages, self._typed_output
        if typed is not None and not typed.is_text:
            messages = typed.only_answers(messages, self.name)
        self.memory.add(*asked, *messages, session_id=session_id)

    def _journaled(self) -> JournalSessions:
        if self.journal is None:
            raise ConfigurationError(
                f"{self.name} stores its sessions in no journal. Give it journal="
            )
        return self.journal_sessions()

    def journal_sessions(self) -> JournalSessions:
        """Return the sessions in `journal`."""
        if self._journal_sessions is None or self._journal_sessions.journal is not self.journal:
            from ._sessions import JournalSessions

            assert self.journal is not None
            self._journal_sessions = JournalSessions(self, self.journal)
        return self._journal_sessions

    def forget(self, session_id: SessionId) -> None:
        """Forget a session of this agent alone, also a temporary one.

        A journal still has it, and the next call reads it from there. If a call in it runs, it is
        forgotten after that call.
        """
        sessions = self._journal_sessions
        if sessions is not None and sessions.is_busy(session_id):
            return
        self.usage_totals.sessions.pop(session_id, None)
        actions = [self.memory.reset, self.tool_sessions.forget]
        actions += [] if sessions is None else [sessions.note_forgotten]
        do_all(partial(forget, session_id) for forget in actions)

    async def aclose(self) -> None:
        """Close the resources of tools in all sessions, here and in all agents below.

        Memories stay, and the next call opens the resources again. Twice is harmless.
        """
        agents = self.named_agents().values()
        await close_all(pair for agent in agents for pair in agent.tool_sessions.open_states())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def get_steps(self, session_id: SessionId = 0) -> list[AgentStep]:
        """Return the thoughts, calls and results of a session. The last thought is the answer."""
        return list_steps(self.memory.messages(session_id), self.name)

    def named_children(self) -> Iterator[tuple[str, Agent[Any]]]:
        """Yield the agents among the attributes, also those in lists, tuples and mappings.

        Each comes with its path, `writer`, `critics.0` or `roles.editor.1`, in the order of the
        attributes. A key that is not a string, or contains a dot, a bracket or half a surrogate
        pair, is written as in Python: `roles[7]` differs from `roles.7`.
        """
        waiting: list[tuple[str, Any]] = [*vars(self).items()][::-1]
        # The containers that were read, by id. The reference prevents the reuse of an id.
        containers: dict[int, Any] = {}
        while waiting:
            path, value = waiting.pop()
            if isinstance(value, Agent):
                yield path, cast("Agent[Any]", value)
            elif id(value) not in containers and isinstance(value, Mapping | list | tuple):
                is_mapping = isinstance(value, Mapping)
                container: Any = cast("Any", value)
                containers[id(container)] = container
                items: Any = container.items() if is_mapping else enumerate(container)
                for key, each in reversed([*items]):
                    if isinstance(each, Agent | Mapping | list | tuple):
                        is_plain = isinstance(key, str) and key and not QUOTED_KEY.search(key)
                        step = f".{key}" if is_plain or not is_mapping else f"[{key!r}]"
                        waiting.append((path + step, cast("Any", each)))

    def named_agents(self) -> dict[str, Agent[Any]]:
        """Return this agent, under "", and all below it by their paths; each agent once."""
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
    """Return a line for the agent and for each below it; stop at one that contains itself."""
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
