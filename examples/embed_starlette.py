"""A commander inside a Starlette application: one agent for all, each user in a session.

    pip install "anabranch[http,local]" starlette uvicorn
    python examples/embed_starlette.py [--model openai:gpt-5-mini] [--port 8080]

If a client disconnects, its answer and the request to the model are cancelled. FastAPI is based on
Starlette, so `lifespan` and `ask` work there unchanged.
"""

from __future__ import annotations

import argparse
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from anabranch import Agent, AnabranchError, Backend, Commander, connect

WELCOME = """\
{where} answers; try (Ctrl-C ends it):
  curl -N {where}/ask?user=ann -d 'What is the capital of France?'"""


async def ask(request: Request) -> StreamingResponse:
    """Answer the question in the request's body with a stream of plain text."""
    agent, commander = request.state.agent, request.state.commander
    question = (await request.body()).decode()
    # Without a user, a new session: the agent does not remember the question.
    stream = agent.stream(question, session_id=request.query_params.get("user"), parent=commander)

    async def words() -> AsyncIterator[str]:
        async with stream:
            async for text in stream.text():
                yield text
        yield "\n"

    return StreamingResponse(words(), media_type="text/plain")


def application(backend: Backend) -> Starlette:
    """Create the application. Model, agent and one commander exist until it ends."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[dict[str, Any]]:
        async with backend, Commander() as commander:
            agent = Agent(backend, "You are a helpful assistant.")
            yield {"agent": agent, "commander": commander}

    return Starlette(routes=[Route("/ask", ask, methods=["POST"])], lifespan=lifespan)


def main() -> None:
    import uvicorn

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="local", help="as in anabranch.connect")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    options = parser.parse_args()
    try:
        app = application(connect(options.model))
    except AnabranchError as error:
        raise SystemExit(f"{error}") from None
    print(WELCOME.format(where=f"http://{options.host}:{options.port}"), flush=True)
    uvicorn.run(app, host=options.host, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
