"""Whoever is served elsewhere: a server of anabranch's, over the wire of its page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

from ...commander import ConfigurationError, Node, charge
from ...handlers import View, handler
from ...messages import ToolCall, Usage
from ...messages.arguments import read_arguments
from ...tools import Decision, Tool
from .._http import (
    SILENCE,
    BadServer,
    address_of,
    open_client,
    read_events,
    read_object,
    require_ok,
)
from .._terminal import in_line
from ._models import Choose
from ._run_partner import Questions, Refused, RunPartner
from ._telling import BadEntry, Telling

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession

__all__ = ["UrlPartner", "find_server"]

# Seconds before each try to come back to a run; what comes between two losses makes all new.
PAUSES = (0.5, 1.0, 2.0, 4.0, 8.0)
TO_STOP = 3.0  # seconds for a server to stop a run, before it is left alone
ENDS = ("completed", "failed", "cancelled")


class _Lost(Exception):
    """The connection is lost, and the run may go on; the text says how."""


async def find_server(
    url: str,
    name: str | None = None,
    choose: Choose | None = None,
    *,
    note: Callable[[str], None] = lambda _: None,
    raw: bool = False,
    pauses: Sequence[float] = PAUSES,
) -> UrlPartner:
    """Find what a server has under `name`: the only one, or what the person chooses.

    Lost connections are told to `note`, a line each. `pauses` are in seconds, before each try to
    come back. Raises `ConfigurationError` for an address that is none, a name that is not there,
    or several without a choice, and `BadServer` for what is no server of anabranch's, or lets
    nobody in.
    """
    where = address_of(url).removesuffix("/runs").removesuffix("/v1")
    names = await _names(where)
    if name is None and len(names) > 1 and choose is not None:
        name = await choose(names)
    if name is None and len(names) == 1:
        name = names[0]
    if name not in names:
        known = in_line(", ".join(names), 500) or "nothing"
        what = "choose one with --name" if name is None else f"there is no {in_line(name, 100)!r}"
        raise ConfigurationError(f"{in_line(where, 200)}: {what}; it has: {known}")
    return UrlPartner(where, name, note=note, raw=raw, pauses=pauses)


async def _names(where: str) -> list[str]:
    """Return the names of what a server has."""
    with _reaching(where):
        async with open_client() as client:
            async with client.get(f"{where}/runs", allow_redirects=False) as answer:
                if answer.status in (404, 405) and await _is_openai(client, where):
                    raise ConfigurationError(
                        f"{in_line(where, 200)} has models, and is no server of anabranch's: talk"
                        f" to it with --model {in_line(where, 200)}/v1"
                    )
                await require_ok(answer, where)
                if not isinstance((await read_object(answer)).get("runs"), list):
                    raise ValueError("no list of runs")
            async with client.get(f"{where}/v1/models", allow_redirects=False) as answer:
                await require_ok(answer, where)
                names = [each["id"] for each in (await read_object(answer))["data"]]
        if not all(isinstance(each, str) for each in names):
            raise ValueError("a name that is no text")
        return names


async def _is_openai(client: ClientSession, where: str) -> bool:
    async with client.get(f"{where}/v1/models", allow_redirects=False) as answer:
        if answer.status == 200:
            with suppress(ValueError):
                return isinstance((await read_object(answer)).get("data"), list)
        return answer.status == 401  # it has the address, and asks for a key of its own


@contextmanager
def _reaching(where: str) -> Generator[None]:
    """Turn what a connection or an answer raises into what a person reads."""
    import aiohttp

    where = in_line(where, 200)
    try:
        yield
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BadServer(f"{where} cannot be reached: {_why(error)}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        said = in_line(repr(error), 200)
        raise BadServer(f"{where} does not answer as a server of anabranch's: {said}") from None


class UrlPartner(RunPartner):
    """Answers by a run on a server, which is found again when the connection is lost."""

    def __init__(
        self,
        where: str,
        name: str,
        *,
        note: Callable[[str], None] = lambda _: None,
        raw: bool = False,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        super().__init__(name, raw=raw)
        self._where = where
        self._note = note
        self._pauses = pauses

    async def converse(self, node: Node[Any], telling: Telling) -> str:
        """Let it answer there; a cancel stops the run there too."""
        questions = Questions(node)
        async with open_client() as client:
            run = await self._begin(client)
            going_on = True
            try:
                async with aclosing(self._entries(client, run)) as entries:
                    async for kind, data in entries:
                        going_on = kind not in ENDS
                        await telling.tell(kind, data)
                        if kind == "asked":
                            number = _number(data, "question")
                            questions.put(number, self._ask(client, run, data, telling.view))
                        elif kind == "decided":
                            questions.settle(_number(data, "question"))
                        elif not going_on:
                            self._charge(node, data.get("usage"))
                            return self._finish(kind, data)
            except BadEntry as error:
                raise BadServer(f"{in_line(self._where, 200)} sends no entry: {error}") from None
            finally:
                questions.close()
                if going_on:
                    await self._stop(client, run)
        raise AssertionError("entries end with an end")

    def _charge(self, node: Node[Any], usage: object) -> None:
        """Let the node pay for what was used there."""
        if isinstance(usage, dict):
            charge(self.name, Usage.from_wire(cast("dict[str, Any]", usage)), node)

    def _finish(self, kind: str, data: Mapping[str, Any]) -> str:
        """Return why it said no more; raise if it has not come to an end by itself."""
        if kind == "completed":
            status = data.get("status")
            return "stop" if status == "ok" else in_line(str(status), 40)
        if kind == "cancelled":
            raise BadServer(f"{self.name}: the run was stopped on the server")
        said = data.get("message", "the run failed")
        raise BadServer(f"{self.name}: {in_line(str(said), 300)}")

    async def _begin(self, client: ClientSession) -> str:
        """Begin a run and return its address; one that is cancelled meanwhile is stopped."""
        asked = {"model": self.name, "input": [each.to_wire() for each in self._messages]}

        async def post() -> str:
            address = f"{self._where}/runs"
            with _reaching(self._where):
                async with client.post(address, json=asked, allow_redirects=False) as answer:
                    await self._require_taken(answer)
                    found = (await read_object(answer))["id"]
                if not (isinstance(found, str) and found.strip(".")):
                    raise ValueError("a run has no id")
            return f"{address}/{quote(found, safe='')}"

        posting = asyncio.ensure_future(post())
        try:
            return await asyncio.shield(posting)
        except asyncio.CancelledError:
            # The server may have begun it already: nobody else knows its id.
            with suppress(Exception):
                async with asyncio.timeout(TO_STOP):
                    await self._stop(client, await posting)
            raise
        finally:
            posting.cancel()

    async def _require_taken(self, answer: ClientResponse) -> None:
        try:
            await require_ok(answer, self._where)
        except BadServer as error:
            if error.status in (400, 413):
                raise Refused(str(error)) from None
            raise

    async def _stop(self, client: ClientSession, run: str) -> None:
        """Stop a run, if its server can be reached."""
        with suppress(Exception):
            async with (
                asyncio.timeout(TO_STOP),
                client.post(f"{run}/cancel", allow_redirects=False),
            ):
                pass

    async def _entries(
        self, client: ClientSession, run: str
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]]]:
        """Give all that a run says, over as many connections as it takes, with no gap."""
        after, lost = 0, 0
        while True:
            try:
                async with aclosing(self._connect(client, run, after)) as entries:
                    async for kind, data in entries:
                        if (number := _number(data, "number")) != after + 1:
                            raise BadEntry(f"entry {number} comes after entry {after}")
                        after, lost = number, 0
                        yield kind, data
                        if kind in ENDS:
                            return
            except _Lost as error:
                lost += 1
                if lost > len(self._pauses):
                    raise BadServer(
                        f"{in_line(self._where, 200)} is lost: {error}; it was tried"
                        f" {lost - 1} times, and what was said by then is kept"
                    ) from None
                self._note(f"(the connection is lost: {error}; try {lost} of {len(self._pauses)})")
            await asyncio.sleep(self._pauses[lost - 1])

    async def _connect(
        self, client: ClientSession, run: str, after: int
    ) -> AsyncGenerator[tuple[str, Mapping[str, Any]]]:
        """Give what comes over one connection; raise `_Lost` when it ends."""
        import aiohttp

        try:
            address = f"{run}/events?after={after}"
            async with client.get(address, allow_redirects=False) as answer:
                await self._require(answer)
                async with aclosing(read_events(answer.content)) as events:
                    async for event in events:
                        if event.kind == "gone":
                            raise BadServer("what was said meanwhile is no longer kept there")
                        data: Any = json.loads(event.data)
                        if not isinstance(data, dict):
                            raise ValueError("an entry that is no object")
                        yield event.kind, cast("dict[str, Any]", data)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _Lost(_why(error)) from None
        except (ValueError, RecursionError) as error:
            raise BadEntry(in_line(repr(error), 200)) from None
        raise _Lost("it ended before the run")

    async def _require(self, answer: ClientResponse) -> None:
        if answer.status in (429, 502, 503, 504):  # it begins again, or something before it does
            raise _Lost(f"status {answer.status}")
        if answer.status == 404:
            raise BadServer(f"{in_line(self._where, 200)} does not know this run any more")
        await require_ok(answer, self._where)

    @handler
    async def _ask(
        self,
        node: Node[Any],
        client: ClientSession,
        run: str,
        said: Mapping[str, Any],
        view: View,
    ) -> None:
        """Put a call to the person, and tell the server what was decided."""
        number = _number(said, "question")
        arguments, error = read_arguments(str(said.get("arguments", "")))
        name = str(said.get("name", ""))
        call = ToolCall(id=str(number), name=name, arguments=arguments, error=error)
        there = _tool_there(name, self._where, self.name, said.get("definition"))
        decision = Decision.of(await view.ask(call, there))
        approved = decision.approved
        if approved and decision.arguments not in (None, arguments):
            self._note("(a server takes a yes or a no, and no other arguments: it is told no)")
            approved = False
        answer, address = {"approved": approved}, f"{run}/answers/{number}"
        with _reaching(self._where):
            async with client.post(address, json=answer, allow_redirects=False) as told:
                if told.status == 409:
                    self._note("(this question is settled already)")
                else:
                    await require_ok(told, self._where)


class _ToolThere(Tool[..., Any]):
    """A tool that an agent on a server has; `digest` is that of its definition there."""

    digest: object = None

    @property
    def definition(self) -> Mapping[str, Any]:
        """As of any tool, and what the server says of it."""
        return {**super().definition, "there": self.digest}


def _tool_there(name: str, where: str, agent: str, digest: object) -> Tool[..., Any]:
    """Return what a person sees of a tool that an agent on a server has."""

    async def runs_there(**arguments: Any) -> None:
        raise ConfigurationError(f"{name} runs on {where}, and can be shown here alone")

    parameters = {"type": "object"}
    there = _ToolThere(runs_there, name=name, description="", approve=True, parameters=parameters)
    there.source = f"{where}, agent {agent!r}"
    there.digest = digest
    return there


def _number(data: Mapping[str, Any], name: str) -> int:
    found = data.get(name)
    if type(found) is not int or not 0 < found < 2**53:
        raise BadEntry(f"{name} is no number: {found!r:.100}")
    return found


def _why(error: BaseException) -> str:
    import aiohttp

    match error:
        case aiohttp.ClientPayloadError() | aiohttp.ServerDisconnectedError():
            return "it broke off"
        case TimeoutError():
            return f"nothing came for {SILENCE} seconds"
        case _:
            return in_line(str(error), 200) or type(error).__name__
