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
    """Make an ASGI application in which clients talk to `things` by protocols that exist.

        app = serve(agent)
        app.mount_into(fastapi_app)        # or: uvicorn module:app, or anabranch serve module:agent

    Each thing is an `Agent`, a `ConversableAgent`, a group, a `Backend`, a class of jobs, a
    handler, or a function that makes one; clients name it as a model, by its own name or by that
    which a mapping gives it: `serve({"writer": agent})`. `wires` are the protocols.
    Where a client leaves a run, `on_leave` says by wire what becomes of it: "cancel" stops it,
    down to the model's connection, "detach" lets it go on for those who come back; "*" is for all
    others. A run that has ended is kept for `keep` seconds. `auth` says who may ask; without it
    anybody may, and the server binds to this machine alone. Over `max_runs` at once a client is
    told to come back later. `limits` hold for all runs together. `page` serves a page to talk on.
    `max_body` is the largest request, in bytes, and `max_messages` the most messages in one; beyond
    them the answer is 413. With `journal`, the name of a file or a `Journal`, runs of agents and
    backends that go on without their readers outlive the process: a server that begins again takes
    them up.

    Raises `ConfigurationError` for what cannot be served, and `MissingExtra` without starlette.
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
                f"{each.agent.name} keeps its sessions in a journal, and cannot be served: what a"
                " client says is forgotten with its run"
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

    It begins with its lifespan, or with that of the application it is mounted into, and ends with
    it: runs that still go on are cancelled then.
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
        """Whether it asks who somebody is."""
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
        """Return what becomes of a run that its client leaves."""
        return self._on_leave.get(wire, self._on_leave["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from ._http import SEND

        if scope["type"] == "http" and scope["path"].endswith("/"):
            # It says nothing, and some applications add it to what they hand on.
            path = scope["path"].rstrip("/")
            if path != scope.get("root_path", "").rstrip("/"):
                scope = {**scope, "path": path}
        await self._app({**scope, SEND: send}, receive, send)

    def mount_into(self, app: Any, path: str = "/") -> None:
        """Mount it into a Starlette or FastAPI application at `path`, and begin and end with that.

        Call it before the application begins. What the application itself has at the same address
        and was added before wins.
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

        Raises `JournalError` for a journal that cannot be opened, or that another server has.
        """
        if self._runs is not None:
            raise RuntimeError("this server runs already: it begins once, in one application")
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

        At the first signal it takes nothing new, lets what runs end for `drain` seconds, and then
        cancels the rest, whose streams end with an error of their wire; at the second it cancels
        at once, and at the third the process is killed. `on_start` is told the address,
        `http://HOST:PORT`, once clients can connect; port 0 is any that is free. Raises
        `ConfigurationError` for an address that other machines reach without `auth`, `OSError` for
        one that cannot be had, `JournalError` for such a journal, and `MissingExtra` without
        uvicorn.
        """
        if find_spec("uvicorn") is None:
            raise MissingExtra("a server by itself", "serve")
        from ._uvicorn import run_server

        run_server(self, host, port, drain, on_start)

    # --- what the wires use

    async def user_of(self, request: Request) -> str | None:
        """Return who asks, "" where anybody may; None for nobody that is known.

        Raises `AuthFailed` if `auth` cannot tell.
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
    """Be the only server of a journal; raise `JournalError` if there is another one.

    A client of one would be told by the other that there is no such run.
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
