"""What all wires do over HTTP: read a body, find who asks, stream a run, say what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import TYPE_CHECKING, Any, cast

from starlette.responses import JSONResponse, StreamingResponse

from ._log import Entry, Gone
from ._run import Run

if TYPE_CHECKING:
    from starlette.requests import Request

    from ._app import Server

__all__ = ["Refusal", "read_body", "stream_run", "who_asks"]

# Seconds without a word after which a comment shows that the connection lives.
HEARTBEAT = 15.0


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
        self.headers = headers or {}

    def response(self) -> JSONResponse:
        """Return it as OpenAI's wire has errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.field, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers=self.headers)


async def who_asks(server: Server, request: Request) -> str:
    """Return who asks; refuse whom nobody knows."""
    user = await server.user_of(request)
    if user is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, "the token is not known", code="invalid_api_key", headers=headers)
    return user


async def read_body(server: Server, request: Request) -> dict[str, Any]:
    """Read a JSON object; refuse what is none, or too large, before it is kept."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > server.max_body:
            raise Refusal(413, f"a request has at most {server.max_body} bytes")
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return cast("dict[str, Any]", found)


def stream_run(
    run: Run,
    encode: Callable[[Entry], Iterable[str]],
    *,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> StreamingResponse:
    """Stream a run from its first entry: `encode` makes frames of each, of which some may be none.

    Where the reader is slower than the log is long, `too_late` gives the last frames.
    """

    async def frames() -> AsyncGenerator[str]:
        async with run.reading() as entries:
            for frame in before:
                yield frame
            pending: asyncio.Future[Entry] | None = None
            try:
                while True:
                    pending = asyncio.ensure_future(anext(entries))
                    while not (await asyncio.wait((pending,), timeout=HEARTBEAT))[0]:
                        yield ": still here\n\n"
                    entry = await pending
                    pending = None
                    for frame in encode(entry):
                        yield frame
            except StopAsyncIteration:
                for frame in at_end:
                    yield frame
            except Gone:
                for frame in too_late():
                    yield frame
            finally:
                if pending is not None:
                    pending.cancel()
                    await asyncio.gather(pending, return_exceptions=True)

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(frames(), media_type="text/event-stream", headers=headers)
