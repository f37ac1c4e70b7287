"""`self.durable.call`: a call of a tool by the code of a run, as an effect with a typed result."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast, get_type_hints

from pydantic_core import PydanticSerializationError, to_jsonable_python

from ..commander import Context, Node, ToolError
from ..commander.context import read_context_parameters
from ..commander.durable import scope_of
from ..tools import AnyTool, Illustrated
from ..tools.calls import do_once, effect_of, read_text, write_text
from ._codec import Codec
from ._effect import DurableEffect, storable
from ._json import canonical_inputs
from .errors import JournalMismatch, NotStorable

if TYPE_CHECKING:
    from ._execution import Execution

__all__ = ["call_tool"]


def call_tool(
    caller: Node[Any], tool: AnyTool, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Node[Any]:
    """Put a call of `tool` below `caller`, as an effect of the caller.

    A `Context` among the arguments is that of the call; by default it is the caller's.

    The node returns the tool's result or raises its exception. The keyword `key` names the effect,
    unless the tool has a parameter of that name. Raises `InvalidArguments` for arguments that the
    tool does not accept, `NotStorable` for arguments or a type of result that cannot be stored.
    """
    signature, kwargs = inspect.signature(tool.function), dict(kwargs)
    parameters = {*signature.parameters, *tool.parameters.get("properties", {})}
    key = None if "key" in parameters else kwargs.pop("key", None)
    if key is not None and (type(key) is not str or not key):
        raise TypeError(f"key= of a call must be a text that is not empty, not {key!r}")
    by_name = {**signature.bind_partial(*args).arguments, **kwargs}
    # A context is not an argument of the effect, and is not stored.
    given = [by_name.pop(name, None) for name in read_context_parameters(tool.function)]
    contexts: list[Context[Any]] = [each for each in given if isinstance(each, Context)]
    try:
        arguments = to_jsonable_python(by_name)
    except PydanticSerializationError as error:
        raise NotStorable(f"the arguments of {tool.name} cannot be stored: {error}") from error
    tool.check(arguments)
    effect = cast("DurableEffect", effect_of(caller, tool, arguments, key))
    call = _ToolCall(tool, effect, _codec(tool))
    node = _CallNode(arguments, call)
    if contexts:
        return caller.call_handler(node, context=contexts[0].value)
    return caller.call_handler(node)


def _codec(tool: AnyTool) -> Codec | None:
    try:
        hint = get_type_hints(tool.function).get("return", Any)
    except (NameError, TypeError):
        hint = Any
    return None if hint is Illustrated else Codec(hint, f"the result of the tool {tool.name}")


@dataclass(frozen=True)
class _ToolCall:
    """The tool that is called, and how its result is stored."""

    tool: AnyTool
    effect: DurableEffect
    codec: Codec | None  # None if it returns texts with images

    def encode(self, value: object) -> bytes:
        """Return the effect's identity, because the effect's row already has the value."""
        return json.dumps(self.effect.ident.hex()).encode()

    def decode(self, data: bytes) -> Any:
        """Return the result of that effect."""
        return self.read(self.effect.result_of(bytes.fromhex(json.loads(data))))

    async def give(self, arguments: Mapping[str, Any]) -> Any:
        """Call the tool; return the error if the result cannot be stored, as no retry helps."""
        value = await self.tool.run_raw(arguments)
        try:
            self.write(value)
        except NotStorable as error:
            return error
        return value

    def write(self, value: object) -> Any:
        if isinstance(value, NotStorable):
            return {"refused": str(value)}
        if self.codec is None or isinstance(value, Illustrated):
            return write_text(value)
        return {"value": json.loads(self.codec.encode(value))}

    def check(self, answer: Mapping[str, Any]) -> Any:
        """Return a result that a person has given as JSON; raise `ValueError` if it is invalid."""
        codec, value = self.codec, answer["value"]
        if codec is None:
            return answer["done"]
        if codec.annotation in (None, type(None)):
            return {"value": None}
        texts = [json.dumps(value)] + ([value] if isinstance(value, str) else [])
        for text in texts:
            try:
                return self.write(codec.decode(text.encode(), foreign=True))
            except (JournalMismatch, NotStorable):
                continue
        raise ValueError(f"{value!r:.200} is not a result of {self.tool.name}")

    def read(self, recorded: Any) -> Any:
        if self.codec is None:
            return read_text(recorded)
        # In an earlier attempt a model made the same call, and its effect recorded a text.
        answer = {"done": recorded, "value": recorded}
        found: dict[str, Any] = self.check(answer) if isinstance(recorded, str) else recorded
        if "refused" in found:
            raise NotStorable(found["refused"])
        if "text" in found:
            return read_text(found)
        return self.codec.decode(json.dumps(found["value"]).encode())


class _CallNode(Node[Any], internal=True, name="_Called"):
    """A call of a tool, after an approval if the tool requires one.

    Journals store it under the name `_Called`.
    """

    _node_is_durable = True
    _node_is_work = True

    def __init__(self, arguments: Mapping[str, Any], call: _ToolCall) -> None:
        super().__init__(f"call:{call.tool.name}")
        self._arguments = arguments
        self._node_call = call  # `_node_` attributes are not inputs of the node

    async def task(self) -> Any:
        async def nobody(_: object) -> None:  # no view in this process: only the journal asks
            return None

        call, arguments = self._node_call, self._arguments
        tool, effect = call.tool, call.effect
        if tool.approve:
            arguments, answer = await effect.ask(arguments, nobody, tool.check)
            if not answer["approved"]:
                why = f": {answer['reason']}" if answer["reason"] else ""
                raise ToolError(f"the call of {tool.name} was denied{why}")
            if answer["arguments"] is not None:
                arguments = answer["arguments"]
            call = self._node_call = replace(call, effect=effect.with_inputs(arguments))
        try:
            once = _CallAttempt(arguments, call)
            return await self.call_handler(once, retry=tool.retry, claim=True)
        except Exception as error:
            if (replacement := storable(error)) is error:
                raise
            raise replacement from error

    def _node_prepare(self, execution: Execution) -> tuple[str, bool]:
        return canonical_inputs(self)

    def _node_codec(self) -> _ToolCall:
        return self._node_call


class _CallAttempt(Node[Any], internal=True, name="_Once"):
    """An attempt of the call; a later execution returns the recorded result.

    Journals store it under the name `_Once`.
    """

    _node_is_work = True

    def __init__(self, arguments: Mapping[str, Any], call: _ToolCall) -> None:
        super().__init__(call.tool.name)
        self._arguments = arguments
        self._node_call = call

    async def task(self) -> Any:
        call, tool = self._node_call, self._node_call.tool
        recorded = await do_once(
            call.effect, tool, call.give, self._arguments, call.write, call.check
        )
        try:
            return call.read(recorded)
        except JournalMismatch as mismatch:  # it parks the run, and must not be retried
            scope: Any = scope_of(self)
            scope.execution.fail(mismatch)
            raise
