"""`StepAgent`: an agent that thinks, calls tools or runs code, and thinks again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...backends import Backend, as_backend
from ...commander.errors import ConfigurationError
from ...commander.kinds import checked
from ...dispatch import FencedCode, Format
from ...dispatch.formats import FencedCall
from ...messages import ToolCall
from ...messages.options import check_options, parameters_of
from ...tools import Approve, Toolkit, ToolLike, ToolResult
from ...tools.toolkits import flatten
from ._actions import AgentStep, ToolAction, ToolParser, check_formats
from ._agent import Agent
from ._aggregators import Aggregator, ToolAggregator
from ._call import run_in_tree
from ._executor import INTERRUPTED, ToolExecutor, answer_of
from ._guards import Guard
from ._hooks import AgentHook
from ._instructions import Instructions
from ._interrupted import InterruptedCall
from ._memory import SessionId
from ._message import AgentMessage, has_run
from ._override import A_BACKEND
from ._parsers import parse_reply
from ._stream import lend_voice

if TYPE_CHECKING:
    from ...store import Journal

__all__ = ["StepAgent"]

INTERPRETER = "interpreter"


class StepAgent(Agent[ToolAction]):
    """An agent whose model writes its calls as text. It works with any model.

        agent = StepAgent(backend, plugins=[search], interpreter=PythonKernel())
        answer = await agent("How many days are there until the next eclipse?")

    `plugins` are tools. `interpreter` is a toolkit that runs code, mostly a `PythonKernel`. Each
    session has separate variables. `formats` say how the model writes calls. The default is the
    backend's formats. If none of them finds calls, a fenced block of JSON is a call (`FencedCall`),
    and a fenced block of code is a call of "interpreter". If a format has no `instruction`, the
    prompt lists the tools and shows an example. The model reads the error of an invalid or failed
    call, and may correct it.

    The agent stops when a reply is `finished`, by default one without a call, or after `max_rounds`
    replies. Then the last reply is the answer, its `extra["status"]` is "max_rounds", and its call
    does not run. Action hooks see each call. `approve` and `journal` are as in `Agent`. An inner
    `Agent`, made with `options`, sends the requests. Its memory has all steps: `get_steps` reads
    it.
    """

    _reserved_names = ("user", "tools")

    @checked(backend=A_BACKEND, approve="a function that is asked, Approvals() or None")
    def __init__(
        self,
        backend: Backend | str,
        instructions: Instructions | None = None,
        *,
        plugins: Iterable[ToolLike] = (),
        interpreter: Toolkit | None = None,
        formats: Sequence[Format] | None = None,
        aggregator: Aggregator | None = None,
        finished: Callable[[AgentMessage[ToolAction]], bool] = lambda message: (
            message.output["status"] == "none"
        ),
        name: str | None = None,
        description: str = "",
        hooks: Iterable[AgentHook | object] = (),
        guards: Iterable[Guard] = (),
        max_rounds: int = 4,
        approve: Approve | None = None,
        journal: str | Journal | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            description=description,
            hooks=hooks,
            guards=guards,
            max_rounds=max_rounds,
            approve=approve,
            journal=journal,
        )
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, not {max_rounds!r}")
        inner = parameters_of(Agent.__init__)
        check_options(options, f"the agent {self.name!r}", of=type(self), takes=inner)
        if refused := sorted(options.keys() & {"output_type", "output_mode", "output_format"}):
            raise ConfigurationError(
                f"a {type(self).__name__} reads an action from each reply, so it takes no"
                f" {refused[0]}=. Give it to an Agent with tools="
            )
        self.finished = finished
        self.interpreter = interpreter
        self.plugins: list[ToolLike] = list(plugins)
        executed = [*self.plugins, *([] if interpreter is None else [interpreter])]
        self.executor: ToolExecutor = ToolExecutor(executed, name="tools")
        self.executor.tool_sessions = self.tool_sessions
        before, after = self.hooks_of("before_action"), self.hooks_of("after_action")
        self.executor.before_action(lambda _, sent, session: before.run(self, sent, session))
        self.executor.after_action(lambda _, given, session: after.run(self, given, session))
        check_formats(formats)
        backend = as_backend(backend)
        formats = list(backend.formats if formats is None else formats)
        # A format with a branch only splits text, so these find no calls.
        if all(each.branch is not None for each in formats):
            formats += [FencedCall()] if self.plugins else []
            formats += [FencedCode(tool=INTERPRETER)] if interpreter is not None else []
        self.agent: Agent[ToolAction] = Agent(
            backend,
            instructions,
            name=self.name,
            output_format=ToolParser(
                *formats,
                tools=self.plugins,
                template=_list_tools(formats, self.plugins, interpreter),
            ),
            aggregator=aggregator or ToolAggregator(),
            formats=(),
            **options,
        )

    async def forward(
        self, *messages: Any, session_id: SessionId = 0, **options: Any
    ) -> AgentMessage[ToolAction]:
        """Ask the model, run its action, and ask again, until a reply is `finished`."""
        with lend_voice():
            answer = await self.agent(*messages, session_id=session_id, **options)
        for _ in range(self.max_rounds - 1):
            if self.finished(answer):
                return answer
            result = await self.act(answer, session_id)
            memory = self.agent.memory
            before = {id(each) for each in memory.messages(session_id)}
            try:
                with lend_voice():
                    answer = await self.agent(result, session_id=session_id, **options)
            except BaseException:
                # A failed call removes its messages from the memory. But the action has run, and a
                # model that does not read its result would repeat it.
                since = [each for each in memory.messages(session_id) if id(each) not in before]
                is_remembered = any(
                    (m.sender, m.text) == (result.sender, result.text) for m in since
                )
                if has_run(result) and not is_remembered:
                    memory.add(result, session_id=session_id)
                raise
        if not self.finished(answer):
            answer.extra["status"] = "max_rounds"
        return answer

    async def act(
        self, message: AgentMessage[ToolAction], session_id: SessionId = 0
    ) -> AgentMessage:
        """Run the action of a reply. Every error is part of the returned message.

        If this is cancelled, the agent remembers the known results of the action.
        """
        parsed = message.output
        if parsed["status"] == "none":
            return AgentMessage(content="Go on.", sender="tools", receiver=self.name)
        toolkit = self.interpreter
        if (
            toolkit is not None
            and parsed["status"] == "valid"
            and parsed["tool_type"] == INTERPRETER
        ):
            tool, (code,) = toolkit.tools[0], parsed["action"]["parameters"].values()
            argument = next(iter(tool.parameters["properties"]))
            action = {"name": tool.name, "parameters": {argument: code}}
            message = message.model_copy(update={"output": {**parsed, "action": action}})
        call = self.executor.call(message, session_id=session_id)
        try:
            return await run_in_tree(call)
        except BaseException:
            # The action may have run. A model that does not read its result would repeat it.
            hooked = bool(self.hooks_of("after_action"))
            self.agent.memory.add(call.cut_short(hooked=hooked), session_id=session_id)
            raise

    def remember_interrupted(
        self, asked: Sequence[AgentMessage], call: InterruptedCall, session_id: SessionId
    ) -> None:
        """Add an interrupted call, with its actions and their results, to the inner memory."""
        parser, memory = self.agent.output_format, self.agent.memory
        memory.add(*asked, session_id=session_id)
        for message in call.messages:
            action = None
            if parser is not None and id(message) in call.tools:
                status = message.extra.setdefault("status", "ok")
                with suppress(ValueError):  # a user's parser may raise
                    action = parse_reply(parser, message.text, status)
            message.output = action
            memory.add(message, session_id=session_id)
            if action is None or action["status"] == "none":
                continue
            results = [
                ToolResult.of(
                    ToolCall(id=f"call_{number}", name=name),
                    INTERRUPTED if text is None else text,
                    "failed" if text is None else "ok",
                )
                for number, (name, text) in enumerate(
                    call.tools[id(message)] or [(action["tool_type"] or "", None)]
                )
            ]
            memory.add(answer_of(self.executor, message, results), session_id=session_id)

    @property
    def has_own_memory(self) -> bool:
        """Whether the inner agent was given a memory."""
        return self.agent.has_own_memory

    @property
    def conversant(self) -> Agent[Any]:
        """The inner agent."""
        return self.agent

    def get_steps(self, session_id: SessionId = 0) -> list[AgentStep]:
        """Return the thoughts, calls and results of a session."""
        return self.agent.get_steps(session_id)


def _list_tools(
    formats: Iterable[Format], plugins: Iterable[ToolLike], interpreter: Toolkit | None
) -> str:
    """Return the prompt for formats without an instruction: the tools, and an example each."""
    silent = [each for each in formats if each.branch is None and not each.instruction]
    tools = flatten(plugins)
    arguments = {tool.name: [*tool.parameters["properties"]] for tool in tools}
    arguments |= {INTERPRETER: ["code"]} if interpreter is not None else {}
    if not silent or not arguments:
        return ""
    lines = ["You have these tools:", "{tools}", ""] if tools else []
    lines.append("To call one, or to run code, write as shown here, and end your message there:")
    for each in silent:  # show the first call that the format can both write and parse
        for name, names in arguments.items():
            call = ToolCall(id="", name=name, arguments=dict.fromkeys(names, "..."))
            if ToolParser(each).parse(written := each.write(call))["tool_type"] == name:
                lines.append(written)
                break
    return "\n".join(lines)
