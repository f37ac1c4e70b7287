"""`respond`: ask the model, run its tools, ask again. `look_up`: search before that."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload

from ..backends import Backend, as_backend
from ..backends.override import replaced
from ..backends.typed_output import check_retries, correction
from ..commander import BadResponse, ConfigurationError, Node
from ..dispatch import Format, fork
from ..messages import (
    Conversation,
    Message,
    OutputMessage,
    OutputMode,
    OutputSchema,
    Request,
    ToolCall,
)
from ..tools import AnyTool, ToolLike, ToolResult, describe, with_narration
from ..tools.toolkits import flatten
from ._call_tools import call_tools
from ._handler import Handler, HandlerFunction, handler
from ._output import TO_USER, Output, OutputValidator
from ._view import View, show

__all__ = ["look_up", "respond"]

T = TypeVar("T")


class _Respond(Protocol):
    """The types of `respond`, which depend on `output_type`."""

    @overload
    def __call__(
        self,
        backend: Backend | str,
        conversation: Conversation,
        tools: Sequence[ToolLike] = (),
        view: View | None = None,
        *,
        narrate: bool = False,
        max_rounds: int = 10,
        repairs: int = 2,
        formats: Sequence[Format] | None = None,
        output_type: None = None,
        **options: Any,
    ) -> Handler[Message]: ...
    @overload
    def __call__(
        self,
        backend: Backend | str,
        conversation: Conversation,
        tools: Sequence[ToolLike] = (),
        view: View | None = None,
        *,
        narrate: bool = False,
        max_rounds: int = 10,
        repairs: int = 2,
        formats: Sequence[Format] | None = None,
        output_type: type[T] | OutputSchema[T],
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        output_validators: Sequence[OutputValidator[T]] = (),
        **options: Any,
    ) -> Handler[OutputMessage[T]]: ...
    # A type checker cannot infer the type from a union, a `Literal` and other special forms.
    @overload
    def __call__(
        self,
        backend: Backend | str,
        conversation: Conversation,
        tools: Sequence[ToolLike] = (),
        view: View | None = None,
        *,
        narrate: bool = False,
        max_rounds: int = 10,
        repairs: int = 2,
        formats: Sequence[Format] | None = None,
        output_type: object,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        output_validators: Sequence[OutputValidator[Any]] = (),
        **options: Any,
    ) -> Handler[OutputMessage[Any]]: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Handler[Any]:
        """Return the handler, which has not started."""
        ...


def _with_types(function: HandlerFunction[..., Message]) -> _Respond:
    return cast("_Respond", function)


@_with_types
@handler
async def respond(
    node: Node[Any],
    backend: Backend | str,
    conversation: Conversation,
    tools: Sequence[ToolLike] = (),
    view: View | None = None,
    *,
    narrate: bool = False,
    max_rounds: int = 10,
    repairs: int = 2,
    formats: Sequence[Format] | None = None,
    output_type: Any = None,
    output_mode: OutputMode | None = None,
    output_retries: int = 2,
    output_validators: Sequence[OutputValidator[Any]] = (),
    **options: Any,
) -> Message:
    """Let the model answer the conversation, with its tools; return its last message.

        message = await node.call_handler(respond(backend, conversation, [search], ConsoleView()))

    Text goes to `view` as it arrives; without one it is not shown. With `narrate` the model may
    also write to the user inside a call, in the argument `to_user` (except for a tool that has this
    argument itself). After `max_rounds` replies with tool calls, or more than `repairs` with an
    invalid call, the model must answer without tools; another call then raises `BadResponse`.
    A call of a tool with `ends_turn` that succeeds ends the exchange: the model is not asked again.
    Then the message with the calls is returned, and the conversation ends with their results.
    `options` have the names of chat completions. `formats` are the formats of calls in the model's
    text, by default the backend's. A format with an `instruction` describes the tools in the system
    prompt, and writes earlier calls and results as text.

    `backend` may be the name of a model, as for `connect`. Below a call of an agent with another
    backend, that one is asked instead: see `Agent.override`.

    Before each request, `view.heard` may return messages to add after the results of the calls.
    After a reply with calls, `view.next_tools` may change the tools for the next request.

    A reply and the results of its calls are added to the conversation together. If the reply fails
    or is cancelled, its text so far is added without calls. If its tools are interrupted, the
    unfinished calls get a result that says so. So a provider always accepts the conversation. Two
    tools with one name raise `ConfigurationError` before the model is asked.

    With `output_type` the result is an `OutputMessage`, whose `output` has that type:

        message = await respond(backend, conversation, output_type=Invoice)
        message.output.total

    `output_mode` and `output_retries` are as in `Backend.complete`, and so are the errors. Each of
    `output_validators`, plain or async, takes the output and returns it, perhaps changed. If one
    raises `ModelRetry(reason)`, the model reads the reason and answers again. Answers that do not
    fit, and the reasons, stay in the conversation. In the mode "tool" the answer is a call of
    `final_answer`, and other calls of that reply run as always. If a tool with `ends_turn` ends the
    exchange, its result is the output, which the validators see. One that does not fit is an
    `OutputInvalid`. Validators without `output_type` see the text of the reply.
    """
    # `backend` itself goes on to the next request. It is part of the identity of nodes in durable
    # runs, which must not depend on a replacement.
    backend = as_backend(backend)
    if output_type is None:
        if output_mode is not None:
            raise ConfigurationError("output_mode= needs output_type=, the type of the output")
        output_type = str if output_validators else None
    model = replaced(backend)
    view = view or View()
    tools = flatten(tools)
    last = repairs < 0 or (bool(tools) and max_rounds < 1)
    offered = with_narration(tools) if narrate else tools
    silent = {"tool_choice": "none"} if last and tools else {}
    formats = model.formats if formats is None else formats
    output: Output | None = None
    if output_type is not None:
        check_retries(output_retries)
        output = Output(output_type, model, output_mode, tools, formats, view, output_validators)
    request = conversation.request(tools=offered, **options, **silent)
    request = write_as_text(output.prepare(request, last) if output else request, formats)
    if heard := await view.heard(request):
        conversation.add(*heard)
        request = conversation.request(tools=offered, **options, **silent)
        request = write_as_text(output.prepare(request, last) if output else request, formats)
    stream = view.incoming(model.stream(request))
    given = tools if output is None else output.tools
    fork_tools = tools if output is None else output.fork_tools
    reply = fork(node, stream, to_user=TO_USER, tools=fork_tools, formats=formats)
    write = view.write if output is None else output.watch(node, reply)
    node.call_handler(show(reply.text, write).at_done(lambda _: view.ended()))
    results = node.call_handler(
        call_tools(reply.tool_calls, given, view if output is None else output.view)
    )
    message: Message | None = None
    try:
        message = await reply.message
        answers = await results
        if output is not None:
            await output.read(message, answers)
    except BaseException:
        if message is not None:
            conversation.add(message, *results.results(message))
        elif (partial := reply.partial) is not None and partial.content:
            conversation.add(partial)
        raise
    conversation.add(message, *answers)
    if output is not None:
        if output.found is not None:
            return output.found
        if output.fault:
            conversation.add(*output.correct(message, output_retries))
            output_retries -= 1
        answers = output.others(answers)
    if not answers and output is None:
        return message
    if ended := _ended_by(answers, tools):
        if output is None or not any(gives_output for _, gives_output in ended):
            return message
        results = [answer for answer, gives_output in ended if gives_output]
        await output.read_results(message, results, output_retries)
        if output.found is not None:
            return output.found
        conversation.add(Message(role="user", content=correction(output.fault)))
        output_retries -= 1
    if last and answers:
        raise BadResponse("the model called a tool, although it had to answer without tools")
    is_invalid = any(answer.status == "invalid" for answer in answers)
    options |= {"narrate": narrate, "formats": formats}
    options |= {"max_rounds": max_rounds - bool(answers), "repairs": repairs - is_invalid}
    if output is not None:
        options |= {"output_type": output.schema, "output_mode": output_mode}
        options |= {"output_retries": output_retries, "output_validators": output_validators}
    if answers:
        tools = view.next_tools(tools)
    return await respond(backend, conversation, tools, view, **options)


def _ended_by(
    answers: Iterable[ToolResult], tools: Iterable[AnyTool]
) -> list[tuple[ToolResult, bool]]:
    """Return the results of successful calls that end the turn, and whether each is an output."""
    ending = {tool.name: tool.bare.gives_output for tool in tools if tool.ends_turn}
    return [
        (answer, ending[answer.name])
        for answer in answers
        if answer.status == "ok" and answer.name in ending
    ]


FormatOf: TypeAlias = Callable[[str], Format | None]


def write_as_text(request: Request, formats: Iterable[Format]) -> Request:
    """Return the request with everything as text that a format with an `instruction` can write.

    Tools become a part of the system prompt, earlier calls a part of the assistant's text, and
    their results a user message. Other tools stay.
    """
    instructing = [each for each in formats if each.instruction]
    if not instructing:
        return request

    def format_of(tool: str) -> Format | None:
        return next((each for each in instructing if each.tool in (None, tool)), None)

    messages = list(_messages_as_text(request.messages, format_of))
    silent = request.options.get("tool_choice") == "none"
    tools = cast("list[AnyTool]", [] if silent else request.tools)
    instructions = [
        each.instruction.replace("{tools}", describe(own, "list"))
        for each in instructing
        if (own := [tool for tool in tools if format_of(tool.name) is each])
    ]
    if instructions:
        if not messages or messages[0].role not in ("system", "developer"):
            messages.insert(0, Message(role="system"))
        content = "\n\n".join(filter(None, [messages[0].content, *instructions]))
        messages[0] = messages[0].model_copy(update={"content": content})
    others = [tool for tool in request.tools if format_of(tool.name) is None]
    return Request(messages, others, request.options)


def _messages_as_text(messages: Iterable[Message], format_of: FormatOf) -> Iterator[Message]:
    ids: set[str | None] = set()  # of calls of the last reply that became text
    results: list[Message] = []  # of these calls; sent after the results of other calls
    for message in (*messages, None):
        if message is not None and message.role == "tool":
            if message.tool_call_id in ids:
                results.append(message)
            else:
                yield message
            continue
        if results:
            lines = [f"Observation: {result.content}" for result in results]
            parts = [part for result in results for part in result.parts]
            results = []
            if message is not None and message.role == "user":  # roles must alternate
                parts += message.parts
                lines += [message.content] if message.content else []
                message = message.model_copy(update={"parts": parts})
                message.content = "\n".join(lines)
            else:
                yield Message(role="user", content="\n".join(lines), parts=parts)
        if message is not None:
            texts = [form.write(c) for c in message.tool_calls if (form := format_of(c.name))]
            ids = {call.id for call in message.tool_calls if format_of(call.name)}
            if texts:
                calls = [call for call in message.tool_calls if not format_of(call.name)]
                content = "\n".join(filter(None, [message.content, *texts]))
                message = message.model_copy(update={"content": content, "tool_calls": calls})
            yield message


@handler
async def look_up(
    node: Node[Any], conversation: Conversation, tool: AnyTool, view: View | None = None
) -> bool:
    """Call `tool` with the user's last message as its `query`; return whether it was called.

    The call and its result are added to the conversation, both or neither. Documents are in the
    result of a tool, so that they cannot act as the user or the system. A search that fails is a
    result too. Does nothing if the last message is not the user's.
    """
    asked = conversation.messages[-1] if conversation.messages else None
    if asked is None or asked.role != "user":
        return False
    taken = {each.id for message in conversation.messages for each in message.tool_calls}
    # Not just the length: a memory that drops the oldest messages may have the same length again.
    name = next(
        name for n in count(len(conversation.messages)) if (name := f"look_up_{n}") not in taken
    )
    call = ToolCall(id=name, name=tool.name, arguments={"query": asked.content or ""})

    async def calls() -> AsyncGenerator[ToolCall, None]:
        yield call

    found = await node.call_handler(call_tools(calls(), [tool], view))
    conversation.add(Message(role="assistant", tool_calls=[call]), *found)
    return True
