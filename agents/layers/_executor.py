"""`ToolExecutor`: runs the tool calls in a message and answers with a message."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, Unpack, cast

from ...commander import ConfigurationError, Node, NodeCancelled, SyncOptions, run
from ...commander.context import INHERITED
from ...commander.errors import is_final
from ...commander.kinds import checked, require_no_loop
from ...messages import Message, ToolCall
from ...tools import (
    AnyTool,
    Approve,
    Decision,
    InvalidArguments,
    Toolkit,
    ToolLike,
    ToolResult,
    ask_approval,
)
from ...tools.calls import NO_PERSON, CallNode, start_call
from ...tools.results import describe_error
from ...tools.sessions import CURRENT_SESSION, ToolSessions
from ...tools.toolkits import by_name, flatten
from ._call import names_sync_form, run_in_tree
from ._guards import wait_for_gate
from ._handoff import Handoff
from ._hooks import AgentHook, AgentHookHandle, Hook, HookHandle, Hooks, methods_of
from ._memory import SessionId
from ._message import AgentMessage
from ._stream import APPROVE

__all__ = ["INTERRUPTED", "ExecutorCall", "ToolExecutor", "answer_of"]

logger = logging.getLogger("anabranch.tools")

INTERRUPTED = "The call was interrupted."


class ToolExecutor:
    """Takes an `AgentMessage` with tool calls, returns one with their results; it never fails.

        executor = ToolExecutor([add, PythonKernel()])
        call = {"name": "add", "parameters": {"a": 1, "b": 2}}
        answer = await executor(AgentMessage(output=call))
        print(answer.text, answer.extra["status"])

    It reads the calls from the message's `output`, or from its `content` if that is None: a
    `ToolCall`, a `Message` with calls, a mapping with `name` and `parameters` (or `arguments`), one
    under `action`, JSON text of these, or a list of any of these. The name is the tool's, or that
    of toolkit and method, `WebBrowser.search`, if only one tool has it. The calls of one message
    run at the same time, each as a node.

    The answer's `output` is a list of `ToolResult`, its `content` their text, its
    `extra["status"]` the worst status among them. Its receiver is the message's sender. A malformed
    message, an unknown tool, wrong arguments and any error of a tool or a hook become results.

    A call inside a node, or a commander's block, is a child of that. Outside it runs under a new
    commander. Cancelling reaches every call. Without `approvals`, a tool that needs an approval is
    refused, unless an agent above has an `approve`. `hooks` are objects with `before_action` or
    `after_action`, such as an `AgentHook`.

    Tools keep their state, as the variables of a `PythonKernel`, for the session `session_id` until
    `reset` or `aclose`. A call without a session belongs to the session of the agent around it,
    outside of an agent to session 0.
    """

    @checked
    def __init__(
        self,
        tools: Iterable[ToolLike],
        *,
        approvals: Approve | None = None,
        hooks: Iterable[AgentHook | object] = (),
        name: str = "ToolExecutor",
    ) -> None:
        self.name = name
        self.approvals = approvals
        self.tool_sessions: ToolSessions = ToolSessions()
        self.tools: dict[str, AnyTool] = {}
        self._aliases: dict[str, AnyTool | None] = {}
        self._before = Hooks()
        self._after = Hooks()
        for item in tools:
            self.add(item)
        for hook in hooks:
            self.add_hook(hook)

    def add(self, item: ToolLike) -> None:
        """Add a tool, a function, or all tools of a toolkit.

        Raises `ConfigurationError`, and adds none, if a name is taken.
        """
        if isinstance(item, Handoff):
            raise ConfigurationError(
                f"{self.name} only runs tools, and {item.name} hands a conversation over. Give it"
                " to an Agent: Agent(tools=[...])"
            )
        methods = item.methods if isinstance(item, Toolkit) else {"": flatten([item])[0]}
        self.tools = by_name(methods.values(), self.tools)
        if isinstance(item, Toolkit):
            for method, tool in methods.items():
                for name in {f"{item.name}.{method}", f"{item.name}.{tool.name}"}:
                    # Two toolkits of one class: the name is ambiguous, so it finds neither.
                    self._aliases[name] = None if name in self._aliases else tool

    def before_action(self, hook: Hook) -> HookHandle:
        """Call `hook(executor, message, session_id)`, plain or async, before a message's calls.

        A message that the hook returns replaces its argument.
        """
        return self._before.add(hook)

    def after_action(self, hook: Hook) -> HookHandle:
        """Call `hook(executor, answer, session_id)` with each answer; see `before_action`."""
        return self._after.add(hook)

    def add_hook(self, hook: AgentHook | object) -> AgentHookHandle:
        """Add the methods `before_action` and `after_action` of an object; the handle removes them.

        Raises `ConfigurationError` if it has neither, or a misspelt one.
        """
        methods = methods_of(hook)
        added = {"before_action": self._before, "after_action": self._after}
        handles = [hooks.add(methods[name]) for name, hooks in added.items() if name in methods]
        if not handles:
            raise ConfigurationError(
                f"{hook!r:.200} has neither before_action nor after_action. An executor calls no"
                " other methods"
            )
        return AgentHookHandle(handles)

    @names_sync_form("await executor(...); in a program without a loop use executor.run_sync(...)")
    async def __call__(
        self,
        message: AgentMessage,
        *,
        session_id: SessionId | None = None,
        context: object = INHERITED,
    ) -> AgentMessage:
        """Run the calls in `message` and return their results.

        `context` is a value that the tools and hooks can read, see `Context`.
        """
        return await run_in_tree(self.call(message, session_id=session_id), context=context)

    def run_sync(
        self,
        message: AgentMessage,
        *,
        session_id: SessionId | None = None,
        **options: Unpack[SyncOptions],
    ) -> AgentMessage:
        """Run the calls in a program without a loop, and block until then.

        `options` are `timeout=`, `limits=` and `context=`, as in `run`.
        """
        require_no_loop("run_sync", "await executor(...)")
        return run(self.call(message, session_id=session_id), **options)

    def call(self, message: AgentMessage, *, session_id: SessionId | None = None) -> ExecutorCall:
        """Make the same call as a node that has not started."""
        return ExecutorCall(self, message, session_id)

    def reset(self, session_id: SessionId = 0) -> None:
        """Drop the state of tools in a session. A kernel starts to end, without a wait."""
        self.tool_sessions.forget(session_id)

    async def aclose(self) -> None:
        """Close the resources of tools in all sessions. The next call opens them again.

        Twice is harmless.
        """
        await self.tool_sessions.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def find(self, name: str) -> AnyTool | None:
        """Return the tool of this name, None if there is none."""
        return self.tools.get(name) or self._aliases.get(name)

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Return a person's decision about `call`."""
        approve = self.approvals or APPROVE.get()
        if approve is None:
            return NO_PERSON
        return await ask_approval(approve, call, tool)


