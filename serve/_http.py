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
from ._run import Run
from ._run_log import EntriesExpired, Entry, RunLog, ServerEnding
from ._runs import Busy, NotRunning

if TYPE_CHECKING:
    from starlette.types import StatelessLifespan

    from ._app import Server

__all__ = [
    "HOLE",
    "NO_RETRY",
    "REQUEST_ID",
    "SEND_KEY",
    "SERVER_ENDING",
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
    "while_connected",
]

logger = logging.getLogger("anabranch.serve")

T = TypeVar("T")

# After this time without an event, at most twice that, a comment shows proxies and clients that the
# connection is open.
HEARTBEAT_SECONDS = 7.5
# The key of the server's own `send` in a request's scope. Middleware must see the start of a
# response; for the body of a stream it would only cost time.
SEND_KEY = "anabranch.send"
# For a failed run: OpenAI's clients would retry, and tools would run again.
NO_RETRY = {"x-should-retry": "false"}
# OpenAI's clients show it as the `request_id` of an error.
REQUEST_ID = "x-request-id"
SERVER_ENDING = "The server is ending. The run continues when the server starts again."
# Headers that proxies add to a request.
PROXY_HEADERS = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-server", "x-real-ip", "cf-connecting-ip", "true-client-ip"),
)
# A response is for its client only: caches must not store it, pages of other sites must not load
# it, and browsers must not guess that it is HTML.
PRIVATE_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
}


to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
# Stands for the variable part of an event. No text of a run is equal to it.
HOLE = "\0 a hole \0"


def frame(value: object, **fields: str) -> str:
    """Return one server-sent event; `fields` are `event` and `id`."""
    lines = "".join(f"{name}: {text}\n" for name, text in fields.items())
    return f"{lines}data: {to_json(value)}\n\n"


def frame_around(value: object, **fields: str) -> list[str]:
    """Return the text before, between and after the `HOLE`s of an event.

    This encodes the constant parts of frequent events only once.
    """
    return frame(value, **fields).split(to_json(HOLE))


class Refusal(Exception):
    """An error for a client: an HTTP status, a `code` for programs, and the wrong `field`."""

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
        return JSONResponse(
            {"error": error}, self.status, headers={**PRIVATE_HEADERS, **self.headers}
        )


def refuse_failure(subject: str, log_text: str, error: Exception) -> Refusal:
    """Log why a request failed; return a refusal with the id of the log record, but no cause."""
    log_id = secrets.token_hex(8)
    log_failure("%s (id %s)", log_text, log_id, error=error)
    headers = {**NO_RETRY, REQUEST_ID: log_id}
    return Refusal(500, see_log(subject, log_id), headers=headers)


Endpoint: TypeAlias = "Callable[[Server, Request, str], Awaitable[Response]]"


def route(server: Server, method: str, path: str, endpoint: Endpoint) -> Route:
    """Make a route that checks sender and user, calls `endpoint`, and answers with its errors."""

    def refuse(refusal: Refusal, cause: Exception | None = None) -> Response:
        """Return the response of a refusal; a fault of the server gets an id, and is logged."""
        if refusal.status >= 500 and REQUEST_ID not in refusal.headers:
            log_id = secrets.token_hex(8)
            level = logging.WARNING if cause is None else logging.ERROR
            logger.log(level, "%s %s: %s (id %s)", method, path, cause or refusal, log_id)
            refusal.message += f" (id {log_id})"
            refusal.headers |= {REQUEST_ID: log_id}
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
        except NotRunning as error:
            return refuse(Refusal(503, "the server is not running", headers=NO_RETRY), error)
        except ClientDisconnect:  # the client cannot read it
            return Refusal(400, "the client left in the middle of its request").response()
        except Exception as error:  # noqa: BLE001 - a client must not learn the cause
            return refuse_failure("The server", f"{method} {path} failed", error).response()
        for name, value in PRIVATE_HEADERS.items():
            response.headers.setdefault(name, value)
        return response

    made = Route(path, answer, methods=[method])
    made.methods = {method}  # Starlette adds HEAD, which would read a stream to its end
    return made


def application(routes: Sequence[Route], lifespan: StatelessLifespan[Starlette]) -> Starlette:
    """Make the application; other addresses are refused in the same form."""

    paths = {each.path for each in routes}

    async def refuse(request: Request, error: Exception) -> Response:
        http_error = cast("HTTPException", error)
        text = "there is nothing at this address"
        if http_error.status_code == 405:
            text = f"this address does not support {request.method}"
        elif f"/v1{request.url.path.rstrip('/')}" in paths:
            text += "; should the base URL end in /v1?"
        headers = {**(http_error.headers or {})}
        return Refusal(http_error.status_code, text, headers=headers).response()

    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})
    # A redirect would lead to whatever host the request names.
    made.router.redirect_slashes = False
    return made


