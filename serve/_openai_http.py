"""OpenAI's wire over HTTP: chat completions, Responses with background mode, the list of models.

What a request asks that is not honoured is refused by name (S17), never passed over in silence.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..commander.errors import ConfigurationError
from ..messages import Message
from ._http import Refusal, read_body, stream_run, who_asks
from ._log import Entry, Gone
from ._openai_chat import ChatChunks, chat_completion, chat_error
from ._openai_responses import ResponseEvents
from ._run import OnLeave, Run
from ._runs import Busy
from ._served import BadQuestion, Question

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["routes"]

# Fields that change nothing of an answer here, and harm nobody: clients send them unasked.
IGNORED = {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "service_tier"}
# Fields whose usual value asks for nothing; any other is refused.
USUAL: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "modalities": (["text"],),
    "tools": ([],),
    "tool_choice": ("auto", "none"),
    "truncation": ("disabled",),
    "include": ([],),
    "text": ({"format": {"type": "text"}}, {}),
    "response_format": ({"type": "text"},),
}

Endpoint = Callable[["Server", Request], Awaitable[Response]]


def routes(server: Server) -> list[Route]:
    """Return the routes of OpenAI's wire."""

    def route(path: str, method: str, endpoint: Endpoint) -> Route:
        @wraps(endpoint)
        async def answer(request: Request) -> Response:
            try:
                return await endpoint(server, request)
            except Refusal as refusal:
                return refusal.response()
            except Busy as busy:
                headers = {"Retry-After": str(busy.retry_after)}
                return Refusal(429, str(busy), code="rate_limit", headers=headers).response()

        return Route(path, answer, methods=[method])

    return [
        route("/v1/models", "GET", _models),
        route("/v1/models/{model:path}", "GET", _model),
        route("/v1/chat/completions", "POST", _chat),
        route("/v1/responses", "POST", _respond),
        route("/v1/responses/{id}", "GET", _retrieve),
        route("/v1/responses/{id}/cancel", "POST", _cancel),
    ]


async def _models(server: Server, request: Request) -> Response:
    await who_asks(server, request)
    models = [_describe(name) for name in server.served]
    return JSONResponse({"object": "list", "data": models})


async def _model(server: Server, request: Request) -> Response:
    await who_asks(server, request)
    name = request.path_params["model"]
    if name not in server.served:
        raise Refusal(404, f"there is no model {name!r:.200}", code="model_not_found")
    return JSONResponse(_describe(name))


def _describe(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "anabranch"}


# --- chat completions


async def _chat(server: Server, request: Request) -> Response:
    user = await who_asks(server, request)
    body = await read_body(server, request)
    stream = bool(body.pop("stream", False))
    options = _object(body, "stream_options")
    messages = _messages(body.pop("messages", None))
    run = _start(server, user, body, messages, server.on_leave("openai"))
    created = int(run.created)
    name, model = f"chatcmpl-{run.id}", run.served.name
    if not stream:
        entries = await _whole(run)
        if entries[-1].kind != "completed":
            return JSONResponse(chat_error(entries[-1]), 500)
        return JSONResponse(chat_completion(name, model, created, entries))
    chunks = ChatChunks(name, model, created, bool(options.get("include_usage")))

    def encode(entry: Entry) -> Iterator[str]:
        return (_data(chunk) for chunk in chunks.feed(entry))

    late = {"error": {"message": "the client read too slowly", "type": "server_error"}}
    return stream_run(run, encode, too_late=lambda: [_data(late)], at_end=["data: [DONE]\n\n"])


# --- Responses


async def _respond(server: Server, request: Request) -> Response:
    user = await who_asks(server, request)
    body = await read_body(server, request)
    stream = bool(body.pop("stream", False))
    background = bool(body.pop("background", False))
    if body.pop("previous_response_id", None) is not None:
        raise Refusal(400, "no such response is known here", field="previous_response_id")
    if body.pop("instructions", None) is not None:
        raise Refusal(400, "the system prompt is the server's to choose", field="instructions")
    if (most := body.pop("max_output_tokens", None)) is not None:
        body["max_tokens"] = most
    messages = _messages(_input(body.pop("input", None)))
    metadata = _object(body, "metadata")
    leave: OnLeave = "detach" if background else server.on_leave("openai")
    run = _start(server, user, body, messages, leave)
    run.echo = {"background": background, "metadata": metadata}
    if stream:
        return _stream_response(run, -1)
    if background:
        return JSONResponse({**_events(run).response, "status": "queued"})
    await _whole(run)
    return JSONResponse(await _response(run))


async def _retrieve(server: Server, request: Request) -> Response:
    run = _find(server, await who_asks(server, request), request)
    if request.query_params.get("stream", "").lower() not in ("true", "1"):
        return JSONResponse(await _response(run))
    after = request.query_params.get("starting_after", "-1")
    try:
        return _stream_response(run, int(after))
    except ValueError:
        raise Refusal(400, "it is a number", field="starting_after") from None


