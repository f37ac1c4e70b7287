"""`McpServer`: the tools of any MCP server, as tools."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import urlsplit

from pydantic_core import to_json

from ..commander import Commander, ConfigurationError, Node, ToolError, parent_here
from ..commander.waiting import observe, outlast
from ..messages import Part
from ._extra import import_extra
from ._schema import InvalidArguments
from ._tool import AnyTool, Tool, result_text
from .origins import ServerOrigin
from .results import Illustrated, shorten
from .toolkits import Toolkit

if TYPE_CHECKING:
    import mcp

__all__ = ["McpServer"]

logger = logging.getLogger("anabranch.tools")

TOOLS = 1000
PAGES = 100
NAME = re.compile(r"[^A-Za-z0-9_-]")
LONGEST = 60  # characters of a name
DESCRIPTION = 4000
FAILED = "the MCP server failed"
SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*://)")
WORDS = re.compile(r"[\s=&/:,]+")
DIGIT = re.compile(r"\d")
SHORTEST_KEY = 8
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
    reply still streams, and a durable run sends a call of one that its server calls idempotent
    again where its end is not known. `prefix` goes before the tools' names.

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
        self.url, self.command = _parse_server(server)
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
        for module in ("mcp", "._mcp_wire"):
            await import_extra(module, "MCP", "mcp")
        parent = parent_here()
        if parent is None:
            # In a task, and so a context, of its own: the user's code is not in its block.
            entering = asyncio.create_task(Commander(slow_after=None).__aenter__())
            parent = self._commander = await entering
        self._connection = parent.call_handler(_Connection(self).at_done(_Connection.close))
        try:
            await self._make_tools(await asyncio.shield(self._connection.listed))
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _make_tools(self, listed: list[mcp.Tool]) -> None:
        """Make a tool of each that can be one, under a name that every model's wire allows."""
        if len(listed) > TOOLS:
            logger.warning("%r has more than %d tools; the others are left out", self, TOOLS)
        client = self._connection and self._connection.client
        info = client and client.server_info
        called = info.name if info else ""
        source = repr(self) + (f", which calls itself {called!r}" if info else "")
        program = self.command[0] if self.command else ""
        origin = ServerOrigin(
            [*self.command],
            self.url,
            self.cwd,
            shutil.which(program, path=self.env.get("PATH")),
            dict(self.env),
            dict(self.headers),
            called,
        )
        taken: set[str] = set()
        for remote in listed[:TOOLS]:
            name = plain = NAME.sub("_", self.prefix + remote.name[:LONGEST])[:LONGEST] or "tool"
            number = 1
            while name in taken:
                number += 1
                name = f"{plain}_{number}"
            if remote.name in self._methods:
                raise ConfigurationError(f"{self!r} has two tools called {remote.name[:LONGEST]!r}")
            try:
                self._methods[remote.name] = _McpTool(self, remote, name, source, origin)
                taken.add(name)
            except ValueError as error:
                logger.warning("%r: its tool %s is left out: %s", self, name, error)
            await asyncio.sleep(0)  # a thousand schemas are read in the turns of others

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
            to_json(arguments)
        except ValueError as error:  # sent as they are, they would end the connection
            raise InvalidArguments(f"the arguments cannot be written as JSON: {error}") from None
        late = ToolError(f"{name:.{LONGEST}} did not finish within {self.timeout:g} s")
        try:
            async with asyncio.timeout(self.timeout):  # the SDK's holds for each of its requests
                given = await client.call_tool(name, arguments)
        except TimeoutError:
            fault = late
        except MCPError as error:
            text = self.redact(error.message)
            if error.code == INVALID_PARAMS:
                fault = InvalidArguments(text)
            else:
                fault = late if error.code == TIMED_OUT else ToolError(f"{FAILED}: {text}")
        except Exception as error:  # noqa: BLE001 - whatever the SDK makes of a broken answer
            fault = ToolError(f"{FAILED}: {self.redact(_first_fault(error))}")
        else:
            result = _read_content(given.content, given.structured_content, self.max_output)
            if not given.is_error:
                return result
            fault = ToolError(self.redact(result))
        raise fault  # here, so that an error of the SDK's, which may hold a key, is not its context

    def redact(self, text: str) -> str:
        """Return the text of an error without that which may be a key of those given to this."""
        parts = urlsplit(self.url or "")
        secret = [*self.headers.values(), *self.env.values(), parts.password or ""]
        perhaps = [*self.command[1:], parts.path, parts.query, parts.username or ""]
        words = [word for value in secret for word in (value, *WORDS.split(value))]
        words += [word for value in perhaps for word in WORDS.split(value) if DIGIT.search(word)]
        for word in sorted(words, key=len, reverse=True):
            if len(word) >= SHORTEST_KEY:
                text = text.replace(word, "***")
        return text

    def __repr__(self) -> str:
        # A key may be in the path of an address, and in any argument of a command.
        if self.url is None:
            more = " ..." if self.command[1:] else ""
            return f"<McpServer {self.command[0]}{more}>"
        parts = urlsplit(self.url)
        return f"<McpServer {parts.scheme}://{parts.netloc.rpartition('@')[2]}>"


