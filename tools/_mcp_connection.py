"""The connection to an MCP server, held by a node of its own."""

from __future__ import annotations

import asyncio
import os
import tempfile
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, cast

from ..commander import ConfigurationError, Node
from ..commander.waiting import wait_shielded

if TYPE_CHECKING:
    import mcp

    from ._mcp import McpServer

__all__ = ["MAX_TOOLS", "Connection", "describe_first"]

MAX_TOOLS = 1000
MAX_PAGES = 100


class Connection(Node[None], internal=True, name="mcp_connection"):
    """Opens the client, holds it until `leave` is set, and closes it, all in its own task."""

    # Set here, not in `__init__`: the identity of a node in a durable run includes the attributes
    # that `__init__` sets.
    _connecting: asyncio.Timeout | None = None

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.leave = asyncio.Event()
        self.client: mcp.Client | None = None
        self.listed: asyncio.Future[list[mcp.Tool]] = asyncio.get_running_loop().create_future()

    async def task(self) -> None:
        """Hold the connection. If cancelled, close it before the cancel continues.

        The SDK's client survives one cancel only: a second one would interrupt its cleanup and
        leave the server's process running.
        """
        holding = asyncio.Task(self._hold(), loop=asyncio.get_running_loop())
        interrupted = await wait_shielded(holding, self._leave)
        if interrupted is not None:
            raise interrupted
        holding.result()

    def _leave(self) -> None:
        self.leave.set()
        if self._connecting is not None:
            with suppress(RuntimeError):  # it has expired, or the connection has failed
                # Expire now instead of a cancel: the task is then cancelled once at most.
                self._connecting.reschedule(0.0)

    async def _hold(self) -> None:
        from ._mcp_wire import open_client

        seconds = self._server.connect_timeout
        if self.leave.is_set():
            return
        try:
            with tempfile.TemporaryFile() as log:
                try:
                    async with AsyncExitStack() as stack:
                        async with asyncio.timeout(seconds) as self._connecting:
                            client = await open_client(self._server, stack, log)
                            listed = await _list_tools(client)
                        self._connecting = None
                        self.client = client
                        self.listed.set_result(listed)
                        await self.leave.wait()
                        self.client = None
                except TimeoutError:
                    self._fail(f"it did not answer within {seconds:g} s")
                except Exception as error:  # noqa: BLE001 - the server's failure must not fail the tree
                    log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
                    end = log.read().decode("utf-8", "replace")
                    self._fail(f"{describe_first(error)} {end}".strip())
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(describe_first(error))

    def close(self) -> None:
        """Fail the waiters of a connection that has ended, even if it never started."""
        self.client = None
        self._fail("the connection was cancelled")

    def _fail(self, why: str) -> None:
        if not self.listed.done():
            self.listed.set_exception(
                ConfigurationError(f"{self._server!r}: {self._server.redact(why)}")
            )
            self.listed.exception()  # mark as retrieved: perhaps no task waits for it


async def _list_tools(client: mcp.Client) -> list[mcp.Tool]:
    async def accept(name: str, result: object) -> None:
        """Accept any result; the SDK would check it by the server's own schema."""

    # Checking by a hostile schema can take minutes, see `RemoteSchema`.
    client.session.validate_tool_result = accept
    tools: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(MAX_PAGES):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        if (cursor := page.next_cursor) is None or len(tools) > MAX_TOOLS:
            break
    return tools


def describe_first(error: Exception) -> str:
    """Describe an error, or the first one in a group."""
    if isinstance(error, ExceptionGroup):
        return describe_first(cast("ExceptionGroup[Exception]", error).exceptions[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