def _require_own_machine(server: Server, request: Request) -> None:
    """Without `auth`, refuse requests from other machines, and those for another host name.

    The sender's address is not enough. If the name of another site resolves to this machine, a
    browser gives pages of that site access (DNS rebinding). And a proxy on this machine forwards
    requests of anybody. Proxies are recognized by the headers that they add. nginx adds none by
    default, but then it uses HTTP/1.0, which clients do not use.
    """
    if server.has_auth:
        return
    if request.scope["http_version"] == "1.0" or any(
        map(request.headers.__contains__, PROXY_HEADERS)
    ):
        text = "without auth= this server refuses requests from proxies"
        raise Refusal(403, text, code="proxy")
    name = host_name(request.headers.get("host", ""))
    is_remote = request.client is not None and is_remote_address(request.client.host)
    if is_remote or name is None or not is_local(name):
        text = "without auth= this server answers only its own machine"
        raise Refusal(403, text, code="host")


def _require_own_page(request: Request) -> None:
    """Refuse requests from pages of other sites.

    `X-Forwarded-Host` does not count, because any client can send it. Browsers send the page's site
    in a header that no page can set; older browsers send only its origin.
    """
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    if site is not None:
        is_same_site = site in ("same-origin", "none")
    elif origin is not None:
        host = request.headers.get("host", "").lower()
        is_same_site = host != "" and origin.lower() in (f"http://{host}", f"https://{host}")
    else:
        is_same_site = True  # not a browser
    if not is_same_site:
        raise Refusal(403, "pages of other sites must not use this server", code="origin")


async def _user_of(server: Server, request: Request) -> str:
    """Return the user of a request; raise `Refusal` for an unknown one."""
    try:
        user = await server.user_of(request)
    except AuthFailed as failed:
        text = see_log("Authentication", failed.id)
        raise Refusal(503, text, headers={**NO_RETRY, REQUEST_ID: failed.id}) from None
    if user is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, "unknown token", code="invalid_api_key", headers=headers)
    return user


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await `work`; cancel it and raise `ClientDisconnect` if the client leaves."""

    async def wait_for_disconnect() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect())
    both = (working, disconnect)
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in both:
            each.cancel()
        await asyncio.wait(both)
    if not disconnect.cancelled():
        disconnect.exception()  # mark it as retrieved, or asyncio would log it
    if working.cancelled():
        raise ClientDisconnect
    return working.result()


async def stop(run: Run) -> None:
    """Cancel a run and wait for its end. No restart resumes it then."""
    run.cancel("a client cancelled it")
    await run.log.until_ended()
    if run.log.is_suspended:
        raise Refusal(503, SERVER_ENDING)


def stream_run(
    run: Run,
    encode: Callable[[Entry], str],
    *,
    after: int = 0,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> Response:
    """Return a stream of the entries of a run after number `after`; `encode` writes their frames.

    If the reader is too slow for the bounded log, `too_late` returns the last frames.
    """
    texts = stream_log(run.log, encode, after, before, too_late, at_end)
    return EventStream(texts, run.count_reader())


async def stream_log(
    log: RunLog,
    encode: Callable[[Entry], str],
    after: int = 0,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> AsyncGenerator[str]:
    """Yield the frames of entries in batches; after a long pause, a comment."""
    clock = asyncio.get_running_loop().time
    yield "".join(before)
    last_frame = clock()
    try:
        async with aclosing(log.batches(after, HEARTBEAT_SECONDS)) as batches:
            async for batch in batches:
                text = "".join(map(encode, batch))
                # A wire may have no frames for the entries of a batch.
                if text or not batch or clock() - last_frame > HEARTBEAT_SECONDS:
                    yield text or ": still here\n\n"
                    last_frame = clock()
    except EntriesExpired:
        yield "".join(too_late())
    except ServerEnding:
        return  # no last frame, as for a lost connection: a client that reconnects finds the run
    else:
        yield "".join(at_end)


class EventStream(Response):
    """A response that sends each of `texts` at once, until the client leaves.

    At the end it always closes `texts` and exits `reader`.
    """

    media_type = "text/event-stream"
    charset = "utf-8"

    def __init__(
        self, texts: AsyncGenerator[str], reader: AbstractContextManager[None] | None = None
    ) -> None:
        self._texts = texts
        self._reader = reader or nullcontext()
        self.status_code = 200
        self.background = None
        self.init_headers({"Cache-Control": "no-cache, no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # Watch the connection, because on some servers only a write fails after the client left.
        with self._reader, suppress(ClientDisconnect, OSError):
            await while_connected(receive, self._send(send, scope.get(SEND_KEY, send)))

    async def _send(self, start: Send, send: Send) -> None:
        headers = self.raw_headers
        async with aclosing(self._texts) as texts:
            await start({"type": "http.response.start", "status": 200, "headers": headers})
            async for text in texts:
                if text:
                    body = text.encode()
                    await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