class _Connection(Node[None], internal=True, name="mcp_connection"):
    """Enters the client, holds it until told to leave, and leaves it, all in its own task."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self.leave = asyncio.Event()
        self._connecting: asyncio.Timeout | None = None
        self.client: mcp.Client | None = None
        self.listed: asyncio.Future[list[mcp.Tool]] = asyncio.get_running_loop().create_future()

    async def task(self) -> None:
        """Hold the connection; cancelled, leave the server before the cancel goes on.

        The SDK's client may be cancelled only once: the second cancel of its task interrupts its
        clean-up, and leaves the server's process.
        """
        holding = asyncio.Task(self._hold(), loop=asyncio.get_running_loop())
        interrupted = await outlast(holding, self._leave)
        if interrupted is not None:
            raise interrupted
        holding.result()

    def _leave(self) -> None:
        self.leave.set()
        if self._connecting is not None:
            with suppress(RuntimeError):  # it has expired, or the connection has failed
                self._connecting.reschedule(0.0)  # expire now: that is one cancel at most

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
                except Exception as error:  # noqa: BLE001 - it is the server's, no sibling's
                    log.seek(max(0, log.seek(0, os.SEEK_END) - 500))
                    end = log.read().decode("utf-8", "replace")
                    self._fail(f"{_first_fault(error)} {end}".strip())
        except Exception as error:  # noqa: BLE001 - as above
            self._fail(_first_fault(error))

    def close(self) -> None:
        """Let nobody wait for a connection that is over, also if it never began."""
        self.client = None
        self._fail("the connection was cancelled")

    def _fail(self, why: str) -> None:
        if not self.listed.done():
            self.listed.set_exception(
                ConfigurationError(f"{self._server!r}: {self._server.redact(why)}")
            )
            self.listed.exception()  # nobody may be left to hear it


async def _list_tools(client: mcp.Client) -> list[mcp.Tool]:
    async def accept(name: str, result: object) -> None:
        """Take a result as it is, in place of the SDK's check of it by the server's own schema."""

    # A schema may be made to be checked for minutes, see `RemoteSchema`.
    client.session.validate_tool_result = accept
    found: list[mcp.Tool] = []
    cursor: str | None = None
    for _ in range(PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        if (cursor := page.next_cursor) is None or len(found) > TOOLS:
            break
    return found


class _McpTool(Tool[..., Any]):
    """One tool of a server's: the schema is the server's, and so is the work."""

    def __init__(
        self, server: McpServer, remote: mcp.Tool, name: str, source: str, origin: ServerOrigin
    ) -> None:
        async def call(**arguments: Any) -> Illustrated:
            return await server.call(remote.name, arguments)

        hints = remote.annotations
        read_only = bool(hints and hints.read_only_hint)
        idempotent = "keyed" if hints and hints.idempotent_hint else None
        super().__init__(
            call,
            name=name,
            description=(remote.description or remote.title or "")[:DESCRIPTION],
            read_only=read_only,
            approve=server.approve,
            effect=None if read_only else server.effect or idempotent,
            parameters=remote.input_schema,
        )
        self.source = source
        self._remote, self._origin = remote, origin

    @property
    def origin(self) -> str:
        """The server's command or address, and the name that it gives itself."""
        return str(self._origin)

    @property
    def definition(self) -> Mapping[str, Any]:
        """The server with all that it is given, and the tool as the server describes it."""
        remote = self._remote.model_dump(
            mode="json", include={"name", "title", "description", "input_schema", "annotations"}
        )
        return {**super().definition, "remote": remote, "server": self._origin.identity}


def _read_content(content: Sequence[Any], structured: Any, limit: int) -> Illustrated:
    """Return what a call gave, in the SDK's blocks or as data, as a tool's result."""
    images: list[Part] = []
    texts: list[str] = []
    for block in content:
        match block.type:
            case "text":
                texts.append(block.text)
            case "image":
                try:
                    images.append(Part.from_url(f"data:{block.mime_type};base64,{block.data}"))
                    texts.append(f"[image {len(images)}]")
                except ConfigurationError as error:  # a server may call anything an image
                    texts.append(f"[an image left out: {error}]")
            case "resource":
                texts.append(getattr(block.resource, "text", f"[{block.resource.uri}]"))
            case "resource_link":
                texts.append(f"[{block.uri}]")
            case kind:
                texts.append(f"[{kind} left out]")
    if not texts and structured is not None:
        texts.append(result_text(structured))
    return Illustrated(shorten("\n".join(texts) or "(no output)", limit), images)


def _parse_server(server: str | Sequence[str]) -> tuple[str | None, list[str]]:
    """Return the address or the command, in words. What may hold a key is not quoted."""
    if isinstance(server, str) and (found := SCHEME.match(server)):
        try:
            parts = urlsplit(server.strip())
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return server.strip(), []
        except ValueError:
            pass
        raise ConfigurationError(
            "an MCP server is a command, or an address such as https://host/mcp;"
            f" {found[1]}... is not"
        )
    try:
        words = shlex.split(server) if isinstance(server, str) else list(server)
    except ValueError as error:
        raise ConfigurationError(f"the command of an MCP server: {error}") from None
    if not words:
        raise ConfigurationError("an MCP server is an address or a command; this one is empty")
    return None, words


def _first_fault(error: Exception) -> str:
    """Describe an error, or the first in a group of them."""
    if isinstance(error, ExceptionGroup):
        return _first_fault(cast("ExceptionGroup[Exception]", error).exceptions[0])
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