class ExecutorCall(Node[AgentMessage], internal=True, name="execute_tools"):
    """A call of a `ToolExecutor`. Each tool call in the message is a child."""

    # Named like the engine's attributes, so that it does not enter the call's identity.
    _node_started: Sequence[CallNode | ToolResult] = ()

    def __init__(
        self, executor: ToolExecutor, message: AgentMessage, session_id: SessionId | None
    ) -> None:
        self._executor = executor
        self._message = message
        self._session_id = session_id

    async def task(self) -> AgentMessage:
        await wait_for_gate()
        executor, message = self._executor, self._message
        session_id, current = self._session_id, CURRENT_SESSION.get()
        if session_id is None and current is not None:
            session_id = cast("SessionId", current[1])
        else:
            session_id = 0 if session_id is None else session_id
            executor.tool_sessions.enter(session_id)
        try:
            message = await executor._before.run(executor, message, session_id)
            answer = answer_of(executor, message, await self._run(message))
        except Exception as error:  # the error of a hook becomes a result
            if is_final(error):
                raise  # the caller must correct it
            answer = _hook_failed(executor, message, error)
        try:
            return await executor._after.run(executor, answer, session_id)
        except Exception as error:  # as above
            if is_final(error):
                raise
            return _hook_failed(executor, message, error)

    async def _run(self, message: AgentMessage) -> list[ToolResult]:
        """Start all calls, then wait for each."""
        found = message.content if message.output is None else message.output
        try:
            if isinstance(found, str):
                found = json.loads(found)
            if isinstance(found, Message):
                found = found.tool_calls
            items = cast("list[Any]", found) if isinstance(found, (list, tuple)) else [found]
            if not items:
                raise InvalidArguments("the message holds no tool call")
            calls = [_read_call(item, number) for number, item in enumerate(items)]
        except (InvalidArguments, ValueError, RecursionError) as error:
            if not isinstance(error, InvalidArguments):
                error = InvalidArguments(f"the message is not a tool call in JSON: {error}")
            return [ToolResult.of_error(ToolCall(id="call_0", name=""), error)]
        started: list[CallNode | ToolResult] = []
        self._node_started = started
        for call in calls:
            if call.error is not None:
                error = f"Error: the arguments are {call.error}"
                started.append(ToolResult.of(call, error, "invalid"))
            elif (tool := self._executor.find(call.name)) is None:
                started.append(ToolResult.of_unknown_tool(call, self._executor.tools))
            else:
                started.append(start_call(self, call, tool, self._executor.ask))
        for node in started:
            if isinstance(node, CallNode):
                with suppress(NodeCancelled):
                    await node
        return [node.answer if isinstance(node, CallNode) else node for node in started]

    def cut_short(self, *, hooked: bool) -> AgentMessage:
        """Return the known results after the wait for the calls was cancelled and all have ended.

        With `hooked` no result is included that the hooks have not seen.
        """
        if self.result is not None:
            return self.result
        results = [
            each
            if isinstance(each, ToolResult)
            else ToolResult.of(each.call, INTERRUPTED, "failed")
            if hooked or each.state == "cancelled"
            else each.answer
            for each in self._node_started
        ]
        return answer_of(self._executor, self._message, results)


