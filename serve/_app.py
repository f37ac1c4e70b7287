"""`serve`: what is served, as an ASGI application."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..commander import Commander, NodeLimits
from ..commander.errors import ConfigurationError, MissingExtra
from ..store import Journal, JournalError, RunBusy
from ._auth import Auth as Auth
from ._auth import Authenticator
from ._durable_run import PREFIX
from ._failure import masked_logs
from ._run import OnLeave
from ._runs import NotBegun, Runs
from ._served import Served, serve_thing

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["Auth", "Server", "serve"]

DEFAULT_LEAVE: dict[str, OnLeave] = {"openai": "cancel", "*": "detach"}
WIRES = ("openai",)


def serve(
    *things: Any,
    wires: Iterable[str] = WIRES,
    on_leave: Mapping[str, OnLeave] | None = None,
    keep: float = 300.0,
    auth: Auth | None = None,
    max_runs: int = 200,
    limits: NodeLimits | None = None,
    page: bool = True,
    max_body: int = 10_000_000,
    max_messages: int = 2_048,
    journal: str | os.PathLike[str] | Journal | None = None,
) -> Server:
    """Make an ASGI application that serves `things` to clients of existing protocols.

        app = serve(agent)
        app.mount_into(fastapi_app)        # or: uvicorn module:app, or anabranch serve module:agent

    Each thing is an `Agent`, a `ConversableAgent`, a group, a `Backend`, a class of jobs, a
    handler, or a function that makes one. Clients use its name as a model, or the name in a
    mapping: `serve({"writer": agent})`. `wires` are the protocols. `on_leave` is, by wire, what
    happens to a run when its client leaves: "cancel" stops it, including the connection to the
    model, and "detach" lets it continue for clients that reconnect; "*" is the default. A run that
    has ended is stored for `keep` seconds. `auth` finds the user of a token; without it the server
    binds to this machine only. Beyond `max_runs` at once a client is asked to retry later.
    `limits` apply to all runs together. `page` serves a chat page. `max_body` is the largest
    request, in bytes, and `max_messages` the most messages in one; larger ones get 413. With
    `journal`, a `Journal` or the name of a file, runs of agents and backends that continue without
    readers outlive the process: a server that starts again resumes them.

    Raises `ConfigurationError` for a thing that cannot be served, and `MissingExtra` without
    starlette.
    """
    if find_spec("starlette") is None:
        raise MissingExtra("serve", "serve")
    if not things:
        raise ConfigurationError("serve(...) needs something to serve, such as an Agent")
    served: dict[str, Served] = {}
    named = [(None, each) for each in things if not isinstance(each, Mapping)]
    for each in things:
        named += [*each.items()] if isinstance(each, Mapping) else []
    for name, thing in named:
        each = serve_thing(thing, name)
        if each.agent is not None and each.agent.journal is not None:
            raise ConfigurationError(
                f"{each.agent.name} stores its sessions in a journal, and cannot be served: a"
                " client's messages expire with its run"
            )
        if served.setdefault(each.name, each) is not each:
            raise ConfigurationError(f"two things are called {each.name!r}: name one otherwise")
    known = [*wires]
    if unknown := sorted(set(known) - set(WIRES)):
        raise ConfigurationError(f"there is no wire {unknown[0]!r}; there are: {', '.join(WIRES)}")
    leave: dict[str, OnLeave] = {**DEFAULT_LEAVE, **(on_leave or {})}
    if max_runs < 1:
        raise ConfigurationError(f"max_runs must be at least 1, not {max_runs!r}")
    if max_messages < 1:
        raise ConfigurationError(f"max_messages must be at least 1, not {max_messages!r}")
    bounds = (max_body, max_messages)
    return Server(served, known, leave, keep, auth, max_runs, limits, page, *bounds, journal)


class Server:
    """An ASGI application; `serve` makes it.

    It starts and ends with its lifespan, or with that of the application it is mounted into. The
    end cancels the runs that have not ended.
    """

    def __init__(
        self,
        served: dict[str, Served],
        wires: list[str],
        on_leave: Mapping[str, OnLeave],
        keep: float,
        auth: Auth | None,
        max_runs: int,
        limits: NodeLimits | None,
        page: bool,
        max_body: int,
        max_messages: int,
        journal: str | os.PathLike[str] | Journal | None,
    ) -> None:
        self.served = served
        self.wires = wires
        self.max_body = max_body
        self.max_messages = max_messages
        self._on_leave = on_leave
        self._keep = keep
        self._auth = None if auth is None else Authenticator(auth)
        self._max_runs = max_runs
        self._limits = limits
        self.has_page = page
        if journal is not None and not isinstance(journal, Journal):
            journal = Journal(journal)
        self.journal = journal
        self._runs: Runs | None = None
        self._app = self._build()

    @property
    def has_auth(self) -> bool:
        """Whether it has `auth`."""
        return self._auth is not None

    @property
    def runs(self) -> Runs:
        """All runs."""
        if self._runs is None:
            raise NotBegun(
                "this server has not begun, or has ended: run it with its lifespan, or use"
                " mount_into(app)"
            )
        return self._runs

    def on_leave(self, wire: str) -> OnLeave:
        """Return what happens to a run when its client leaves."""
        return self._on_leave.get(wire, self._on_leave["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from ._http import SEND

        if scope["type"] == "http" and scope["path"].endswith("/"):
            # Some applications add it to the paths of mounted ones.
            path = scope["path"].rstrip("/")
            if path != scope.get("root_path", "").rstrip("/"):
                scope = {**scope, "path": path}
        await self._app({**scope, SEND: send}, receive, send)

    def mount_into(self, app: Any, path: str = "/") -> None:
        """Mount it into a Starlette or FastAPI application at `path`, and start and end with that.

        Call it before the application starts. Routes that the application had before take
        precedence.
        """
        outer = app.router.lifespan_context

        @asynccontextmanager
        async def lifespan(target: Any) -> AsyncGenerator[Any]:
            async with self.running(), outer(target) as state:
                yield state

        app.router.lifespan_context = lifespan
        app.mount(path, self)

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[None]:
        """Take requests inside this block.

        Raises `JournalError` if the journal cannot be opened, or another server uses it.
        """
        if self._runs is not None:
            raise RuntimeError("this server runs already: it starts once, in one application")
        async with AsyncExitStack() as stack:
            stack.enter_context(masked_logs())
            journal = self.journal
            if journal is not None and not journal.is_open:
                await stack.enter_async_context(journal)
            if journal is not None:
                stack.enter_context(_only_server(journal))
            commander = Commander(limits=self._limits)
            runs = Runs(commander, most=self._max_runs, keep=self._keep, journal=journal)
            stack.callback(runs.close)
            stack.push_async_callback(runs.flush)
            await stack.enter_async_context(commander)
            await runs.find_persisted()
            self._runs = runs
            tasks = [asyncio.create_task(each) for each in (runs.resume(self.served), runs.tend())]
            try:
                yield
            finally:
                for each in tasks:
                    each.cancel()
                runs.suspend()
                commander.exit()
                self._runs = None

    def run(
        self,
        host: str = "127.0.0.1",
        port: int = 8000,
        *,
        drain: float = 10.0,
        on_start: Callable[[str], None] | None = None,
    ) -> None:
        """Serve until SIGINT or SIGTERM, in a program without a loop, on uvicorn.

        At the first signal it takes no new runs, lets the others end for `drain` seconds, and then
        cancels the rest, whose streams end with an error of their wire. At the second signal it
        cancels at once; the third kills the process. `on_start` gets the address,
        `http://HOST:PORT`, when clients can connect; port 0 is any free one. Raises
        `ConfigurationError` for an address that other machines can reach without `auth`, `OSError`
        for one that is not available, `JournalError` for a journal that cannot be used, and
        `MissingExtra` without uvicorn.
        """
        if find_spec("uvicorn") is None:
            raise MissingExtra("a server by itself", "serve")
        from ._uvicorn import run_server

        run_server(self, host, port, drain, on_start)

    # --- for the wires

    async def user_of(self, request: Request) -> str | None:
        """Return the user of a request, "" without `auth`; None for an unknown one.

        Raises `AuthFailed` if `auth` fails.
        """
        if self._auth is None:
            return ""
        return await self._auth.user_of(request.headers.get("authorization", ""))

    def _build(self) -> Starlette:
        from ._http import application
        from ._openai_http import routes
        from ._own_http import routes as own_routes

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[None]:
            async with self.running():
                yield

        openai = routes(self) if "openai" in self.wires else []
        return application([*openai, *own_routes(self)], lifespan)


@contextmanager
def _only_server(journal: Journal) -> Generator[None]:
    """Reserve a journal for one server; raise `JournalError` if another one has it.

    With two, a client of one could ask the other, which would not know its run.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(journal.reserve(PREFIX))
        except RunBusy as busy:
            who = "another process" if busy.pid is None else f"process {busy.pid}"
            why = f"is in use by the server of {who}"
            remedy = "start one process (--workers 1), or give each server a file of its own"
            raise JournalError(journal.name, why, remedy) from None
        yield
