"""OpenAI's wire over HTTP: chat completions, Responses with background mode, the list of models.

A request with an unsupported field is refused, and the error names the field.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..messages import Message
from ._failure import status_of
from ._http import (
    NO_RETRY,
    REQUEST_ID,
    SERVER_ENDING,
    Refusal,
    frame,
    route,
    stop,
    stream_run,
    while_connected,
)
from ._openai_chat import ChatChunks, chat_completion, chat_error
from ._openai_responses import ResponseEvents
from ._request import read_input, read_messages, start, take_flag, take_object
from ._request_body import read_body
from ._run import OnLeave, Run
from ._run_log import EntriesExpired, Entry, ServerEnding

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["routes"]

logger = logging.getLogger("anabranch.serve")

# The wires' names of fields that are called otherwise in `RunInput`.
CHAT_FIELD_NAMES = {"max_tokens": "max_completion_tokens"}
RESPONSE_FIELD_NAMES = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "reasoning_effort": "reasoning",
    "response_format": "text",
    "verbosity": "text",
}
# Fields of the request that a response repeats.
ECHO_FIELDS = (
    *("instructions", "max_output_tokens", "parallel_tool_calls", "reasoning", "temperature"),
    *("text", "tool_choice", "tools", "top_p"),
)
BEGINNING_EXPIRED = "the beginning of this response has expired"
# The id of an item in the output of a response, with the id of its run.
ITEM_ID = re.compile(r"[a-z]{1,16}_resp_([0-9a-f]{32})_[0-9]{1,9}", re.ASCII)


def routes(server: Server) -> list[Route]:
    """Return the routes of OpenAI's wire."""
    return [
        route(server, "GET", "/v1/models", _models),
        route(server, "GET", "/v1/models/{model:path}", _model),
        route(server, "POST", "/v1/chat/completions", _chat),
        route(server, "POST", "/v1/responses", _respond),
        route(server, "GET", "/v1/responses/{id}", _retrieve),
        route(server, "DELETE", "/v1/responses/{id}", _delete),
        route(server, "POST", "/v1/responses/{id}/cancel", _cancel),
        route(server, "GET", "/v1/responses/{id}/input_items", _input_items),
    ]


async def _models(server: Server, request: Request, user: str) -> Response:
    models = [_describe(name) for name in server.served]
    return JSONResponse({"object": "list", "data": models})


async def _model(server: Server, request: Request, user: str) -> Response:
    name = request.path_params["model"]
    if name not in server.served:
        raise Refusal(404, f"there is no model {name!r:.200}", code="model_not_found")
    return JSONResponse(_describe(name))


