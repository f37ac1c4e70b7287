"""`McpServer`: the tools of any MCP server, as tools."""

from __future__ import annotations

import asyncio
import re
import shlex
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, BinaryIO, Self, cast

from ..commander import Commander, ConfigurationError, Node, ToolError, current_node
from ..commander._observe import observe, outlast
from ..dispatch import image_url
from ._extra import import_extra
from ._result import Illustrated, shortened
from ._schema import InvalidArguments
from ._tool import AnyTool, Tool
from ._toolkit import Toolkit

if TYPE_CHECKING:
    import mcp

__all__ = ["McpServer"]

PAGES = 100
NAME = re.compile(r"[^A-Za-z0-9_-]")
DESCRIPTION = 4000
INVALID_PARAMS = -32602
TIMED_OUT = -32001


class McpServer(Toolkit):
    """The tools of an MCP server, for as long as this is entered.

        async with McpServer("uvx mcp-server-git") as server:
            await commander.run(ChatJob(backend, conversation, server.tools))

    `server` is the address of one (`http://...`), or the command that starts one, as a line or as
    words; a command gets a harmless environment and `env`. It has `connect_timeout` seconds to
    show its tools and `timeout` for each call. `headers` go with each request. With `approve`
    every call waits for a person's yes; a tool that its server calls read-only may start while the
    reply still streams. `prefix` goes before the tools' names.

    The connection is held by a node of its own: a child of the node that enters this, so that it
    ends with it, or one under a commander of its own. The server's process ends with it. Entering
    raises `ConfigurationError` if there is no such server; one that dies later makes calls fail,
    and nothing else.
    """

    def __init__(
        self,
        server: str | Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        connect_timeout: float = 30,
        timeout: float = 60,
        max_output: int = 100_000,
        prefix: str = "",
        approve: bool = False,
    ) -> None:
        remote = isinstance(server, str) and server.startswith(("http://", "https://"))
        self.url = str(server) if remote else None
        self.command = [] if remote else _words(server)
        self.headers = dict(headers or {})
        self.env = dict(env or {})
        self.cwd = cwd
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.max_output = max_output
        self.prefix = prefix
        self.approve = approve
        self._methods: dict[str, AnyTool] = {}
        self._connection: _Connection | None = None
        self._commander: Commander | None = None

    @property
    def methods(self) -> dict[str, AnyTool]:
        """The tools by the names that the server gives them; empty while not entered."""
        return dict(self._methods)

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            raise RuntimeError(f"{self!r} has been entered already")
        for module in ("mcp", "jsonschema"):  # the second comes with the first
            await import_extra(module, "MCP", "mcp")
        try:
            parent: Node[Any] = current_node()
        except LookupError:
            parent = self._commander = await Commander(slow_after=None).__aenter__()
        self._connection = parent.call_handler(_Connection(self).at_done(_Connection.ended))
        try:
            listed = await asyncio.shield(self._connection.listed)
        except BaseException:
            await self.aclose()
            raise
        for remote in listed:
            if remote.name in self._methods:
                await self.aclose()
                raise ConfigurationError(f"{self!r} has two tools called {remote.name!r}")
            self._methods[remote.name] = _McpTool(self, remote, self._free_name(remote.name))
        return self

    @property
    def _described(self) -> str:
        """Which server this is: its address or command, and what it calls itself."""
        client = self._connection and self._connection.client
        info = client and client.server_info
        return repr(self) + (f", which calls itself {info.name!r}" if info else "")

    def _free_name(self, remote: str) -> str:
        """Return a name that every model's wire allows and no other tool here has."""
        name = plain = NAME.sub("_", self.prefix + remote)[:60] or "tool"
        taken = {tool.name for tool in self._methods.values()}
        number = 1
        while name in taken:
            number += 1
            name = f"{plain}_{number}"
        return name

    async def aclose(self) -> None:
        """Leave the server; twice is harmless. A cancel meanwhile does not cut it short."""
        connection, self._connection = self._connection, None
        commander, self._commander = self._commander, None
        self._methods = {}
        if connection is not None:
            connection.leave.set()
            interrupted = await outlast(observe(connection))
            if commander is not None:
                await commander.__aexit__(None, None, None)
            if interrupted is not None:
                raise interrupted

    async def call(self, name: str, arguments: dict[str, Any]) -> Illustrated:
        """Call the server's tool `name`; raise `ToolError` if it does not give a result."""
        if self._connection is None or (client := self._connection.client) is None:
            raise ToolError(f"{self!r} is not connected")
        from mcp import MCPError

        try:
            given = await client.call_tool(name, arguments, read_timeout_seconds=self.timeout)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise InvalidArguments(error.message) from None
            if error.code == TIMED_OUT:
                raise ToolError(f"{name} did not finish within {self.timeout:g} s") from None
            raise ToolError(f"the MCP server failed: {error.message}") from None
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a broken answer
            raise ToolError(f"the MCP server failed: {_said(error)}") from None
        shown = _shown(given.content, given.structured_content, self.max_output)
        if given.is_error:
            raise ToolError(shown)
        return shown

    def __repr__(self) -> str:
        return f"<McpServer {self.url or shlex.join(self.command)}>"


