"""`McpServer`: the tools of an MCP server, as tools."""

from __future__ import annotations

import asyncio
import logging
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import urlsplit

from pydantic_core import to_json

from ..commander import Commander, ConfigurationError, ToolError, parent_here
from ..commander.waiting import observe, wait_shielded
from ..messages import Part
from ._mcp_connection import MAX_TOOLS, Connection, describe_first
from ._schema import InvalidArguments
from ._tool import AnyTool, Tool, result_text
from .origins import ServerOrigin
from .results import Illustrated, shorten
from .toolkits import Toolkit, import_extra

if TYPE_CHECKING:
    import mcp

__all__ = ["McpServer"]

logger = logging.getLogger("anabranch.tools")

INVALID_NAME_CHARS = re.compile(r"[^A-Za-z0-9_-]")
MAX_NAME_CHARS = 60
MAX_DESCRIPTION_CHARS = 4000
SERVER_FAILED = "the MCP server failed"
URL_SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.-]*://)")
WORD_SEPARATORS = re.compile(r"[\s=&/:,]+")
DIGIT = re.compile(r"\d")
MIN_KEY_CHARS = 8
INVALID_PARAMS_CODE = -32602
TIMED_OUT_CODE = -32001


class McpServer(Toolkit):
    """The tools of an MCP server, connected for the length of an `async with` block.

        async with McpServer("uvx mcp-server-git") as server:
            await commander.run(ChatJob(backend, conversation, server.tools))

    `server` is an address (`http://...`) or the command that starts a server, as a line or as
    words. A command inherits only harmless environment variables, and gets `env`. `headers` go with
    each request. Connecting may take `connect_timeout` seconds, and each call `timeout` seconds.

    With `approve` every call waits for a person's approval. A tool that its server declares
    read-only may start while the reply still streams. A durable run repeats a call in doubt if the
    server declares the tool idempotent. `prefix` is put before the tools' names.

    A node of its own holds the connection: a child of the current node, which closes it when it
    ends, or under a separate commander. A server that was started ends with the connection.
    Entering raises `ConfigurationError` if it cannot connect. If the server dies later, calls raise
    `ToolError`.
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
        url, command = _parse_server(server)
        self.url: str | None = url
        self.command: list[str] = command
        self.headers: dict[str, str] = dict(headers or {})
        self.env: dict[str, str] = dict(env or {})
        self.cwd = cwd
        self.connect_timeout = connect_timeout
        self.timeout = timeout
        self.max_output = max_output
        self.prefix = prefix
        self.approve = approve
        self._methods: dict[str, AnyTool] = {}
        self._connection: Connection | None = None
        self._commander: Commander | None = None

    @property
    def methods(self) -> dict[str, AnyTool]:
        """The tools by the server's own names; empty while not connected."""
        return dict(self._methods)

    async def __aenter__(self) -> Self:
        if self._connection is not None:
            raise RuntimeError(f"{self!r} is already connected")
        for module in ("mcp", "._mcp_wire"):
            await import_extra(module, "MCP", "mcp")
        parent = parent_here()
        if parent is None:
            # In a separate task and context: the block's code must not run inside this commander.
            entering = asyncio.create_task(Commander(slow_after=None).__aenter__())
            parent = self._commander = await entering
        self._connection = parent.call_handler(Connection(self).at_done(Connection.close))
        try:
            await self._make_tools(await asyncio.shield(self._connection.listed))
        except BaseException:
            await self.aclose()
            raise
        return self

    async def _make_tools(self, listed: list[mcp.Tool]) -> None:
        """Make each valid tool, with a name that all wire formats allow."""
        if len(listed) > MAX_TOOLS:
            logger.warning("%r has more than %d tools; only the first are used", self, MAX_TOOLS)
        client = self._connection and self._connection.client
        info = client and client.server_info
        server_name = info.name if info else ""
        source = repr(self) + (f", which calls itself {server_name!r}" if info else "")
        program = self.command[0] if self.command else ""
        origin = ServerOrigin(
            [*self.command],
            self.url,
            self.cwd,
            shutil.which(program, path=self.env.get("PATH")),
            dict(self.env),
            dict(self.headers),
            server_name,
        )
        names: set[str] = set()
        for remote in listed[:MAX_TOOLS]:
            name = base = (
                INVALID_NAME_CHARS.sub("_", self.prefix + remote.name[:MAX_NAME_CHARS])[
                    :MAX_NAME_CHARS
                ]
                or "tool"
            )
            number = 1
            while name in names:
                number += 1
                name = f"{base}_{number}"
            if remote.name in self._methods:
                raise ConfigurationError(
                    f"{self!r} has two tools called {remote.name[:MAX_NAME_CHARS]!r}"
                )
            try:
                self._methods[remote.name] = _McpTool(self, remote, name, source, origin)
                names.add(name)
            except ValueError as error:
                logger.warning("%r: its tool %s is left out: %s", self, name, error)
            # Give other tasks a turn: checking a thousand schemas takes long.
            await asyncio.sleep(0)

    async def aclose(self) -> None:
        """Close the connection. Twice is harmless; a cancel waits until it is closed."""
        connection, self._connection = self._connection, None
        commander, self._commander = self._commander, None
        self._methods = {}
        if connection is not None:
            connection.leave.set()
            interrupted = await wait_shielded(observe(connection))
            if commander is not None:
                await commander.__aexit__(None, None, None)
            if interrupted is not None:
                raise interrupted

    async def call(self, name: str, arguments: dict[str, Any]) -> Illustrated:
        """Call the server's tool `name`; raise `ToolError` if it returns no result."""
        if self._connection is None or (client := self._connection.client) is None:
            raise ToolError(f"{self!r} is not connected")
        from mcp import MCPError

        try:
            to_json(arguments)
        except ValueError as error:  # the SDK would close the connection
            raise InvalidArguments(f"the arguments cannot be written as JSON: {error}") from None
        late = ToolError(f"{name:.{MAX_NAME_CHARS}} did not finish within {self.timeout:g} s")
        try:
            # The SDK's own timeout restarts with each of its requests.
            async with asyncio.timeout(self.timeout):
                answer = await client.call_tool(name, arguments)
        except TimeoutError:
            fault = late
        except MCPError as error:
            text = self.redact(error.message)
            if error.code == INVALID_PARAMS_CODE:
                fault = InvalidArguments(text)
            else:
                fault = (
                    late if error.code == TIMED_OUT_CODE else ToolError(f"{SERVER_FAILED}: {text}")
                )
        except Exception as error:  # noqa: BLE001 - the SDK's error for a broken answer
            fault = ToolError(f"{SERVER_FAILED}: {self.redact(describe_first(error))}")
        else:
            result = _read_content(answer.content, answer.structured_content, self.max_output)
            if not answer.is_error:
                return result
            fault = ToolError(self.redact(result))
        # Outside of the handlers: an error of the SDK, which may hold a key, must not be the
        # context.
        raise fault

    def redact(self, text: str) -> str:
        """Return the text with `***` for parts of this server's settings that may be keys."""
        parts = urlsplit(self.url or "")
        secret = [*self.headers.values(), *self.env.values(), parts.password or ""]
        perhaps = [*self.command[1:], parts.path, parts.query, parts.username or ""]
        words = [word for value in secret for word in (value, *WORD_SEPARATORS.split(value))]
        words += [
            word for value in perhaps for word in WORD_SEPARATORS.split(value) if DIGIT.search(word)
        ]
        for word in sorted(words, key=len, reverse=True):
            if len(word) >= MIN_KEY_CHARS:
                text = text.replace(word, "***")
        return text

    def __repr__(self) -> str:
        # The path of an address and any argument of a command may be a key.
        if self.url is None:
            more = " ..." if self.command[1:] else ""
            return f"<McpServer {self.command[0]}{more}>"
        parts = urlsplit(self.url)
        return f"<McpServer {parts.scheme}://{parts.netloc.rpartition('@')[2]}>"


