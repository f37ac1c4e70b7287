"""A commander inside an aiohttp application: a job answers each request with a stream.

    pip install "anabranch[http,local]"
    python examples/embed_aiohttp.py [--model openai:gpt-5-mini] [--port 8080]

If a client disconnects, its job and the request to the model are cancelled.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web

from anabranch import (
    AnabranchError,
    Backend,
    BackendError,
    Commander,
    Conversation,
    Job,
    connect,
    fork,
)
from anabranch.handlers import show

COMMANDER = web.AppKey("commander", Commander)
BACKEND = web.AppKey("backend", Backend)
WELCOME = """\
{where} answers; try (Ctrl-C ends it):
  curl -N {where}/ask -d 'What is the capital of France?'"""


class Answer(Job[None]):
    """Ask the model and forward its text as it arrives. A slow client slows the model down."""

    backend: Backend
    question: str
    send: Callable[[str], Awaitable[None]]

    async def task(self) -> None:
        conversation = Conversation("You are a helpful assistant.")
        conversation.add(self.question)
        reply = fork(self, self.backend.stream(conversation.request()))
        await self.call_handler(show(reply.text, self.send))


async def ask(request: web.Request) -> web.StreamResponse:
    """Answer the question in the request's body with a stream of plain text."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain; charset=utf-8"})

    async def send(text: str) -> None:
        if not response.prepared:
            await response.prepare(request)
        await response.write(text.encode())

    job = Answer(request.app[BACKEND], await request.text(), send)
    try:
        await request.app[COMMANDER].run(job)
        await send("\n")
    except BackendError as error:
        if response.prepared:
            raise  # cut the connection, so that the client knows that the answer is incomplete
        return web.Response(status=502, text=f"{error}\n")
    return response


async def open_commander(app: web.Application) -> AsyncIterator[None]:
    """Open the model and one commander for all requests until the application ends."""
    async with app[BACKEND], Commander() as commander:
        app[COMMANDER] = commander
        yield


def application(backend: Backend) -> web.Application:
    """Create the application. Clients can cancel only if it runs with `handler_cancellation`."""
    app = web.Application()
    app[BACKEND] = backend
    app.cleanup_ctx.append(open_commander)
    app.router.add_post("/ask", ask)
    return app


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="local", help="as in anabranch.connect")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    where = f"http://{options.host}:{options.port}"

    def welcome(_: str) -> None:
        print(WELCOME.format(where=where), flush=True)

    try:
        web.run_app(
            application(connect(options.model)),
            host=options.host,
            port=options.port,
            handler_cancellation=True,
            print=welcome,
        )
    except AnabranchError as error:
        raise SystemExit(f"{error}") from None


if __name__ == "__main__":
    main()
