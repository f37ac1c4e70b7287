"""Runs on an Anabranch server, through the HTTP API of its chat page: `--url`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from ...commander import ConfigurationError, Node, charge
from ...messages import Message, ToolCall, Usage
from ...messages.arguments import read_arguments
from ...tools import Decision, Tool
from .._http import (
    SILENCE_SECONDS,
    BadServer,
    address_of,
    open_client,
    read_events,
    read_object,
    require_ok,
)
from .._output import one_line
from ._log_renderer import BadEntry
from ._partner import MessageRefused, PendingCall, RunEvent, RunPartner, RunSource
from ._session_manager import ChooseName

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["find_server"]

# Before each attempt to reconnect. Each received entry restarts the series.
RECONNECT_PAUSES_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0)
STOP_SECONDS = 3.0  # for the request that stops a run; then it may continue on the server
END_KINDS = ("completed", "failed", "cancelled")


class _Lost(Exception):
    """A connection is lost, but the run may continue on the server."""


async def find_server(
    url: str,
    name: str | None = None,
    choose: ChooseName | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
    raw: bool = False,
    pauses: Sequence[float] = RECONNECT_PAUSES_SECONDS,
) -> RunPartner:
    """Return a partner for the name that a server serves.

    The partner sends the person's messages to the server. Without `name`, it is the server's only
    name, or the one that `choose` returns. `note` receives a line for each lost connection. `raw`
    shows a JSON result unchanged. `pauses` are the seconds before each attempt to reconnect.
    Raises `ConfigurationError` for an invalid address, an unknown name, or several names without a
    choice, and `BadServer` if it is another kind of server or refuses access.
    """
    where = address_of(url).removesuffix("/runs").removesuffix("/v1")
    names = await _names(where)
    if name is None and len(names) > 1 and choose is not None:
        name = await choose(names)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        known = one_line(", ".join(names), 500) or "nothing"
        problem = "choose one with --name" if name is None else f"unknown {one_line(name, 100)!r}"
        raise ConfigurationError(f"{one_line(where, 200)}: {problem}. It serves: {known}")
    return RunPartner(_ServerRuns(where, name, note, pauses), raw=raw)


async def _names(where: str) -> list[str]:
    """Return the names that a server serves."""
    with _reaching(where):
        async with open_client() as client:
            async with client.get(f"{where}/runs", allow_redirects=False) as answer:
                if answer.status in (404, 405) and await _is_openai(client, where):
                    raise ConfigurationError(
                        f"{one_line(where, 200)} serves models, but is not an Anabranch server. Use"
                        f" --model {one_line(where, 200)}/v1"
                    )
                await require_ok(answer, where)
                if not isinstance((await read_object(answer)).get("runs"), list):
                    raise ValueError("it sent no list of runs")
            async with client.get(f"{where}/v1/models", allow_redirects=False) as answer:
                await require_ok(answer, where)
                names = [each["id"] for each in (await read_object(answer))["data"]]
        if not all(isinstance(each, str) for each in names):
            raise ValueError("a name is not text")
        return names


async def _is_openai(client: ClientSession, where: str) -> bool:
    async with client.get(f"{where}/v1/models", allow_redirects=False) as answer:
        if answer.status == 200:
            with suppress(ValueError):
                return isinstance((await read_object(answer)).get("data"), list)
        return answer.status == 401  # it has this path, and requires its own key


@contextmanager
def _reaching(where: str) -> Generator[None]:
    """Turn connection errors and invalid responses into `BadServer`."""
    import aiohttp

    where = one_line(where, 200)
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BadServer(f"cannot reach {where}: {_why(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        why = one_line(repr(error), 200)
        raise BadServer(f"{where} does not respond like an Anabranch server: {why}") from None


class _ServerRuns(RunSource):
    """Runs on a server; a lost connection to a run is opened again."""

    def __init__(
        self, address: str, name: str, note: Callable[[str], None], pauses: Sequence[float]
    ) -> None:
        self.name = name
        self.place = one_line(address, 200)
        self._address = address
        self._note = note
        self._pauses = pauses

    async def run(self, node: Node[Any], messages: Sequence[Message]) -> AsyncGenerator[RunEvent]:
        """Run on the server; closing the generator or cancelling stops the run there too."""
        async with open_client() as client:
            run = await self._begin(client, messages)
            is_running = True
            try:
                async with aclosing(self._entries(client, run)) as entries:
                    async for kind, data in entries:
                        is_running = kind not in END_KINDS
                        if kind in ("asked", "decided"):
                            _number(data, "question")
                        pending = self._pending(client, run, data) if kind == "asked" else None
                        yield RunEvent(kind, data, pending)
                        if not is_running and isinstance(usage := data.get("usage"), dict):
                            used = Usage.from_wire(cast("dict[str, Any]", usage))
                            charge(self.name, used, node)
                        if kind == "cancelled":
                            raise BadServer(f"{self.name}: the run was stopped on the server")
                        if kind == "failed":
                            why = one_line(str(data.get("message", "the run failed")), 300)
                            raise BadServer(f"{self.name}: {why}")
            finally:
                if is_running:
                    await self._stop(client, run)

    async def _begin(self, client: ClientSession, messages: Sequence[Message]) -> str:
        """Start a run and return its address. A cancel stops the run on the server too."""
        body = {"model": self.name, "input": [each.to_wire() for each in messages]}

        async def post() -> str:
            address = f"{self._address}/runs"
            with _reaching(self._address):
                async with client.post(address, json=body, allow_redirects=False) as answer:
                    await self._require_taken(answer)
                    found = (await read_object(answer))["id"]
                if not (isinstance(found, str) and found.strip(".")):
                    raise ValueError("a run has no id")
            return f"{address}/{quote(found, safe='')}"

        posting = asyncio.ensure_future(post())
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError:
            # The server may have started the run, and only this process knows its id.
            with suppress(Exception):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._stop(client, await posting)
            raise
        finally:
            posting.cancel()

    async def _require_taken(self, answer: ClientResponse) -> None:
        """Raise `MessageRefused` for a refused message, `BadServer` for other errors."""
        try:
            await require_ok(answer, self._address)
        except BadServer as error:
            if error.status in (400, 413):
                raise MessageRefused(str(error)) from None
            raise

    async def _stop(self, client: ClientSession, run: str) -> None:
        """Stop a run if the server can be reached."""
        with suppress(Exception):
            async with (
                asyncio.timeout(STOP_SECONDS),
                client.post(f"{run}/cancel", allow_redirects=False),
            ):
                pass

    async def _entries(
        self, client: ClientSession, run: str
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]]]:
        """Yield all entries of a run in order; open another connection after each lost one."""
        after, lost = 0, 0
        while True:
            try:
                async with aclosing(self._connect(client, run, after)) as entries:
                    async for kind, data in entries:
                        if (number := _number(data, "number")) != after + 1:
                            raise BadEntry(f"entry {number} comes after entry {after}")
                        after, lost = number, 0
                        yield kind, data
                        if kind in END_KINDS:
                            return
            except _Lost as error:
                lost += 1
                if lost > len(self._pauses):
                    raise BadServer(
                        f"lost the connection to {self.place}: {error}. It failed {lost - 1} times"
                        " more; the text so far is saved"
                    ) from None
                self._note(f"(connection lost: {error}; attempt {lost} of {len(self._pauses)})")
            await asyncio.sleep(self._pauses[lost - 1])

    async def _connect(
        self, client: ClientSession, run: str, after: int
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]]]:
        """Yield the entries from one connection; raise `_Lost` when it ends."""
        import aiohttp

        try:
            address = f"{run}/events?after={after}"
            async with client.get(address, allow_redirects=False) as answer:
                await self._require(answer)
                async with aclosing(read_events(answer.content)) as events:
                    async for event in events:
                        if event.kind == "gone":
                            raise BadServer("the server has already discarded a part of the answer")
                        data: Any = json.loads(event.data)
                        if not isinstance(data, dict):
                            raise ValueError("an entry is not a JSON object")
                        yield event.kind, cast("dict[str, Any]", data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Lost(_why(error)) from None
        except (ValueError, RecursionError) as error:
            raise BadEntry(one_line(repr(error), 200)) from None
        raise _Lost("the server closed it before the run ended")

    async def _require(self, answer: ClientResponse) -> None:
        if answer.status in (429, 502, 503, 504):  # the server or its proxy is restarting
            raise _Lost(f"HTTP status {answer.status}")
        if answer.status == 404:
            raise BadServer(f"{self.place} no longer has this run")
        await require_ok(answer, self._address)

    def _pending(self, client: ClientSession, run: str, data: Mapping[str, Any]) -> PendingCall:
        number = _number(data, "question")
        arguments, error = read_arguments(str(data.get("arguments", "")))
        name = str(data.get("name", ""))
        call = ToolCall(id=str(number), name=name, arguments=arguments, error=error)

        async def decide(decision: Decision) -> None:
            approved = decision.approved
            if approved and decision.arguments not in (None, arguments):
                self._note("(the call is denied: a server does not accept edited arguments)")
                approved = False
            answer = {"approved": approved}
            with _reaching(self._address):
                async with client.post(
                    f"{run}/answers/{number}", json=answer, allow_redirects=False
                ) as reply:
                    if reply.status == 409:
                        self._note("(this question was already answered)")
                    else:
                        await require_ok(reply, self._address)

        tool = _RemoteTool(name, f"{self._address}, agent {self.name!r}", data.get("definition"))
        return PendingCall(number, call, tool, decide)


class _RemoteTool(Tool[..., Any]):
    """A tool of an agent on a server. `digest` identifies its definition there."""

    def __init__(self, name: str, source: str, digest: object) -> None:
        async def run(**arguments: Any) -> None:
            raise ConfigurationError(f"{name} can run only on {source}")

        super().__init__(
            run, name=name, description="", approve=True, parameters={"type": "object"}
        )
        self.source = source
        self.digest = digest

    @property
    def definition(self) -> Mapping[str, Any]:
        """The tool's definition, with its digest on the server."""
        return {**super().definition, "there": self.digest}


def _number(data: Mapping[str, Any], name: str) -> int:
    found = data.get(name)
    if type(found) is not int or not 0 < found < 2**53:
        raise BadEntry(f"{name} is not a number: {found!r:.100}")
    return found


def _why(error: BaseException) -> str:
    import aiohttp

    match error:
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "the server closed the connection"
        case TimeoutError():
            return f"no data for {SILENCE_SECONDS} seconds"
        case _:
            return one_line(str(error), 200) or type(error).__name__
