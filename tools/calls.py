"""One tool call as a node: approved first if needed, limited in time; its failure is a result.

All packages run calls through `start_call`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast
from uuid import uuid4

from ..commander import ModelRetry, Node, NodeCancelled, emit, is_watched
from ..commander.durable import Effect, scope_of
from ..commander.errors import is_final, mark_final
from ..messages import Part, ToolCall
from ._approval import Decision
from ._effect import CURRENT_CALL, Done, NotDone
from ._schema import InvalidArguments
from ._tool import AnyTool, contain_exit, result_text
from .results import Illustrated, ToolResult

__all__ = [
    "NO_PERSON",
    "Ask",
    "CallNode",
    "do_once",
    "effect_of",
    "read_text",
    "start_call",
    "write_text",
]

Ask: TypeAlias = Callable[[ToolCall, AnyTool], Awaitable[bool | Decision]]
"""Asks a person whether a call may run."""


NO_PERSON = Decision(False, reason="nobody is there to ask")
"""The answer without a person: a durable run then waits for an answer through its journal."""


def start_call(parent: Node[object], call: ToolCall, tool: AnyTool, ask: Ask) -> CallNode:
    """Run `call` as a child of `parent`, after a person's approval if the tool requires it.

    A failure becomes the result, so the node does not fail; it may be cancelled. Only the tool's
    `fatal_errors`, a `ContextError` and a failure of `ask` are raised: the caller must correct
    them, and the model cannot. In a durable run the call is an effect of `parent`, claimed before
    this returns: its ordinal among equal calls finds its journal entry of an earlier execution. The
    journal stores the tool's own result. The hooks of an agent change it afterwards, and run in
    each execution.
    """
    effect = effect_of(parent, tool, call.arguments)
    node: CallNode
    node = _AskFirst(call, tool, ask, effect) if tool.approve else _Run(call, tool, effect)

    def recover(ended: Node[Any]) -> None:
        if not (is_final(ended.error) or isinstance(ended.error, tool.bare.fatal_errors)):
            ended.recover(ToolResult.of_error(call, ended.error, tool.timeout))

    node.at_exception(recover)
    if tool.approve:  # `timeout` and `retry` apply to the call after the approval
        if is_watched(parent):
            node.at_done(_emit_refused)
        return parent.call_handler(node, claim=True)
    return _put(parent, node, tool)


def effect_of(
    parent: Node[Any], tool: AnyTool, arguments: Mapping[str, Any], key: str | None = None
) -> Effect | None:
    """Claim a tool call as an effect of `parent`; return None outside of a durable run."""
    scope = scope_of(parent)
    if scope is None:
        return None
    harmless = tool.read_only or tool.effect == "nested"
    early = tool.read_only and not tool.approve
    return scope.effect(tool.name, arguments, harmless=harmless, early=early, key=key)


def _put(parent: Node[object], node: CallNode, tool: AnyTool) -> CallNode:
    # The effect limits the tool itself, but not the wait for a person.
    timeout = tool.timeout if scope_of(parent) is None else None
    if is_watched(parent):
        node.at_done(lambda ended: emit(ended, "answered", cast("CallNode", ended).answer))
    parent.call_handler(node, timeout=timeout, retry=tool.retry, claim=True)
    emit(node, "called", node.call)
    return node


def _emit_refused(node: Node[Any]) -> None:
    """Emit the events of a call that was asked about and did not run: each call emits them once."""
    if isinstance(node, _AskFirst) and not node.has_run:
        emit(node, "called", node.call)
        emit(node, "answered", node.answer)


class CallNode(Node[ToolResult], internal=True):
    """The node of one call; it has the tool's name."""

    def __init__(
        self, call: ToolCall, tool: AnyTool, effect: Effect | None = None, name: str = ""
    ) -> None:
        super().__init__(name or tool.name)
        self._call = call
        self._tool = tool
        # The call's effect in a durable run; it belongs to the arguments in `call`.
        self._node_effect = effect

    @property
    def call(self) -> ToolCall:
        """The call as the model made it, or as a person changed it."""
        return self._call

    @property
    def answer(self) -> ToolResult:
        """The result of the call once the node is done, also after a cancel."""
        return self.result or ToolResult.of_error(self._call, self.error)


class _Run(CallNode, internal=True):
    _key = ""
    forgotten = False  # only a durable run has earlier processes

    @property
    def key(self) -> str:
        """The `effect_key()` outside of a durable run."""
        self._key = self._key or uuid4().hex
        return self._key

    async def task(self) -> ToolResult:
        call, tool, effect = self._call, self._tool, self._node_effect
        try:
            with contain_exit(KeyboardInterrupt):  # the user's own Ctrl-C ends the program
                if effect is None:
                    CURRENT_CALL.set(self)
                    return ToolResult.of(call, await tool.run(call.arguments))
                arguments, tool = await tool.prepare(call.arguments)
                bare = tool.bare
                # Before the journal records that the call starts.
                bare.check(arguments)
                effect = effect.with_inputs(arguments)
                stored = await do_once(
                    effect, bare, bare.run, arguments, write_text, prepare=bare.contexts
                )
                return ToolResult.of(call, await tool.finish(read_text(stored)))
        # A result, not a failure: `retry` would only repeat it.
        except (InvalidArguments, ModelRetry) as error:
            return ToolResult.of_error(call, error)


