"""One call of a tool as a node: asked about first if it must be, limited in time, never failing.

`start_call` is how every room runs a call: the handlers those of a reply, the agents those that
come as messages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast
from uuid import uuid4

from ..commander import Node, emit, is_watched
from ..commander.kept import Effect
from ..commander.scope import scope_of
from ..messages import Part, ToolCall
from ._approval import Decision
from ._effect import KEYED, Done, NotDone
from ._schema import InvalidArguments
from ._tool import AnyTool, contain_exit, result_text
from .results import Illustrated, ToolResult

__all__ = [
    "NOBODY",
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


NOBODY = Decision(False, reason="nobody is there to ask")
"""The answer where nobody is there: a durable run then waits for one that comes by its journal."""


def start_call(parent: Node[object], call: ToolCall, tool: AnyTool, ask: Ask) -> CallNode:
    """Run `call` as a child of `parent`, after a person's yes if the tool wants one.

    Whatever goes wrong is told in the result, so the node does not fail; it may be cancelled. In a
    durable run the call is an effect of `parent`, claimed here and now: by its place among equal
    calls it finds what it did in an earlier life. The result is kept as the tool gave it, before an
    agent's hooks see it, which run in each life.
    """
    effect = effect_of(parent, tool, call.arguments)
    node: CallNode
    node = _AskFirst(call, tool, ask, effect) if tool.approve else _Run(call, tool, effect)
    node.at_exception(
        lambda ended: ended.recover(ToolResult.of_error(call, ended.error, tool.timeout))
    )
    if tool.approve:  # what is limited and tried again is the call after the yes
        if is_watched(parent):
            node.at_done(_tell_refused)
        return parent.call_handler(node, claim=True)
    return _put(parent, node, tool)


def effect_of(
    parent: Node[Any], tool: AnyTool, arguments: Mapping[str, Any], key: str | None = None
) -> Effect | None:
    """Claim a call of a tool as an effect of `parent`; None outside a durable run."""
    scope = scope_of(parent)
    if scope is None:
        return None
    harmless = tool.read_only or tool.effect == "nested"
    early = tool.read_only and not tool.approve
    return scope.effect(tool.name, arguments, harmless=harmless, early=early, key=key)


def _put(parent: Node[object], node: CallNode, tool: AnyTool) -> CallNode:
    # An effect limits the tool alone, and not how long a person is waited for.
    timeout = tool.timeout if scope_of(parent) is None else None
    if is_watched(parent):
        node.at_done(lambda ended: emit(ended, "answered", cast("CallNode", ended).answer))
    parent.call_handler(node, timeout=timeout, retry=tool.retry, claim=True)
    emit(node, "called", node.call)
    return node


def _tell_refused(node: Node[Any]) -> None:
    """Tell of a call that was asked about and did not run: each call is told once."""
    if isinstance(node, _AskFirst) and not node.has_run:
        emit(node, "called", node.call)
        emit(node, "answered", node.answer)


class CallNode(Node[ToolResult], internal=True):
    """The node of one call; it goes by the tool's name."""

    def __init__(
        self, call: ToolCall, tool: AnyTool, effect: Effect | None = None, name: str = ""
    ) -> None:
        super().__init__(name or tool.name)
        self._call = call
        self._tool = tool
        # What it is in a durable run; it belongs to the arguments in `call`.
        self._node_effect = effect

    @property
    def call(self) -> ToolCall:
        """The call as the model made it, or as a person has changed it."""
        return self._call

    @property
    def answer(self) -> ToolResult:
        """What the call has given when the node is done, also if it was cancelled."""
        return self.result or ToolResult.of_error(self._call, self.error)


class _Run(CallNode, internal=True):
    _key = ""
    forgotten = False  # outside a durable run there is one process

    @property
    def key(self) -> str:
        """What `effect_key()` gives outside a durable run."""
        self._key = self._key or uuid4().hex
        return self._key

    async def task(self) -> ToolResult:
        call, tool, effect = self._call, self._tool, self._node_effect
        try:
            with contain_exit(KeyboardInterrupt):  # the user's own Ctrl-C
                if effect is None:
                    KEYED.set(self)
                    return ToolResult.of(call, await tool.run(call.arguments))
                arguments, tool = await tool.prepare(call.arguments)
                bare = tool.bare
                bare.check(arguments)  # before anything is written
                effect = effect.changed(arguments)
                kept = await do_once(effect, bare, bare.run, arguments, write_text)
                return ToolResult.of(call, await tool.finish(read_text(kept)))
        except InvalidArguments as error:  # no failure: another attempt would not mend them
            return ToolResult.of_error(call, error)


