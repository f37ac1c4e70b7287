"""Anabranch's own wire, for the chat page and for programs that need all entries of a run.

    GET  /                            the chat page
    POST /runs                        {"model": "writer", "input": "hi"} returns {"id": ...}
    GET  /runs                        the user's runs, the newest first
    GET  /runs/ID                     one of them
    GET  /runs/ID/events?after=7      the entries after number 7, as they arrive (SSE)
    GET  /runs/ID/trace               the records of its tree, as in a recording (SSE)
    POST /runs/ID/cancel              stop it
    POST /runs/ID/answers/2           {"approved": true} approves its question 2; else it is denied

A run that was started here continues when its readers leave. The number of each entry is the
event's `id`, so a browser reconnects with `Last-Event-ID`. Expired entries are 410.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from ..tracing.pages import assemble
from ._http import EventStream, Refusal, frame, route, stop, stream_log, stream_run
from ._request import read_input, start
from ._request_body import read_body
from ._run import Run
from ._run_log import Entry

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["assemble_page", "routes"]

PAGE_SCRIPTS = ("wire", "markdown", "conversation", "tree", "main")
# The page loads no other file and runs no other script, and no other site can frame it. It can
# connect to its own server only.
PAGE_POLICY = (
    "default-src 'none'; connect-src 'self'; form-action 'self'; img-src data:;"
    " script-src '{script}'; style-src '{style}';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)


def routes(server: Server) -> list[Route]:
    """Return the routes of this wire."""
    at_root = [Route("/", _page)] if server.has_page else []
    return [
        *at_root,
        route(server, "GET", "/runs", _list),
        route(server, "POST", "/runs", _start),
        route(server, "GET", "/runs/{id}", _show),
        route(server, "GET", "/runs/{id}/events", _events),
        route(server, "GET", "/runs/{id}/trace", _trace),
        route(server, "POST", "/runs/{id}/cancel", _cancel),
        route(server, "POST", "/runs/{id}/answers/{number}", _answer),
    ]


async def _page(request: Request) -> Response:
    """Return the page, also without a token: it contains no data, and asks for the key."""
    text, headers = assemble_page()
    return HTMLResponse(text, headers=headers)


@cache
def assemble_page() -> tuple[str, dict[str, str]]:
    """Return the chat page and its headers."""
    html, policy = assemble(Path(__file__).parent / "page", PAGE_SCRIPTS, PAGE_POLICY)
    return html, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


async def _list(server: Server, request: Request, user: str) -> Response:
    await server.runs.until_resumed()
    return JSONResponse({"runs": [_describe(run) for run in server.runs.of(user)]})


async def _start(server: Server, request: Request, user: str) -> Response:
    body = await read_body(server, request)
    messages = await read_input(server, body)
    leave = server.on_leave("anabranch")
    run = await start(server, user, body, messages, leave, traced=True, can_ask=True)
    return JSONResponse(_describe(run), 201)


async def _show(server: Server, request: Request, user: str) -> Response:
    return JSONResponse(_describe(await _find(server, request, user)))


async def _events(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, request, user)
    text = request.query_params.get("after") or request.headers.get("last-event-id") or "0"
    after = _read_number(text, "after")
    if after + 1 < run.log.first:
        raise Refusal(410, f"entries before {run.log.first} have expired", code="gone")

    def encode(entry: Entry) -> str:
        number = entry.number
        return frame({"number": number, **entry.data}, event=entry.kind, id=str(number))

    return stream_run(run, encode, after=after, too_late=_too_late)


async def _trace(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, request, user)
    if run.trace is None:
        raise Refusal(404, "this run has no recording: only runs from POST /runs have one")
    if run.trace.first > 1:
        raise Refusal(410, "the beginning of this recording has expired", code="gone")

    def encode(entry: Entry) -> str:
        return f"data: {entry.data['text']}\n\n" if entry.kind == "line" else ""

    return EventStream(stream_log(run.trace, encode, too_late=_too_late))


def _too_late() -> Iterator[str]:
    yield frame({"message": "The client read too slowly."}, event="gone")


async def _cancel(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, request, user)
    if run.is_persisted:
        await stop(run)  # a restart must not resume it after this response
    else:
        run.cancel("a client cancelled it")
    return JSONResponse(_describe(run), 202)


async def _answer(server: Server, request: Request, user: str) -> Response:
    run = await _find(server, request, user)
    number = _read_number(request.path_params["number"], "question")
    try:
        body = await read_body(server, request)
    except Refusal:
        await run.answer(number, None)  # an answer that cannot be read denies
        raise
    if not await run.answer(number, body.get("approved")):
        raise Refusal(409, "this question has an answer already, or does not exist")
    return JSONResponse(_describe(run))


def _read_number(text: str, field: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise Refusal(400, f"{field} must be a number", field=field)
    return int(text)


async def _find(server: Server, request: Request, user: str) -> Run:
    await server.runs.until_resumed(request.path_params["id"])
    run = server.runs.find(request.path_params["id"], user)
    if run is None:
        raise Refusal(404, "there is no such run")
    return run


def _describe(run: Run) -> dict[str, Any]:
    return {
        "id": run.id,
        "model": run.served.name,
        "status": run.status,
        "created": run.created,
        "traced": run.trace is not None,
        "last": run.log.last,
    }