class _Connection(Node[None], internal=True):
    """Enters the client, holds it until told to leave, and leaves it, all in its own task."""

    _n_name = "mcp_connection"

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.leave = asyncio.Event()
        self.client: mcp.Client | None = None
        self.listed: asyncio.Future[list[mcp.Tool]] = asyncio.get_running_loop().create_future()

    async def task(self) -> None:
        try:
            with tempfile.TemporaryFile() as log:
                await self._hold(log)
        except Exception as error:  # noqa: BLE001 - it is the server's; it concerns no sibling
            self._fail(_said(error))

    def ended(self) -> None:
        """Let nobody wait for a connection that is over, also if it never began."""
        self.client = None
        self._fail("the connection was cancelled")

    async def _hold(self, log: BinaryIO) -> None:
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout(self._server.connect_timeout):
                    client = await stack.enter_async_context(
                        await _client(self._server, stack, log)
                    )
                    listed = await _all_tools(client)
                self.client = client
                self.listed.set_result(listed)
                await self.leave.wait()
                self.client = None
        except TimeoutError:
            self._fail(f"it did not answer within {self._server.connect_timeout:g} s")
        except Exception as error:  # noqa: BLE001 - as above
            log.seek(0)
            self._fail(f"{_said(error)} {log.read()[-500:].decode('utf-8', 'replace')}".strip())

    def _fail(self, why: str) -> None:
        if not self.listed.done():
            self.listed.set_exception(ConfigurationError(f"{self._server!r}: {why}"))
            self.listed.exception()  # nobody may be left to hear it


async def _client(server: McpServer, stack: AsyncExitStack, log: Any) -> mcp.Client:
    import mcp
    from mcp.client.streamable_http import streamable_http_client

    if server.url is None:
        program = mcp.StdioServerParameters(
            command=server.command[0], args=server.command[1:], env=server.env, cwd=server.cwd
        )
        return mcp.Client(mcp.stdio_client(program, errlog=log))
    import httpx2

    http = httpx2.AsyncClient(headers=server.headers, timeout=httpx2.Timeout(30, read=300))
    await stack.enter_async_context(http)
    return mcp.Client(streamable_http_client(server.url, http_client=http))


async def _all_tools(client: mcp.Client) -> list[mcp.Tool]:
    found: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if (cursor := page.next_cursor) is None:
            break
    return found


class _McpTool(Tool[..., Any]):
    """One tool of a server's: the schema is the server's, and so is the work."""

    def __init__(self, server: McpServer, remote: mcp.Tool, name: str) -> None:
        async def call(**arguments: Any) -> Illustrated:
            return await server.call(remote.name, arguments)

        hints = remote.annotations
        super().__init__(
            call,
            name=name,
            description=(remote.description or remote.title or "")[:DESCRIPTION],
            read_only=bool(hints and hints.read_only_hint),
            approve=server.approve,
        )
        self.source = server._described
        given: dict[str, Any] = {"properties": {}, **remote.input_schema, "type": "object"}
        given.pop("$schema", None)
        self._schema = given

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The JSON schema that the server gave."""
        return self._schema

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments; raise `InvalidArguments` if the server's schema forbids them."""
        import jsonschema
        import referencing

        # With a registry of its own it never fetches a schema from anywhere.
        none = cast("Any", referencing).Registry()
        validator: Any = jsonschema.Draft202012Validator(self._schema, registry=none)
        try:
            faults = [fault.message for fault in validator.iter_errors(dict(arguments))]
        except Exception:  # noqa: BLE001 - the schema is broken: let the server judge
            faults = []
        if faults:
            raise InvalidArguments(f"wrong arguments: {'; '.join(faults)[:1000]}")
        return dict(arguments)


def _shown(content: Sequence[Any], structured: Any, limit: int) -> Illustrated:
    images: list[str] = []
    texts: list[str] = []
    for block in content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "image":
                images.append(image_url(block.data, block.mime_type))
                texts.append(f"[image {len(images)}]")
            case "resource":
                texts.append(getattr(block.resource, "text", f"[{block.resource.uri}]"))
            case "resource_link":
                texts.append(f"[{block.uri}]")
            case kind:
                texts.append(f"[{kind} left out]")
    if not texts and structured is not None:
        from ._tool import result_text

        texts.append(result_text(structured))
    return Illustrated(shortened("\n".join(texts) or "(no output)", limit), images)


def _words(command: str | Sequence[str]) -> list[str]:
    try:
        words = shlex.split(command) if isinstance(command, str) else list(command)
    except ValueError as error:
        raise ConfigurationError(f"MCP server {command!r}: {error}") from None
    if not words:
        raise ConfigurationError("an MCP server is an address or a command; this one is empty")
    return words


def _said(error: Exception) -> str:
    """Name the first error in a group of them."""
    if isinstance(error, ExceptionGroup):
        return _said(cast("ExceptionGroup[Exception]", error).exceptions[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