async def do_once(
    effect: Effect,
    tool: AnyTool,
    run: Callable[[Mapping[str, Any]], Awaitable[Any]],
    arguments: Mapping[str, Any],
    write: Callable[[Any], Any],
    check: Callable[[Mapping[str, Any]], Any] | None = None,
) -> Any:
    """Run a tool as an effect, and return what is kept: what `write` makes of what `run` gives.

    `check` gets what a person says that it gave, and returns what is kept of that, or raises
    `ValueError`.
    """
    KEYED.set(effect)

    async def work() -> Any:
        with contain_exit(KeyboardInterrupt):
            return write(await run(arguments))

    async def look_up(key: str) -> Any:
        with contain_exit(KeyboardInterrupt):
            known = await tool.look_up(arguments, key)
        if isinstance(known, Done):
            return write(known.value)
        return False if isinstance(known, NotDone) else None

    return await effect.do(
        work,
        again=tool.effect == "keyed",
        reconcile=None if tool.reconcile is None else look_up,
        horizon=tool.reconcile_after,
        timeout=tool.timeout,
        check=check,
    )


def write_text(given: object) -> str | dict[str, Any]:
    """Return the text of what a tool gave, with the parts and files of an `Illustrated` one."""
    text = result_text(given)
    if not isinstance(text, Illustrated):
        return text
    parts = [part.model_dump() for part in text.parts]
    return {"text": str(text), "parts": parts, "files": text.files}


def read_text(kept: Any) -> str:
    """Return what `write_text` has written; of what was kept as a value, its text."""
    if isinstance(kept, str):
        return kept
    if "text" not in kept:
        return result_text(*kept.values())
    parts = [Part.model_validate(part) for part in kept["parts"]]
    return Illustrated(kept["text"], parts, kept["files"])


class _AskFirst(CallNode, internal=True):
    has_run = False  # below this node

    def __init__(self, call: ToolCall, tool: AnyTool, ask: Ask, effect: Effect | None) -> None:
        super().__init__(call, tool, effect, f"ask_first:{tool.name}")
        self._ask = ask

    async def task(self) -> ToolResult:
        """Ask, then run what was allowed; arguments that are wrong are not asked about.

        What was asked about is what runs: an agent's hooks have seen it before, and nobody else
        has hold of it, whoever has the message.
        """
        with contain_exit(KeyboardInterrupt):
            arguments, tool = await self._tool.prepare(self._call.arguments)
            tool.check(arguments)
        call, effect = self._call, self._node_effect
        if arguments is not call.arguments:
            call = call.model_copy(update={"arguments": arguments, "raw": None})
        call = call.model_copy(deep=True)
        if effect is None:
            decision = Decision.of(await self._ask(call.model_copy(deep=True), tool))
        else:
            call, decision = await self._ask_once(effect, call, tool)
        if not decision.approved:
            why = f": {decision.reason}" if decision.reason else ""
            text = f"Error: the user did not allow this call{why}"
            return ToolResult.of(self._call, text, "failed")
        call = decision.apply_to(call)
        if effect is not None:
            effect = effect.changed(call.arguments)
        self.has_run = True
        answer = await _put(self, _Run(call, tool, effect), tool)
        if decision.arguments is not None:
            # Or the model would take the result for that of the call it made.
            answer.content = f"(The user changed the arguments to {call.text})\n{answer.content}"
        return answer

    async def _ask_once(
        self, effect: Effect, call: ToolCall, tool: AnyTool
    ) -> tuple[ToolCall, Decision]:
        """Ask in a durable run; a question that an earlier life has asked is as it was then."""

        def asked(arguments: Mapping[str, Any]) -> ToolCall:
            return call.model_copy(update={"arguments": dict(arguments), "raw": None}, deep=True)

        async def here(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
            answer = await self._ask(asked(arguments), tool)
            if answer is NOBODY:
                return None
            decision = Decision.of(answer)
            changed = None if decision.arguments is None else dict(decision.arguments)
            return {
                "approved": decision.approved,
                "arguments": changed,
                "reason": decision.reason,
            }

        arguments, answer = await effect.ask(call.arguments, here)
        return asked(arguments), Decision(**answer)