async def _cancel(server: Server, request: Request) -> Response:
    run = _find(server, await who_asks(server, request), request)
    run.cancel("a client asked for it")
    async with run.reading() as entries:
        async for _ in entries:
            pass
    return JSONResponse(await _response(run))


def _find(server: Server, user: str, request: Request) -> Run:
    name: str = request.path_params["id"]
    run = server.runs.find(name.removeprefix("resp_"), user)
    if run is None:
        raise Refusal(404, f"there is no response {name!r:.200}")
    return run


def _events(run: Run) -> ResponseEvents:
    return ResponseEvents(f"resp_{run.id}", run.served.name, int(run.created), run.echo)


async def _response(run: Run) -> dict[str, Any]:
    """Return the response as far as it has come."""
    events = _events(run)
    try:
        for entry in run.log.kept():
            for _ in events.feed(entry):
                pass
    except Gone:
        raise Refusal(410, "the beginning of this response is no longer kept") from None
    return events.response


def _stream_response(run: Run, after: int) -> Response:
    if run.log.first > 1:
        raise Refusal(410, "the beginning of this response is no longer kept")
    events = _events(run)

    def frames(made: Iterator[dict[str, Any]]) -> Iterator[str]:
        for event in made:
            if event["sequence_number"] > after:
                yield f"event: {event['type']}\n{_data(event)}"

    late = {"type": "error", "code": "gone", "message": "the client read too slowly", "param": None}
    return stream_run(
        run,
        lambda entry: frames(events.feed(entry)),
        before=frames(events.begin()),
        too_late=lambda: [f"event: error\n{_data({**late, 'sequence_number': events.next})}"],
    )


# --- what a request says


def _start(
    server: Server, user: str, body: dict[str, Any], messages: list[Message], leave: OnLeave
) -> Run:
    model = body.pop("model", None)
    served = server.served.get(model) if isinstance(model, str) else None
    if served is None:
        names = ", ".join(server.served)
        raise Refusal(
            404, f"there is no model {model!r:.200}; there are: {names}", code="model_not_found"
        )
    fields = _object(body, "fields")
    options: dict[str, Any] = {}
    for name, value in body.items():
        if name in IGNORED or value is None or value in USUAL.get(name, ()):
            continue
        if name in USUAL:
            raise Refusal(400, f"{name} is not supported here", field=name)
        options["max_tokens" if name == "max_completion_tokens" else name] = value
    question = Question(messages, fields, options)
    try:
        return server.runs.start(served, question, user, leave)
    except BadQuestion as bad:
        raise Refusal(400, bad.text, field=bad.field) from None
    except ConfigurationError as error:
        raise Refusal(400, f"{error}") from None


def _object(body: dict[str, Any], name: str) -> dict[str, Any]:
    """Take an object out of the body, an empty one where there is none."""
    found: Any = body.pop(name, None)
    if not isinstance(found, dict | None):
        raise Refusal(400, f"{name} is an object", field=name)
    return cast("dict[str, Any]", found or {})


def _messages(said: Any) -> list[Message]:
    """Read messages; refuse what is none, and roles that are not a client's to play."""
    if not isinstance(said, list) or not said:
        raise Refusal(400, "messages is a list with at least one message", field="messages")
    messages: list[Message] = []
    for place, each in enumerate(cast("list[Any]", said)):
        field = f"messages[{place}]"
        if not isinstance(each, dict):
            raise Refusal(400, "a message is an object", field=field)
        fields = cast("dict[str, Any]", each)
        role, content = fields.get("role"), fields.get("content")
        if role not in ("user", "assistant", "system", "developer"):
            raise Refusal(400, f"the role {role!r:.100} is not supported here", field=field)
        try:
            messages.append(Message(role=role, content=_text(content, field)))
        except ValidationError:
            raise Refusal(400, "this is no message", field=field) from None
    if messages[-1].role != "user":
        raise Refusal(400, "the last message is the user's", field="messages")
    return messages


def _text(content: Any, field: str) -> str:
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise Refusal(400, "content is a text or a list of parts", field=field)
    texts: list[str] = []
    for part in cast("list[Any]", content):
        fields = cast("dict[str, Any]", part) if isinstance(part, dict) else {}
        kind, text = fields.get("type"), fields.get("text")
        if kind not in ("text", "input_text", "output_text") or not isinstance(text, str):
            raise Refusal(400, f"parts of type {kind!r:.100} are not supported here", field=field)
        texts.append(text)
    return "".join(texts)


def _input(said: Any) -> Any:
    return [{"role": "user", "content": said}] if isinstance(said, str) else said


async def _whole(run: Run) -> list[Entry]:
    """Wait for the end of a run, and return all entries."""
    try:
        async with run.reading() as entries:
            return [entry async for entry in entries]
    except Gone:
        raise Refusal(500, "the answer was too long to be kept") from None


def _data(value: object) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))}\n\n"
