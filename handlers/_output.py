"""Typed output in `respond`: the request, the tool `final_answer`, validators, and the view."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Coroutine, Mapping, Sequence
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from ..backends import Backend
from ..backends.typed_output import FILTERED, OutputTool, TypedOutput, correction, with_output
from ..commander import ConfigurationError, ModelRetry, Node, OutputInvalid
from ..dispatch import Format, Reply
from ..messages import (
    Message,
    OutputMessage,
    OutputMode,
    OutputSchema,
    Request,
    ToolCall,
    ToolCallDelta,
    ToolSchema,
)
from ..messages.text import quote
from ..tools import AnyTool, Decision, InvalidArguments, Tool, ToolResult
from ._handler import handler
from ._view import View

__all__ = ["TO_USER", "Output", "OutputValidator"]

TO_USER = "to_user"
"""The argument of a call whose text goes to the user."""

T = TypeVar("T")

OutputValidator: TypeAlias = Callable[[T], T | Awaitable[T]]
"""Takes the output and returns it, perhaps changed, or raises `ModelRetry`."""


class Output:
    """The typed output of one request of `respond`.

    After `read`, `found` is the message with the output. `fault` says why there is none, for the
    model; it is empty if the reply is not an answer yet.
    """

    def __init__(
        self,
        output_type: object,
        backend: Backend,
        mode: OutputMode | None,
        tools: Sequence[AnyTool],
        formats: Sequence[Format],
        view: View,
        validators: Sequence[OutputValidator[Any]],
    ) -> None:
        self.schema = OutputSchema[Any].of(output_type)
        names = [tool.name for tool in tools]
        writes_calls = any(each.instruction for each in formats)
        self._typed = TypedOutput(self.schema, backend, mode, names, writes_calls=writes_calls)
        self._validators = validators
        # An object with the methods of a view, as earlier versions had them, has no hooks.
        self._hooks = view if isinstance(view, View) else View()  # pyright: ignore[reportUnnecessaryIsInstance]
        self._write = view.write
        self._final: AnyTool | None = None
        self.tools, self.view = tools, view
        self.fork_tools: Sequence[ToolSchema] = tools
        if self._typed.tool is not None:
            self._final = FinalAnswer(self._typed, self._typed.tool)
            self.tools, self.view = [*tools, self._final], _WithoutFinal(view, self._final.name)
            # Any key of the output may be called `to_user`: the fork must leave it there.
            untouched: dict[str, Any] = {"properties": {TO_USER: {}}}
            self.fork_tools = [*tools, OutputTool(self._final.name, untouched)]
        self.found: OutputMessage[Any] | None = None
        self.fault = ""

    def prepare(self, request: Request, last: bool) -> Request:
        """Return the request that asks for the output; the last one allows no other call."""
        return self._typed.prepare(request, only_answer=last)

    def watch(self, node: Node[Any], reply: Reply) -> Callable[[str], Awaitable[object] | object]:
        """Pass the growing output to the view; return the function for the reply's text."""
        hooks = self._hooks
        if type(hooks).output_begun is View.output_begun:
            return self._write
        growing = self._typed.growing()
        hooks.output_begun(growing)

        def add(piece: str) -> None:
            growing.add(piece)
            hooks.output_grew()

        if self._final is not None:
            node.call_handler(_read_arguments(reply.tool_call_deltas, self._final.name, add))
            return self._write

        def write(text: str) -> Awaitable[object] | object:
            add(text)
            return self._write(text)

        return write

    async def read(self, message: Message, answers: list[ToolResult]) -> None:
        """Read the output of a reply, and validate it.

        If a validator rejects it, the result of `final_answer` in `answers` is replaced.
        """
        if self._final is not None and message.tool_calls:
            await self._read_calls(message, answers, self._final.name)
        elif not answers:
            try:
                value = self._typed.read_text(message)
            except ValueError as error:
                self.fault = str(error)
            else:
                await self._find(message, value, message.content or "")

    async def _read_calls(self, message: Message, answers: list[ToolResult], name: str) -> None:
        calls = {call.id: call for call in message.tool_calls}
        for place, answer in enumerate(answers):
            if answer.name != name or self.found is not None:
                continue
            if message.finish_reason == "content_filter":
                self.fault = FILTERED
                continue
            if answer.status != "ok":
                fault = (answer.content or answer.status).removeprefix("Error: ")
                self.fault = self.fault or fault
                continue
            call = calls[answer.tool_call_id or ""]
            await self._find(message, self._typed.read_call(call), call.text)
            if self.found is None:
                answers[place] = ToolResult.of(call, f"Error: {self.fault}", "invalid")

    async def _find(self, message: Message, value: Any, text: str) -> None:
        """Validate the output; set `found`, or `fault` if a validator rejects it."""
        try:
            for validator in self._validators:
                result: Any = validator(value)
                given, value = value, await result if isawaitable(result) else result
                if value is None and given is not None and not self.schema.takes_none:
                    raise ConfigurationError(
                        f"{validator!r:.200} returned None. A validator must return the output"
                    )
        except ModelRetry as error:
            self.fault = str(error) or "try again"
        else:
            self.found = with_output(message, value, text)

    def correct(self, message: Message, retries: int) -> list[Message]:
        """Return the messages to the model about an answer without output.

        Raises the error of the answer instead if the model is not asked again.
        """
        self._hooks.output_failed(self.fault)
        if (failure := self._typed.failure(message, self.fault, retries)) is not None:
            raise failure
        if message.tool_calls:  # the results say it
            return []
        return [Message(role="user", content=correction(self.fault))]

    def others(self, answers: Sequence[ToolResult]) -> list[ToolResult]:
        """Return the results of the calls that are not the answer."""
        return [each for each in answers if self._final is None or each.name != self._final.name]

    async def read_results(
        self, message: Message, results: Sequence[ToolResult], retries: int
    ) -> None:
        """Read the output of a turn that a tool has ended: its result; set `found` or `fault`.

        Raises `OutputInvalid` if no result fits, or if the model is not asked again.
        """
        self.fault, unfit = "", ""
        for each in results:
            result = Message(role="assistant", content=each.content)
            try:
                value = self._typed.read_text(result)
            except ValueError as error:
                unfit = unfit or str(error)
                continue
            await self._find(message, value, each.content or "")
            if self.found is not None:
                return
        self._hooks.output_failed(self.fault or unfit)
        if not self.fault or retries <= 0:
            names = " and ".join(dict.fromkeys(each.name or "" for each in results))
            raise OutputInvalid(
                f"the result of {names}, which ended the turn, is not a valid {self.schema.name}:"
                f" {self.fault or unfit}. The result was {quote(results[0].content)}",
                message=message,
            )


