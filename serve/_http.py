"""The common part of all wires: routes, users, refusals, server-sent events."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ._auth import AuthFailed, host_name, is_local, is_remote_address
from ._failure import log_failure, see_log
from ._log import EntriesExpired, Entry, Log, ServerEnding
from ._run import Run
from ._runs import Busy, NotBegun

if TYPE_CHECKING:
    from starlette.types import StatelessLifespan

    from ._app import Server

__all__ = [
    "ENDING",
    "HOLE",
    "NO_RETRY",
    "REQUEST_ID",
    "SEND",
    "EventStream",
    "Refusal",
    "application",
    "frame",
    "frame_around",
    "refuse_failure",
    "route",
    "stop",
    "stream_log",
    "stream_run",
    "to_json",
    "while_there",
]

logger = logging.getLogger("anabranch.serve")

T = TypeVar("T")

# After so many seconds without an event, at most twice that, a comment shows that the connection
# lives.
HEARTBEAT = 7.5
# The key in a request's scope of the server's own `send`. Middleware around it has to see the
# beginning of a response, and would only cost time for the rest.
SEND = "anabranch.send"
# For a failed run: OpenAI's clients would retry by themselves, and tools would run again.
NO_RETRY = {"x-should-retry": "false"}
# OpenAI's clients show it as the `request_id` of an error.
REQUEST_ID = "x-request-id"
ENDING = "the server is ending; the run continues when the server starts again"
# Headers of requests that a proxy passes on.
PROXIED = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-server", "x-real-ip", "cf-connecting-ip", "true-client-ip"),
)
# A response is for its client only: not for caches or pages of other sites, and browsers must not
# guess that it is a page.
OWN = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Marks the variable part of an event; no text of a run is equal to it.
HOLE = "\0 a hole \0"


def frame(value: object, **fields: str) -> str:
    """Write one server-sent event; `fields` are `event` and `id`."""
    lines = "".join(f"{name}: {text}\n" for name, text in fields.items())
    return f"{lines}data: {to_json(value)}\n\n"


def frame_around(value: object, **fields: str) -> list[str]:
    """Write the text before, between and after the `HOLE`s of an event.

    For frequent events: their constant parts are encoded only once.
    """
    return frame(value, **fields).split(to_json(HOLE))


class Refusal(Exception):
    """An error for a client, with an HTTP status; `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.field = field
        self.headers = {**(headers or {})}

    def response(self) -> JSONResponse:
        """Return it in the form of OpenAI's errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.field, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers={**OWN, **self.headers})


def refuse_failure(what: str, about: str, error: Exception) -> Refusal:
    """Log why a request failed; return a refusal with the id of the log record and no cause."""
    name = secrets.token_hex(8)
    log_failure("%s (id %s)", about, name, error=error)
    headers = {**NO_RETRY, REQUEST_ID: name}
    return Refusal(500, see_log(what, name), headers=headers)


Endpoint: TypeAlias = "Callable[[Server, Request, str], Awaitable[Response]]"


def route(server: Server, method: str, path: str, endpoint: Endpoint) -> Route:
    """Make a route that checks the user before it calls `endpoint`, and answers with refusals."""

    def refuse(refusal: Refusal, cause: Exception | None = None) -> Response:
        """Answer with a refusal; one for a fault of the server has an id, which is in the log."""
        if refusal.status >= 500 and REQUEST_ID not in refusal.headers:
            name = secrets.token_hex(8)
            level = logging.WARNING if cause is None else logging.ERROR
            logger.log(level, "%s %s: %s (id %s)", method, path, cause or refusal, name)
            refusal.message += f" (id {name})"
            refusal.headers |= {REQUEST_ID: name}
        return refusal.response()

    async def answer(request: Request) -> Response:
        try:
            _require_own_machine(server, request)
            _require_own_page(request)
            response = await endpoint(server, request, await _user_of(server, request))
        except Refusal as refusal:
            return refuse(refusal)
        except Busy as busy:
            headers = {"Retry-After": str(busy.retry_after)}
            return refuse(Refusal(busy.status, str(busy), code="rate_limit", headers=headers))
        except NotBegun as error:
            return refuse(Refusal(503, "the server has not begun", headers=NO_RETRY), error)
        except ClientDisconnect:
            return Refusal(400, "the request broke off").response()  # the client does not read it
        except Exception as error:  # noqa: BLE001 - a client learns nothing about the inside
            return refuse_failure("the server", f"{method} {path} failed", error).response()
        for name, value in OWN.items():
            response.headers.setdefault(name, value)
        return response

    made = Route(path, answer, methods=[method])
    made.methods = {method}  # without HEAD, which would read a stream to its end
    return made


def application(routes: Sequence[Route], lifespan: StatelessLifespan[Starlette]) -> Starlette:
    """Make the application; requests for other addresses get the same kind of refusal."""

    paths = {each.path for each in routes}

    async def refuse(request: Request, error: Exception) -> Response:
        known = cast("HTTPException", error)
        what = "there is nothing at this address"
        if known.status_code == 405:
            what = "this address takes no such request"
        elif f"/v1{request.url.path.rstrip('/')}" in paths:
            what += "; should the base URL end in /v1?"
        return Refusal(known.status_code, what, headers={**(known.headers or {})}).response()

    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})
    # A redirect would lead to any host that the request names.
    made.router.redirect_slashes = False
    return made


def _require_own_machine(server: Server, request: Request) -> None:
    """Without `auth`, refuse requests that are not from this machine to this machine's own name.

    The sender's address is not enough. For a browser, another site whose name leads here has the
    same origin as its pages. And a proxy on this machine passes on anybody's requests. Proxies are
    recognized by the headers that they add. nginx adds none by default, but speaks HTTP/1.0 then,
    which no client does.
    """
    if server.has_auth:
        return
    if request.scope["http_version"] == "1.0" or any(map(request.headers.__contains__, PROXIED)):
        text = "without auth= this server takes no requests from proxies"
        raise Refusal(403, text, code="proxy")
    name = host_name(request.headers.get("host", ""))
    away = request.client is not None and is_remote_address(request.client.host)
    if away or name is None or not is_local(name):
        raise Refusal(403, "without auth= this server is for its own machine", code="host")


def _require_own_page(request: Request) -> None:
    """Refuse requests of other sites' pages.

    `X-Forwarded-Host` does not count, as any client can send it. Browsers send the site of a page
    in a header that no page can set; older ones send its origin only.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        own = site in ("same-origin", "none")
    elif origin is not None:
        host = request.headers.get("host", "")
        own = host != "" and origin.lower() in (f"http://{host.lower()}", f"https://{host.lower()}")
    else:
        own = True  # no browser
    if not own:
        raise Refusal(403, "pages of other sites may not use this server", code="origin")


async def _user_of(server: Server, request: Request) -> str:
    """Return the user; refuse an unknown one."""
    try:
        user = await server.user_of(request)
    except AuthFailed as failed:
        text = f"authentication failed (id {failed.id}); see the server log"
        raise Refusal(503, text, headers={**NO_RETRY, REQUEST_ID: failed.id}) from None
    if user is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, "the token is not known", code="invalid_api_key", headers=headers)
    return user


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it and raise `ClientDisconnect` if the client leaves."""

    async def leaving() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working, left = asyncio.ensure_future(work), asyncio.ensure_future(leaving())
    both = (working, left)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()
        await asyncio.wait(both)
    if not left.cancelled():
        left.exception()  # the client has left
    if working.cancelled():
        raise ClientDisconnect
    return working.result()


async def stop(run: Run) -> None:
    """Cancel a run; when this returns it has ended, and no restart resumes it."""
    run.cancel("a client asked for it")
    await run.log.over()
    if run.log.is_suspended:
        raise Refusal(503, ENDING)


def stream_run(
    run: Run,
    encode: Callable[[Entry], str],
    *,
    after: int = 0,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> Response:
    """Stream the entries of a run after number `after`; `encode` writes the frames of each.

    If the reader is too slow for the bounded log, `too_late` returns the last frames.
    """
    texts = stream_log(run.log, encode, after, before, too_late, at_end)
    return EventStream(texts, run.attended())


async def stream_log(
    log: Log,
    encode: Callable[[Entry], str],
    after: int = 0,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> AsyncGenerator[str]:
    """Yield the frames of entries, several at once; a comment if none comes for long."""
    clock = asyncio.get_running_loop().time
    yield "".join(before)
    said = clock()
    try:
        async with aclosing(log.batches(after, HEARTBEAT)) as batches:
            async for batch in batches:
                text = "".join(map(encode, batch))
                if text or not batch or clock() - said > HEARTBEAT:
                    yield text or ": still here\n\n"
                    said = clock()
    except EntriesExpired:
        yield "".join(too_late())
    except ServerEnding:
        return  # like a lost connection: a client that reconnects finds the run
    else:
        yield "".join(at_end)


class EventStream(Response):
    """Server-sent events: the `texts` as they come, until the client leaves.

    In any case it closes `texts` and exits `attended` at the end.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self, texts: AsyncGenerator[str], attended: AbstractContextManager[None] | None = None
    ) -> None:
        self._texts = texts
        self._attended = attended or nullcontext()
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # On some servers Starlette's own streams notice a lost client only when they write.
        with self._attended, suppress(ClientDisconnect, OSError):
            await while_there(receive, self._send(send, scope.get(SEND, send)))

    async def _send(self, start: Send, send: Send) -> None:
        headers = self.raw_headers
        async with aclosing(self._texts) as texts:
            await start({"type": "http.response.start", "status": 200, "headers": headers})
            async for text in texts:
                if text:
                    body = text.encode()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
