"""`StepAgent`: it thinks, uses plugins or runs code, and goes on until it has an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ...backends import Backend
from ...commander.kinds import checked
from ...dispatch import FencedCode, Format
from ...dispatch.assembly import STOPPED
from ...dispatch.formats import FencedCall
from ...messages import ToolCall
from ...messages.options import check_options, parameters_of
from ...tools import AnyTool, Approve, Toolkit, ToolResult
from ...tools.toolkits import flatten
from ._actions import AgentStep, ToolAction, ToolParser, check_formats
from ._agent import Agent
from ._aggregators import Aggregator, System, ToolAggregator
from ._call import run_in_tree
from ._executor import INTERRUPTED, ToolExecutor, answer_of, execution
from ._hooks import AgentHook
from ._interrupted import InterruptedCall
from ._memory import SessionId
from ._message import AgentMessage, has_run

if TYPE_CHECKING:
    from ...store import Journal

__all__ = ["StepAgent"]

INTERPRETER = "interpreter"


class StepAgent(Agent[ToolAction]):
    """An agent whose model writes its calls as text; it works with any model that can write.

    `plugins` are tools. `interpreter` is a toolkit that runs code, mostly a `PythonKernel`: each
    session has variables of its own. `formats` are the ways in which calls are written, by default
    those of the backend, else JSON in a fence (`FencedCall`) and code in one, a call of
    "interpreter". Tools of a format without an `instruction` are listed, and shown by an example.
    A call that cannot be used, or that failed, is told to the model, which may mend
    it.

    It goes on until a reply is `finished` (without a call, if nothing else is said), at most for
    `max_rounds` replies; then the last one is the answer, its `extra["status"]` "max_rounds", and
    what it calls does not run. Action hooks see each call, `approve` and `journal` are as in
    `Agent`. `options` go to the inner agent, whose memory has it all: `get_steps` reads it.
    """

    _reserved_names = ("user", "tools")

    @checked(approve="a function that is asked, Approvals() or None")
    def __init__(
        self,
        backend: Backend,
        system: System | None = None,
        *,
        plugins: Iterable[AnyTool | Toolkit] = (),
        interpreter: Toolkit | None = None,
        formats: Sequence[Format] | None = None,
        aggregator: Aggregator | None = None,
        finished: Callable[[AgentMessage[ToolAction]], bool] = lambda message: (
            message.formatted["status"] == "none"
        ),
        name: str | None = None,
        description: str = "",
        hooks: Iterable[AgentHook | object] = (),
        max_rounds: int = 4,
        approve: Approve | None = None,
        journal: str | Journal | None = None,
        **options: Any,
    ) -> None:
        super().__init__(
            name=name,
            description=description,
            hooks=hooks,
            max_rounds=max_rounds,
            approve=approve,
            journal=journal,
        )
        if max_rounds < 1:
            raise ValueError(f"max_rounds must be at least 1, not {max_rounds!r}")
        inner = parameters_of(Agent.__init__)
        check_options(options, f"the agent {self.name!r}", of=type(self), takes=inner)
        self.finished = finished
        self.interpreter = interpreter
        self.plugins = list(plugins)
        executed = [*self.plugins, *([] if interpreter is None else [interpreter])]
        self.executor = ToolExecutor(executed, name="tools")
        self.executor.tool_sessions = self.tool_sessions
        before, after = self.hooks_of("before_action"), self.hooks_of("after_action")
        self.executor.before_action(lambda _, sent, session: before.run(self, sent, session))
        self.executor.after_action(lambda _, given, session: after.run(self, given, session))
        check_formats(formats)
        formats = list(backend.formats if formats is None else formats)
        if all(each.branch is not None for each in formats):  # none of them writes calls
            formats += [FencedCall()] if self.plugins else []
            formats += [FencedCode(tool=INTERPRETER)] if interpreter is not None else []
        self.agent = Agent(
            backend,
            system,
            name=self.name,
            output_format=ToolParser(
                *formats, tools=self.plugins, template=_show(formats, self.plugins, interpreter)
            ),
            aggregator=aggregator or ToolAggregator(),
            formats=(),
            **options,
        )

    async def forward(
        self, *messages: Any, session_id: SessionId = 0, **options: Any
    ) -> AgentMessage[ToolAction]:
        """Think, act, and think again."""
        answer = await self.agent(*messages, session_id=session_id, **options)
        for _ in range(self.max_rounds - 1):
            if self.finished(answer):
                return answer
            result = await self.act(answer, session_id)
            memory = self.agent.memory
            before = {id(each) for each in memory.messages(session_id)}
            try:
                answer = await self.agent(result, session_id=session_id, **options)
            except BaseException:
                # The agent takes back what it has not answered. But the action has run: a model
                # that did not read so would repeat it.
                since = [each for each in memory.messages(session_id) if id(each) not in before]
                heard = any((m.sender, m.text) == (result.sender, result.text) for m in since)
                if has_run(result) and not heard:
                    memory.add(result, session_id=session_id)
                raise
        if not self.finished(answer):
            answer.extra["status"] = "max_rounds"
        return answer

    async def act(
        self, message: AgentMessage[ToolAction], session_id: SessionId = 0
    ) -> AgentMessage:
        """Run the action of a reply; whatever goes wrong is told in what is returned.

        If it is cancelled, the agent remembers what is known of the action's end.
        """
        found = message.formatted
        if found["status"] == "none":
            return AgentMessage(content="Go on.", sender="tools", receiver=self.name)
        toolkit = self.interpreter
        if toolkit is not None and found["status"] == "valid" and found["tool_type"] == INTERPRETER:
            tool, (code,) = toolkit.tools[0], found["action"]["parameters"].values()
            argument = next(iter(tool.parameters["properties"]))
            action = {"name": tool.name, "parameters": {argument: code}}
            message = message.model_copy(update={"formatted": {**found, "action": action}})
        call = execution(self.executor, message, session_id)
        try:
            return await run_in_tree(call)
        except BaseException:
            # The action may have run: a model that did not read of its end would repeat it.
            hooked = bool(self.hooks_of("after_action"))
            self.agent.memory.add(call.cut_short(hooked=hooked), session_id=session_id)
            raise

    def remember_interrupted(
        self, asked: Sequence[AgentMessage], cut: InterruptedCall, session_id: SessionId
    ) -> None:
        """Put a call that was cut, with its actions and their results, into the inner memory."""
        parser, memory = self.agent.output_format, self.agent.memory
        memory.add(*asked, session_id=session_id)
        for message in cut.said:
            found = None
            if parser is not None and id(message) in cut.begun:
                stopped = message.extra.setdefault("status", "ok") in STOPPED
                with suppress(ValueError):  # by a parser of the user's own
                    found = (parser.parse_cut if stopped else parser.parse)(message.text)
            message.formatted = found
            memory.add(message, session_id=session_id)
            if found is None or found["status"] == "none":
                continue
            results = [
                ToolResult.of(
                    ToolCall(id=f"call_{number}", name=name),
                    INTERRUPTED if text is None else text,
                    "failed" if text is None else "ok",
                )
                for number, (name, text) in enumerate(
                    cut.begun[id(message)] or [(found["tool_type"] or "", None)]
                )
            ]
            memory.add(answer_of(self.executor, message, results), session_id=session_id)

    @property
    def has_own_memory(self) -> bool:
        """Whether the inner agent was given a memory."""
        return self.agent.has_own_memory

    def get_steps(self, session_id: SessionId = 0) -> list[AgentStep]:
        """Return the thoughts, calls and results of a session."""
        return self.agent.get_steps(session_id)


def _show(
    formats: Iterable[Format], plugins: Iterable[AnyTool | Toolkit], interpreter: Toolkit | None
) -> str:
    """Return what the model is told for formats that say nothing to it: the tools, and examples."""
    silent = [each for each in formats if each.branch is None and not each.instruction]
    tools = flatten(plugins)
    arguments = {tool.name: [*tool.parameters["properties"]] for tool in tools}
    arguments |= {INTERPRETER: ["code"]} if interpreter is not None else {}
    if not silent or not arguments:
        return ""
    lines = ["You have these tools:", "{tools}", ""] if tools else []
    lines.append("To call one, or to run code, write as shown here, and end your message there:")
    for each in silent:  # each by the first call that it can write and read
        for name, names in arguments.items():
            call = ToolCall(id="", name=name, arguments=dict.fromkeys(names, "..."))
            if ToolParser(each).parse(written := each.write(call))["tool_type"] == name:
                lines.append(written)
                break
    return "\n".join(lines)