def answer_of(
    executor: ToolExecutor, message: AgentMessage, results: list[ToolResult]
) -> AgentMessage:
    """Return the results of a message's calls as one message; without results, a failed one."""
    results = results or [ToolResult(content=INTERRUPTED, status="failed")]
    statuses = {each.status for each in results}
    status = next((each for each in ("failed", "invalid") if each in statuses), "ok")
    return AgentMessage(
        content="\n".join(each.content or "" for each in results),
        output=results,
        sender=executor.name,
        receiver=message.sender,
        type="tool_result",
        extra={"status": status},
    )


def _hook_failed(executor: ToolExecutor, message: AgentMessage, error: Exception) -> AgentMessage:
    logger.info("a hook of %s raised", executor.name, exc_info=error)
    fault = ToolResult(content=f"Error: a hook raised {describe_error(error)}", status="failed")
    return answer_of(executor, message, [fault])


def _read_call(item: Any, number: int) -> ToolCall:
    """Return a call in any of the accepted forms; raise `InvalidArguments` for another value."""
    if isinstance(item, ToolCall):
        return item
    if not isinstance(item, Mapping):
        raise InvalidArguments(f"not a tool call with 'name' and 'parameters': {item!r:.200}")
    fields = cast("Mapping[str, Any]", item)
    if fields.get("status") == "invalid":
        raise InvalidArguments(fields.get("error") or "the action cannot be used")
    if isinstance(fields.get("action"), Mapping):
        return _read_call(fields["action"], number)
    if isinstance(fields.get("function"), Mapping):
        fields = {**fields["function"], "id": fields.get("id")}
    arguments = fields.get("parameters", fields.get("arguments"))
    if not isinstance(name := fields.get("name"), str) or not name:
        raise InvalidArguments(f"the tool call has no 'name': {item!r:.200}")
    wire = {"id": fields.get("id"), "function": {"name": name, "arguments": arguments}}
    try:
        return ToolCall.from_wire(wire, number)
    except (TypeError, ValueError) as error:
        raise InvalidArguments(f"this is not a tool call: {item!r:.200} ({error})") from None