class _McpTool(Tool[..., Any]):
    """One tool of a server, with the server's schema."""

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
            description=(remote.description or remote.title or "")[:MAX_DESCRIPTION_CHARS],
            read_only=read_only,
            approve=server.approve,
            effect=None if read_only else server.effect or idempotent,
            parameters=remote.input_schema,
        )
        self.source = source
        self._remote, self._origin = remote, origin

    @property
    def origin(self) -> str:
        """The server's command or address, and the name that it calls itself."""
        return str(self._origin)

    @property
    def definition(self) -> Mapping[str, Any]:
        """The tool as the server describes it, and the server with its settings."""
        remote = self._remote.model_dump(
            mode="json", include={"name", "title", "description", "input_schema", "annotations"}
        )
        return {**super().definition, "remote": remote, "server": self._origin.identity}


def _read_content(content: Sequence[Any], structured: Any, limit: int) -> Illustrated:
    """Return the result of a call from its content blocks, or else from its structured data."""
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
                except ConfigurationError as error:  # the server chooses the bytes
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
    """Return the address or the words of the command. Errors quote nothing that may be a key."""
    if isinstance(server, str) and (match := URL_SCHEME.match(server)):
        try:
            parts = urlsplit(server.strip())
            if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
                return server.strip(), []
        except ValueError:
            pass
        raise ConfigurationError(
            "an MCP server must be a command or an address such as https://host/mcp,"
            f" not {match[1]}..."
        )
    try:
        words = shlex.split(server) if isinstance(server, str) else list(server)
    except ValueError as error:
        raise ConfigurationError(f"cannot read the command of an MCP server: {error}") from None
    if not words:
        raise ConfigurationError("an MCP server must be an address or a command; it is empty")
    return None, words
