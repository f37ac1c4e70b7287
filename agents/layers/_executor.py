"""`ToolExecutor`: runs the calls that a message holds and answers with a message."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Self, cast

from ...commander import Node, NodeCancelled
from ...commander.kinds import checked
from ...messages import Message, ToolCall
from ...tools import AnyTool, Approve, Decision, InvalidArguments, Toolkit, ToolResult, ask_approval
from ...tools.calls import NO_PERSON, CallNode, start_call
from ...tools.results import describe_error
from ...tools.sessions import CURRENT_SESSION, ToolSessions
from ...tools.toolkits import by_name
from ._call import run_in_tree
from ._hooks import Hook, HookHandle, Hooks
from ._memory import SessionId
from ._message import AgentMessage
from ._stream import APPROVE

__all__ = ["INTERRUPTED", "ToolExecutor", "answer_of", "execution"]

logger = logging.getLogger("anabranch.tools")

INTERRUPTED = "The call was interrupted."


class ToolExecutor:
    """Takes an `AgentMessage` with tool calls, gives one with their results; it never fails.

    The calls stand in the message's `formatted`, or in its `content` if that is None: a `ToolCall`,
    a `Message` with calls, a mapping with `name` and `parameters` (or `arguments`), one under
    `action`, JSON text of such, or a list of any of these. A tool is named by its own name, or by
    toolkit and method, `WebBrowser.search`, if that means one tool alone. The calls of one message
    run at once, each a node.

    The answer's `formatted` is a list of `ToolResult`, its `content` their text, its
    `extra["status"]` the worst status among them; it goes to the message's sender. A malformed
    message, an unknown tool, wrong arguments and whatever a tool or a hook raises are results.

    Calling it inside a node, or a commander's block, makes a child of that; outside it runs under a
    commander of its own. Cancelling reaches every call. Without `approvals`, a tool that wants a
    person's yes is refused, unless an agent above has an `approve`.

    What a tool keeps (the variables of a `PythonKernel`) it keeps for the session that `session_id`
    names, until `reset` or `aclose`; a call that names none belongs to the session in which an
    agent makes it, elsewhere to session 0.
    """

    @checked
    def __init__(
        self,
        tools: Iterable[AnyTool | Toolkit],
        *,
        approvals: Approve | None = None,
        name: str = "ToolExecutor",
    ) -> None:
        self.name = name
        self.approvals = approvals
        self.tool_sessions = ToolSessions()
        self.tools: dict[str, AnyTool] = {}
        self._aliases: dict[str, AnyTool | None] = {}
        self._before = Hooks()
        self._after = Hooks()
        for item in tools:
            self.add(item)

    def add(self, item: AnyTool | Toolkit) -> None:
        """Add a tool, or all of a toolkit; raise `ConfigurationError`, and add none, if a name is
        taken.
        """
        methods = item.methods if isinstance(item, Toolkit) else {"": item}
        self.tools = by_name(methods.values(), self.tools)
        if isinstance(item, Toolkit):
            for method, tool in methods.items():
                for name in {f"{item.name}.{method}", f"{item.name}.{tool.name}"}:
                    # What two toolkits of one class both call so is a name for neither.
                    self._aliases[name] = None if name in self._aliases else tool

    def before_action(self, hook: Hook) -> HookHandle:
        """Call `hook(executor, message, session_id)`, plain or async, before a message's calls run.

        A message that it returns takes the place of the one it was given.
        """
        return self._before.add(hook)

    def after_action(self, hook: Hook) -> HookHandle:
        """Call `hook(executor, answer, session_id)` with each answer; see `before_action`."""
        return self._after.add(hook)

    async def __call__(
        self, message: AgentMessage, *, session_id: SessionId | None = None
    ) -> AgentMessage:
        """Run the calls in `message` and return their results."""
        return await run_in_tree(execution(self, message, session_id))

    def reset(self, session_id: SessionId = 0) -> None:
        """Forget what tools keep for a session: its kernel begins to end, and nobody waits."""
        self.tool_sessions.forget(session_id)

    async def aclose(self) -> None:
        """Close what tools hold open in any session; twice is harmless, a call opens it anew."""
        await self.tool_sessions.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def find(self, name: str) -> AnyTool | None:
        """Return the tool of this name."""
        return self.tools.get(name) or self._aliases.get(name)

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        """Ask a person whether `call` may run."""
        approve = self.approvals or APPROVE.get()
        if approve is None:
            return NO_PERSON
        return await ask_approval(approve, call, tool)


class _Execute(Node[AgentMessage], internal=True, name="execute_tools"):
    # Of an engine's name, as it is no part of what was called.
    _node_started: Sequence[CallNode | ToolResult] = ()

    def __init__(
        self, executor: ToolExecutor, message: AgentMessage, session_id: SessionId | None
    ) -> None:
        self._executor = executor
        self._message = message
        self._session_id = session_id

    async def task(self) -> AgentMessage:
        executor, sent = self._executor, self._message
        session_id, current = self._session_id, CURRENT_SESSION.get()
        if session_id is None and current is not None:
            session_id = cast("SessionId", current[1])
        else:
            session_id = 0 if session_id is None else session_id
            executor.tool_sessions.enter(session_id)
        try:
            sent = await executor._before.run(executor, sent, session_id)
            answer = answer_of(executor, sent, await self._run(sent))
        except Exception as error:  # noqa: BLE001 - a hook's fault is told as a call's is
            answer = _hook_failed(executor, sent, error)
        try:
            return await executor._after.run(executor, answer, session_id)
        except Exception as error:  # noqa: BLE001 - as above
            return _hook_failed(executor, sent, error)

    async def _run(self, message: AgentMessage) -> list[ToolResult]:
        """Start all calls, then wait for each."""
        found = message.content if message.formatted is None else message.formatted
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
        """Return what is known of the calls when the wait for them was cancelled and all has ended.

        Where results are `hooked`, none is told that the hooks have not seen.
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


def execution(
    executor: ToolExecutor, message: AgentMessage, session_id: SessionId | None
) -> _Execute:
    """Return a call of an executor as a node that has not started."""
    return _Execute(executor, message, session_id)


def answer_of(
    executor: ToolExecutor, message: AgentMessage, results: list[ToolResult]
) -> AgentMessage:
    """Return the results of a message's calls as one message; without any, nothing is known."""
    results = results or [ToolResult(content=INTERRUPTED, status="failed")]
    statuses = {each.status for each in results}
    status = next((each for each in ("failed", "invalid") if each in statuses), "ok")
    return AgentMessage(
        content="\n".join(each.content or "" for each in results),
        formatted=results,
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
    """Return a call, however it is written; raise `InvalidArguments` for what is none."""
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