def _describe(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": 0, "owned_by": "anabranch"}


# --- chat completions


async def _chat(server: Server, request: Request, user: str) -> Response:
    body = await read_body(server, request)
    stream = take_flag(body, "stream")
    include_usage = take_flag(_take_stream_options(body), "include_usage")
    messages = await read_messages(server, body.pop("messages", None))
    names: dict[str, str] = {}
    if (most := body.pop("max_completion_tokens", None)) is not None:
        if body.get("max_tokens") is not None:
            text = "max_tokens is an alias of max_completion_tokens: send only one of them"
            raise Refusal(400, text, field="max_tokens")
        body["max_tokens"], names = most, CHAT_FIELD_NAMES
    run = await start(server, user, body, messages, server.on_leave("openai"), names=names)
    created = int(run.created)
    name, model = f"chatcmpl-{run.id}", run.served.name
    if not stream:
        entries = await _read_to_end(run, request)
        if entries[-1].kind != "completed":
            return _failed(run, entries[-1])
        return JSONResponse(chat_completion(name, model, created, entries))
    chunks = ChatChunks(name, model, created, include_usage)

    def encode(entry: Entry) -> str:
        return chunks.continue_text(entry) or "".join(map(frame, chunks.feed(entry)))

    late = {"error": {"message": "The client read too slowly.", "type": "server_error"}}
    return stream_run(run, encode, too_late=lambda: [frame(late)], at_end=["data: [DONE]\n\n"])


# --- Responses


async def _respond(server: Server, request: Request, user: str) -> Response:
    body = await read_body(server, request)
    stream, background = take_flag(body, "stream"), take_flag(body, "background")
    is_stored = take_flag(body, "store", default=True)
    if background and not is_stored:
        raise Refusal(400, "store must be true for a background response", field="store")
    _take_stream_options(body)
    metadata = _read_metadata(body)
    echo = {name: body[name] for name in ECHO_FIELDS if body.get(name) is not None}
    names = _translate(body)
    instructions = body.pop("instructions", None)
    body["input"] = await _resolve_references(server, user, body.get("input"))
    messages = await read_input(server, body)
    if instructions is not None:
        messages = [*_read_instructions(instructions), *messages]
        names = {**names, "messages": "instructions"}
    leave: OnLeave = "detach" if background else server.on_leave("openai")
    echo |= {"background": background, "metadata": metadata, "store": is_stored}
    run = await start(server, user, body, messages, leave, names=names, echo=echo)
    if stream:
        return _stream_response(run, -1)
    if background:
        return JSONResponse({**_events(run).response, "status": "queued"})
    last = (await _read_to_end(run, request))[-1]
    if status_of(last.data.get("code", "")) < 500:
        return _failed(run, last)
    headers = None if last.kind == "completed" else {REQUEST_ID: run.id}
    return JSONResponse(await _response(run), headers=headers)


def _read_metadata(body: dict[str, Any]) -> dict[str, str]:
    """Remove the metadata from the body; it must be short, because all events repeat it."""
    metadata = take_object(body, "metadata")
    if len(metadata) > 16 or not all(
        len(name) <= 64 and isinstance(value, str) and len(value) <= 512
        for name, value in metadata.items()
    ):
        text = "metadata must have at most 16 texts of 512 characters, with names of 64 characters"
        raise Refusal(400, text, field="metadata")
    return metadata


async def _retrieve(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, user, request)
    if any(
        name.startswith("include") and name != "include_obfuscation"
        for name in request.query_params
    ):
        raise Refusal(400, "include is not supported here", field="include")
    if request.query_params.get("stream", "").lower() not in ("true", "1"):
        return JSONResponse(await _response(run))
    after = request.query_params.get("starting_after", "")
    if after and not (after.isascii() and after.isdigit() and len(after) < 16):
        raise Refusal(400, "starting_after must be a number", field="starting_after")
    return _stream_response(run, int(after or -1))


async def _cancel(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, user, request)
    await stop(run)
    return JSONResponse(await _response(run))


async def _delete(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, user, request)
    await server.runs.delete(run)
    return JSONResponse({"id": f"resp_{run.id}", "object": "response", "deleted": True})


async def _input_items(server: Server, request: Request, user: str) -> Response:
    await _find(server, user, request)
    text = "input_items is not supported: this server does not store the input of a response"
    raise Refusal(400, text, field="input_items")


async def _find(server: Server, user: str, request: Request) -> Run:
    name: str = request.path_params["id"]
    run = await _find_run(server, user, name.removeprefix("resp_"))
    if run is None:
        raise Refusal(404, f"there is no response {name!r:.200}")
    return run


async def _find_run(server: Server, user: str, run_id: str) -> Run | None:
    await server.runs.until_resumed(run_id)
    run = server.runs.find(run_id, user)
    return run if run is not None and run.echo.get("store", True) else None


async def _resolve_references(server: Server, user: str, content: Any) -> Any:
    """Replace references to items of earlier responses by these items.

    These responses stay for another `keep` seconds. The items count as if the client had sent
    them: together they must have at most `max_body` characters.
    """
    if not isinstance(content, list):
        return content
    items: list[Any] = [*cast("list[Any]", content)]
    if len(items) > server.max_messages:
        return items  # `read_input` refuses them
    outputs: dict[str, dict[str, Any]] = {}  # by run
    size = 0
    for place, each in enumerate(items):
        name = _reference(each)
        if name is None:
            continue
        field = f"input[{place}]"
        found = ITEM_ID.fullmatch(name)
        run_id = "" if found is None else found[1]
        if run_id not in outputs:
            outputs[run_id] = await _output(server, user, run_id)
        item = outputs[run_id].get(name)
        if item is None:
            text = f"there is no item {name!r:.200}: send the item itself, as with store: false"
            raise Refusal(404, text, field=field)
        size += len(str(item))
        if size > server.max_body:
            most = server.max_body
            text = f"the items that a request refers to must have at most {most} characters"
            raise Refusal(413, text, field=field)
        items[place] = item
    return items


def _reference(item: Any) -> str | None:
    """Return the id in a reference to an item; None if the item is not a reference."""
    if not isinstance(item, dict):
        return None
    fields = cast("dict[str, Any]", item)
    # The type may be missing. Then a reference has an id and no other field.
    is_reference = fields.get("type") == "item_reference" or fields.keys() == {"id"}
    name = fields.get("id")
    return name if is_reference and isinstance(name, str) else None


async def _output(server: Server, user: str, run_id: str) -> dict[str, Any]:
    """Return the items of a response by their ids; {} if the response is not stored."""
    run = await _find_run(server, user, run_id)
    if run is None or run.log.first > 1:
        return {}
    server.runs.renew(run)
    await asyncio.sleep(0)  # a request may refer to many responses
    return {item["id"]: item for item in (await _response(run))["output"]}


def _events(run: Run) -> ResponseEvents:
    return ResponseEvents(f"resp_{run.id}", run.served.name, int(run.created), run.echo)


async def _response(run: Run) -> dict[str, Any]:
    """Return the response so far."""
    events = _events(run)
    try:
        for entry in run.log.entries():
            for _ in events.feed(entry):
                pass
    except EntriesExpired:
        raise Refusal(410, BEGINNING_EXPIRED) from None
    return events.response


def _stream_response(run: Run, after: int) -> Response:
    if run.log.first > 1:
        raise Refusal(410, BEGINNING_EXPIRED)
    events = _events(run)

    def frames(made: Iterator[dict[str, Any]]) -> str:
        return "".join(
            [
                frame(event, event=event["type"])
                for event in made
                if event["sequence_number"] > after
            ]
        )

    def encode(entry: Entry) -> str:
        more = events.continue_text(entry) if events.next > after else None
        return more or frames(events.feed(entry))

    message = "The client read too slowly."
    late = {"type": "error", "code": "gone", "message": message, "param": None}
    return stream_run(
        run,
        encode,
        before=[frames(events.begin())],
        too_late=lambda: [frame({**late, "sequence_number": events.next}, event="error")],
    )


def _failed(run: Run, last: Entry) -> Response:
    """Return the error of a failed run as an HTTP response."""
    status, wait = status_of(last.data["code"]), last.data.get("retry_after")
    # Without a time to wait, another attempt would fail too, and repeat all effects before that.
    headers = NO_RETRY if wait is None else {"Retry-After": str(wait)}
    headers = {**headers, REQUEST_ID: run.id}
    return JSONResponse(chat_error(last), status, headers=headers)


async def _read_to_end(run: Run, request: Request) -> list[Entry]:
    """Wait for the end of a run, and return all entries; cancel the wait if the client leaves."""

    async def read() -> list[Entry]:
        return [entry async for entry in run.log.read()]

    with run.count_reader():
        try:
            return await while_connected(request.receive, read())
        except EntriesExpired:
            text = "the answer is too long to be stored"
            logger.error("run %s of %s: %s", run.id, run.served.name, text)
            headers = {REQUEST_ID: run.id}
            raise Refusal(500, f"{text} (id {run.id})", headers=headers) from None
        except ServerEnding:
            raise Refusal(503, SERVER_ENDING) from None


# --- from the fields of Responses to those of chat completions


def _translate(body: dict[str, Any]) -> dict[str, str]:
    """Rename the fields of a request for a response; return their names on this wire."""
    if body.pop("previous_response_id", None) is not None:
        text = "previous_response_id is not supported here: send the earlier messages"
        raise Refusal(400, text, field="previous_response_id")
    for name in RESPONSE_FIELD_NAMES:
        if body.get(name) is not None:
            raise Refusal(400, f"{name} is not supported here", field=name)
    if (most := body.pop("max_output_tokens", None)) is not None:
        body["max_tokens"] = most
    _take_include(body)
    reasoning = take_object(body, "reasoning")
    body["reasoning_effort"] = reasoning.pop("effort", None)
    if reasoning.get("summary") == "auto":  # a response has the complete reasoning
        del reasoning["summary"]
    _require_nothing(reasoning, "reasoning")
    text = take_object(body, "text")
    body["verbosity"] = text.pop("verbosity", None)
    body["response_format"] = _format(take_object(text, "format"))
    _require_nothing(text, "text")
    match body.get("tool_choice"):
        case {"type": "function", "name": str(name)}:
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        case {"type": kind}:
            text = f"tool_choice: {kind!r:.100} is not supported here"
            raise Refusal(400, text, field="tool_choice")
        case _:
            pass
    return RESPONSE_FIELD_NAMES


def _take_include(body: dict[str, Any]) -> None:
    """Remove `include` from the body; a response always has its provider's data."""
    found: Any = body.pop("include", None)
    if found not in (None, [], ["reasoning.encrypted_content"]):
        raise Refusal(400, f"include: {found!r:.100} is not supported here", field="include")


def _take_stream_options(body: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of a stream from the body; refuse padding against eavesdroppers."""
    options = take_object(body, "stream_options")
    if options.pop("include_obfuscation", None):
        text = "stream_options.include_obfuscation is not supported here"
        raise Refusal(400, text, field="stream_options")
    _require_nothing({n: v for n, v in options.items() if n != "include_usage"}, "stream_options")
    return options


def _read_instructions(instructions: object) -> list[Message]:
    """Return the instructions of a response as a system message."""
    if not isinstance(instructions, str):
        raise Refusal(400, "instructions must be a text", field="instructions")
    return [Message(role="system", content=instructions)]


def _format(fields: dict[str, Any]) -> dict[str, Any] | None:
    kind = fields.get("type")
    if kind != "json_schema":
        return fields or None
    return {"type": kind, kind: {name: value for name, value in fields.items() if name != "type"}}


def _require_nothing(rest: dict[str, Any], name: str) -> None:
    for each, value in rest.items():
        if value is not None:
            raise Refusal(400, f"{name}.{each:.100} is not supported here", field=name)