async def do_once(
    effect: Effect,
    tool: AnyTool,
    run: Callable[[Mapping[str, Any]], Awaitable[Any]],
    arguments: Mapping[str, Any],
    write: Callable[[Any], Any],
    check: Callable[[Mapping[str, Any]], Any] | None = None,
    prepare: Callable[[], object] | None = None,
) -> Any:
    """Run a tool as an effect, and return the stored form of its result.

    `prepare` is called before the effect begins; if it raises, the effect has not begun. `write`
    turns the result of `run` into its stored form. `check` gets the result that a person states for
    a call in doubt, and returns its stored form or raises `ValueError`.
    """
    CURRENT_CALL.set(effect)

    async def work() -> Any:
        with contain_exit(KeyboardInterrupt):
            return write(await run(arguments))

    async def look_up(key: str) -> Any:
        with contain_exit(KeyboardInterrupt):
            outcome = await tool.run_reconcile(arguments, key)
        if isinstance(outcome, Done):
            return write(outcome.value)
        return False if isinstance(outcome, NotDone) else None

    return await effect.do(
        work,
        again=tool.effect == "keyed",
        reconcile=None if tool.reconcile is None else look_up,
        horizon=tool.reconcile_after,
        timeout=tool.timeout,
        check=check,
        prepare=prepare,
    )


def write_text(result: object) -> str | dict[str, Any]:
    """Return the stored form of a result: its text, with parts and files if `Illustrated`."""
    text = result_text(result)
    if not isinstance(text, Illustrated):
        return text
    parts = [part.model_dump() for part in text.parts]
    return {"text": str(text), "parts": parts, "files": text.files}


def read_text(stored: Any) -> str:
    """Return the text of a stored result, written by `write_text` or as a plain value."""
    if isinstance(stored, str):
        return stored
    if "text" not in stored:
        return result_text(*stored.values())
    parts = [Part.model_validate(part) for part in stored["parts"]]
    return Illustrated(stored["text"], parts, stored["files"])


class _AskFirst(CallNode, internal=True):
    has_run = False  # whether the call ran, as a child of this node

    def __init__(self, call: ToolCall, tool: AnyTool, ask: Ask, effect: Effect | None) -> None:
        super().__init__(call, tool, effect, f"ask_first:{tool.name}")
        self._ask = ask

    async def task(self) -> ToolResult:
        """Ask, then run the approved call. Invalid arguments fail without a question.

        The call that the person saw is the call that runs: the hooks of an agent have already
        changed it, and the copy here is not shared with the holders of the message.
        """
        with contain_exit(KeyboardInterrupt):
            arguments, tool = await self._tool.prepare(self._call.arguments)
            tool.check(arguments)
        call, effect = self._call, self._node_effect
        if arguments is not call.arguments:
            call = call.model_copy(update={"arguments": arguments, "raw": None})
        call = call.model_copy(deep=True)
        if effect is None:
            decision = await self._decide(call.model_copy(deep=True), tool)
        else:
            call, decision = await self._ask_once(effect, call, tool)
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            text = f"Error: the user did not allow this call{why}"
            return ToolResult.of(self._call, text, "failed")
        call = decision.apply_to(call)
        if effect is not None:
            effect = effect.with_inputs(call.arguments)
        self.has_run = True
        answer = await _put(self, _Run(call, tool, effect), tool)
        if decision.arguments is not None:
            # Otherwise the model takes this for the result of the call it made.
            answer.content = f"(The user changed the arguments to {call.text})\n{answer.content}"
        return answer

    async def _decide(self, call: ToolCall, tool: AnyTool) -> Decision:
        """Ask whether `call` may run. A failure to ask fails the whole call."""
        try:
            return Decision.of(await self._ask(call, tool))
        except NodeCancelled:  # the question was cancelled, and so is this call
            raise
        except Exception as error:
            mark_final(error)
            raise

    async def _ask_once(
        self, effect: Effect, call: ToolCall, tool: AnyTool
    ) -> tuple[ToolCall, Decision]:
        """Ask in a durable run; a question of an earlier execution keeps its arguments."""

        def build_call(arguments: Mapping[str, Any]) -> ToolCall:
            return call.model_copy(update={"arguments": dict(arguments), "raw": None}, deep=True)

        async def ask_person(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            decision = await self._decide(build_call(arguments), tool)
            if decision is NO_PERSON:
                return None
            changed = None if decision.arguments is None else dict(decision.arguments)
            return {
                "approved": decision.approved,
                "arguments": changed,
                "reason": decision.reason,
            }

        arguments, answer = await effect.ask(call.arguments, ask_person)
        return build_call(arguments), Decision(**answer)