class FinalAnswer(Tool[[], Coroutine[Any, Any, str]]):
    """The tool whose call is the answer. Its arguments are the output."""

    def __init__(self, typed: TypedOutput[Any], schema: OutputTool) -> None:
        super().__init__(
            _accept,
            name=schema.name,
            description=schema.description,
            read_only=True,  # so a durable run repeats it, and it starts while the reply streams
        )
        self._typed = typed
        self._schema = schema

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The schema of the output."""
        return self._schema.parameters

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Raise `InvalidArguments` unless the arguments are the output."""
        try:
            self._typed.schema.read(arguments, is_wrapped=True)
        except ValueError as error:
            raise InvalidArguments(str(error)) from error
        return {}


async def _accept() -> str:
    return "The answer was accepted."


class _WithoutFinal(View):
    """Passes calls and results to a view, except those of `final_answer`."""

    def __init__(self, view: View, name: str) -> None:
        self._view = view
        self._name = name

    def called(self, call: ToolCall) -> None:
        if call.name != self._name:
            self._view.called(call)

    def answered(self, result: ToolResult) -> None:
        if result.name != self._name:
            self._view.answered(result)

    async def ask(self, call: ToolCall, tool: AnyTool) -> bool | Decision:
        return await self._view.ask(call, tool)


@handler
async def _read_arguments(
    node: Node[Any],
    pieces: AsyncIterable[ToolCallDelta],
    name: str,
    add: Callable[[str], object],
) -> None:
    """Pass the arguments of the first call of `name` to `add`, as they arrive."""
    index: int | None = None
    is_inside = False
    async for piece in pieces:
        if piece.name:
            is_inside = piece.name == name and index in (None, piece.index)
            index = piece.index if is_inside else index
        if piece.arguments and (is_inside if piece.index < 0 else piece.index == index):
            add(piece.arguments)
