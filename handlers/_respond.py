"""One exchange: ask the model, fork its reply, run its tools, and ask again with their results."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..backends import Backend
from ..commander import BadResponse, Node
from ..dispatch import Format, fork
from ..messages import Conversation, Message
from ..tools import AnyTool, with_narration
from ..tools.toolkits import flatten
from ._as_text import write_as_text
from ._call_tools import call_tools
from ._handler import handler
from ._show import show
from ._view import View

__all__ = ["respond"]


@handler
async def respond(
    node: Node[Any],
    backend: Backend,
    conversation: Conversation,
    tools: Sequence[AnyTool] = (),
    view: View | None = None,
    *,
    narrate: bool = False,
    max_rounds: int = 10,
    repairs: int = 2,
    formats: Sequence[Format] | None = None,
    **options: Any,
) -> Message:
    """Let the model answer the conversation, as often as it calls tools; return its last message.

    Text goes to `view` as it arrives, without one nowhere: a `ConsoleView` shows it. With `narrate`
    the model may also speak to the user inside a call (the argument `to_user`, which a tool that
    has one of its own keeps). After `max_rounds` replies with tool calls, or more than `repairs`
    with a call that was wrong, the model has to answer without tools; if it calls one all the same,
    that is a `BadResponse`. `options` have the wire's names. `formats` are the ways in which the
    model writes calls into its text; None: as its backend knows of it. One with an `instruction`
    tells the model of the tools by the system prompt, and puts earlier calls and their results to
    it as text.

    Before each request `view.heard` is asked for what was said since the last one; that enters the
    conversation in its place, behind the results of the calls. After a reply with calls
    `view.next_tools` may change the tools for the next request.

    Each reply enters the conversation together with the results of its calls, whole. If the reply
    fails or is cancelled, what it told the user by then enters as a message without calls; if its
    tools are cut short, the calls that had not ended are answered as interrupted. So what stands
    in the conversation can always be sent to a provider. Two tools of one name are a
    `ConfigurationError`, before the model is asked.
    """
    view = view or View()
    tools = flatten(tools)
    last = repairs < 0 or (bool(tools) and max_rounds < 1)
    offered = with_narration(tools) if narrate else tools
    silent = {"tool_choice": "none"} if last and tools else {}
    formats = backend.formats if formats is None else formats
    request = write_as_text(conversation.request(tools=offered, **options, **silent), formats)
    if heard := await view.heard(request):
        conversation.add(*heard)
        request = write_as_text(conversation.request(tools=offered, **options, **silent), formats)
    stream = backend.stream(request)
    reply = fork(node, stream, to_user="to_user", tools=tools, formats=formats)
    node.call_handler(show(reply.text, view.write).at_done(lambda _: view.ended()))
    results = node.call_handler(call_tools(reply.tool_calls, tools, view))
    message: Message | None = None
    try:
        message = await reply.message
        answers = await results
    except BaseException:
        if message is not None:
            conversation.add(message, *results.results(message))
        elif (partial := reply.partial) is not None and partial.content:
            conversation.add(partial)
        raise
    conversation.add(message, *answers)
    if not answers:
        return message
    if last:
        raise BadResponse("the model goes on calling tools after it was told to answer")
    wrong = any(answer.status == "invalid" for answer in answers)
    again: dict[str, Any] = {**options, "narrate": narrate, "formats": formats}
    again |= {"max_rounds": max_rounds - 1, "repairs": repairs - wrong}
    return await respond(backend, conversation, view.next_tools(tools), view, **again)
