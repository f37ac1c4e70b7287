"""The chat in a folder of its own, with a server that answers from a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.chat import environment
from support.server import ScriptedServer
from support.warm import run_warm

__all__ = ["Place"]


class Place:
    """A folder of its own for each test, with a server that answers."""

    def __init__(self, folder: Path, server: ScriptedServer) -> None:
        self.folder = folder
        self.server = server
        names = ("DATA", "STATE", "CONFIG")
        self.kept = {f"XDG_{name}_HOME": str(folder / name.lower()) for name in names}
        self.data = folder / "data" / "anabranch" / "chats.db"

    async def chat(self, *options: str, said: str = "", **env: str) -> tuple[int, str, str]:
        """Run `anabranch chat`; return status, output and errors."""
        arguments = ["-m", "anabranch", "chat", *options]
        return await run_warm(arguments, self.folder, said, environment(**self.kept, **env))

    async def ask(self, *options: str, said: str = "", **env: str) -> tuple[int, str, str]:
        """Ask the server."""
        return await self.chat("--model", f"{self.server.url} m", *options, said=said, **env)

    def heard(self, at: int = -1) -> list[tuple[str, Any]]:
        """Return the conversation that the server was sent."""
        sent = self.server.requests[at].body["messages"]
        return [(each["role"], each["content"]) for each in sent]
