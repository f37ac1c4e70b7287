"""An agent inside a FastAPI application with other routes.

    pip install "anabranch[http,local,serve]" fastapi
    uvicorn --app-dir examples embed_fastapi:app          # ANABRANCH_MODEL=openai:gpt-5-mini

    curl http://127.0.0.1:8000/health
    curl http://127.0.0.1:8000/ai/v1/chat/completions -H 'Content-Type: application/json' \\
        -d '{"model": "writer", "messages": [{"role": "user", "content": "Hello!"}]}'

The agent starts and ends with the application.
"""

from __future__ import annotations

import os

from fastapi import FastAPI

from anabranch import Agent, Backend, connect
from anabranch.serve import serve


def application(backend: Backend) -> FastAPI:
    """Create the application, with an agent below /ai."""
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:  # pyright: ignore[reportUnusedFunction]
        return {"status": "ok"}

    serve(Agent(backend, "You write short answers.", name="writer")).mount_into(app, "/ai")
    return app


app = application(connect(os.environ.get("ANABRANCH_MODEL", "local")))
