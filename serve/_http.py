"""What all wires do over HTTP: find who asks, stream a run, say what is wrong."""

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

# Seconds without a word after which a comment shows that the connection lives, twice that at most.
HEARTBEAT = 7.5
# In a request's scope: its `send` as the server was given it. All around it that an application has
# of its own needs to see how an answer begins, and would only cost where it goes on.
SEND = "anabranch.send"
# For a run that has failed: OpenAI's clients would ask again by themselves, and tools run again.
NO_RETRY = {"x-should-retry": "false"}
# What OpenAI's clients show as the `request_id` of an error.
REQUEST_ID = "x-request-id"
ENDING = "the server ends, and the run goes on when it begins again"
# Headers by which a request that a proxy passes on is known.
PROXIED = (
    *("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
    *("x-forwarded-server", "x-real-ip", "cf-connecting-ip", "true-client-ip"),
)
# What is answered is for who asked and for nobody else: no cache, no page of others, no guess
# of a browser's that it is a page.
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
    """An answer that is an error, with a status of HTTP's; `code` is for programs."""

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
        """Return it as OpenAI's wire has errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.field, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers={**OWN, **self.headers})


def refuse_failure(what: str, about: str, error: Exception) -> Refusal:
    """Log why a request fails; return its answer, which has the id of that entry and no cause."""
    name = secrets.token_hex(8)
    log_failure("%s (id %s)", about, name, error=error)
    headers = {**NO_RETRY, REQUEST_ID: name}
    return Refusal(500, see_log(what, name), headers=headers)


Endpoint: TypeAlias = "Callable[[Server, Request, str], Awaitable[Response]]"


def route(server: Server, method: str, path: str, endpoint: Endpoint) -> Route:
    """Make a route: who asks is known, and may, before `endpoint` is called; refusals are told."""

    def refuse(refusal: Refusal, cause: Exception | None = None) -> Response:
        """Answer with a refusal; one that is the server's fault has an id, also in the log."""
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
            response = await endpoint(server, request, await _who_asks(server, request))
        except Refusal as refusal:
            return refuse(refusal)
        except Busy as busy:
            headers = {"Retry-After": str(busy.retry_after)}
            return refuse(Refusal(busy.status, str(busy), code="rate_limit", headers=headers))
        except NotBegun as error:
            return refuse(Refusal(503, "the server has not begun", headers=NO_RETRY), error)
        except ClientDisconnect:
            return Refusal(400, "the request broke off").response()  # which nobody reads
        except Exception as error:  # noqa: BLE001 - a client is told nothing of the inside
            return refuse_failure("the server", f"{method} {path} failed", error).response()
        for name, value in OWN.items():
            response.headers.setdefault(name, value)
        return response

    made = Route(path, answer, methods=[method])
    made.methods = {method}  # without HEAD, which would read a stream to its end
    return made


def application(routes: Sequence[Route], lifespan: StatelessLifespan[Starlette]) -> Starlette:
    """Make the application; what is at none of its addresses is refused as all else is."""

    async def refuse(request: Request, error: Exception) -> Response:
        known = cast("HTTPException", error)
        what = "this address takes no such request" if known.status_code == 405 else None
        said = Refusal(
            known.status_code,
            what or "there is nothing at this address",
            headers={**(known.headers or {})},
        )
        return said.response()

    made = Starlette(routes=routes, lifespan=lifespan, exception_handlers={HTTPException: refuse})
    # A redirect would lead to whatever the request says that the host is.
    made.router.redirect_slashes = False
    return made


def _require_own_machine(server: Server, request: Request) -> None:
    """Refuse, where anybody may ask, what does not come from this machine to this machine.

    A name of somebody else's that leads here would be a page's own for a browser, so it is not
    enough where a request comes from. What a proxy on this machine passes on is anybody's. It is
    known by the headers that proxies add. nginx adds none unless it is told to, but it speaks
    HTTP/1.0 then, which no client does.
    """
    if server.has_auth:
        return
    if request.scope["http_version"] == "1.0" or any(map(request.headers.__contains__, PROXIED)):
        text = "without auth= this server takes nothing that a proxy passes on"
        raise Refusal(403, text, code="proxy")
    name = host_name(request.headers.get("host", ""))
    away = request.client is not None and is_remote_address(request.client.host)
    if away or name is None or not is_local(name):
        raise Refusal(403, "without auth= this server is for its own machine", code="host")


def _require_own_page(request: Request) -> None:
    """Refuse what a page of somebody else's asks in a browser.

    Nothing that a proxy says counts: `X-Forwarded-Host` is anybody's to send. Browsers themselves
    say where a page is from, in a header that no page can set; the older ones do not.
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
        raise Refusal(403, "pages from elsewhere may not ask here", code="origin")


async def _who_asks(server: Server, request: Request) -> str:
    """Return who asks; refuse whom nobody knows."""
    try:
        user = await server.user_of(request)
    except AuthFailed as failed:
        text = f"nobody can be let in for now (id {failed.id}); see the server log"
        raise Refusal(503, text, headers={**NO_RETRY, REQUEST_ID: failed.id}) from None
    if user is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, "the token is not known", code="invalid_api_key", headers=headers)
    return user


async def while_there(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do `work`, as long as the client is there; it is cancelled when the client leaves.

    Raises `ClientDisconnect` then.
    """

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
        left.exception()  # whatever it is, nobody is there
    if working.cancelled():
        raise ClientDisconnect
    return working.result()


async def stop(run: Run) -> None:
    """Cancel a run; when this returns it is over, and no restart brings it back."""
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
    """Stream a run behind the entry `after`; `encode` writes the frames of each, perhaps none.

    Where the reader is slower than the log is long, `too_late` gives the last frames.
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
    """Give the frames of entries, several at once; a comment where nothing is said for long."""
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
        return  # as if the connection were cut: whoever comes back finds the run
    else:
        yield "".join(at_end)


class EventStream(Response):
    """Server-sent events: the `texts` as they come, until the client leaves.

    However it ends, `texts` is closed before that, and then `attended` is left.
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
        # Starlette's own streams notice on some servers only when they write that nobody reads.
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
