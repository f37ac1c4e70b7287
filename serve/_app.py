"""`serve`: an ASGI application for agents, models, jobs and handlers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..commander import Commander, NodeLimits
from ..commander.errors import ConfigurationError, MissingExtra
from ..commander.kinds import FUNCTION, require
from ..store import Journal, JournalError, RunBusy
from ._auth import Auth as Auth
from ._auth import Authenticator
from ._durable_run import RUN_ID_PREFIX
from ._failure import masked_logs
from ._run import ContextOf, OnLeave
from ._runs import NotRunning, Runs
from ._served_model import ServedModel, served_model_of

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

__all__ = ["Auth", "Server", "serve"]

DEFAULT_ON_LEAVE: dict[str, OnLeave] = {"openai": "cancel", "*": "detach"}
ALL_WIRES = ("openai",)


def serve(
    *things: Any,
    wires: Iterable[str] = ALL_WIRES,
    on_leave: Mapping[str, OnLeave] | None = None,
    keep: float = 300.0,
    auth: Auth | None = None,
    max_runs: int = 200,
    limits: NodeLimits | None = None,
    context: ContextOf | None = None,
    page: bool = True,
    max_body: int = 10_000_000,
    max_messages: int = 2_048,
    journal: str | os.PathLike[str] | Journal | None = None,
) -> Server:
    """Make an ASGI application that serves `things` to OpenAI's clients, and on a chat page.

        app = serve(agent)
        app.mount_into(fastapi_app)        # or: uvicorn module:app, or anabranch serve module:agent

    Each thing is an `Agent`, a `ConversableAgent`, a group, a `Backend`, a class of jobs, a
    handler, or a function that makes one. Clients use its name as the name of a model, or the name
    in a mapping: `serve({"writer": agent})`.

    - `wires`: the protocols.
    - `on_leave`: by wire, the action when a run's client leaves. "cancel" stops the run, including
      the connection to the model; "detach" lets it continue for clients that reconnect. "*" is the
      default.
    - `keep`: seconds until an ended run expires.
    - `auth`: the tokens. Without it the server answers only this machine.
    - `max_runs`: more runs at once get 429 with a time to retry.
    - `limits`: bounds on all runs together.
    - `context`: a function, plain or async, from the name of the user to the context of the user's
      runs, for tools with a `Context`. The name is that of `auth`, and "" without it.
    - `page`: whether there is a chat page.
    - `max_body`, `max_messages`: the largest request in bytes and in messages; others get 413.
    - `journal`: a `Journal` or the name of a file. A server that starts again resumes its runs:
      those of agents and backends that continue when their clients leave.

    Raises `ConfigurationError` for a thing that cannot be served, and `MissingExtra` without
    starlette.
    """
    if find_spec("starlette") is None:
        raise MissingExtra("serve", "serve")
    if not things:
        raise ConfigurationError("serve(...) must get something to serve, such as an Agent")
    served: dict[str, ServedModel] = {}
    named = [(None, each) for each in things if not isinstance(each, Mapping)]
    for each in things:
        named += [*each.items()] if isinstance(each, Mapping) else []
    for name, thing in named:
        model = served_model_of(thing, name)
        if model.agent is not None and model.agent.journal is not None:
            raise ConfigurationError(
                f"{model.agent.name} cannot be served: it stores its sessions in a journal, but a"
                " client's messages expire with its run"
            )
        if served.setdefault(model.name, model) is not model:
            raise ConfigurationError(f"two models are called {model.name!r}: rename one of them")
    chosen_wires = [*wires]
    if unknown := sorted(set(chosen_wires) - set(ALL_WIRES)):
        raise ConfigurationError(
            f"there is no wire {unknown[0]!r}; there are: {', '.join(ALL_WIRES)}"
        )
    leave: dict[str, OnLeave] = {**DEFAULT_ON_LEAVE, **(on_leave or {})}
    if max_runs < 1:
        raise ConfigurationError(f"max_runs must be at least 1, not {max_runs!r}")
    require(context, FUNCTION | None, "context must be a function from a user's name, or None")
    if max_messages < 1:
        raise ConfigurationError(f"max_messages must be at least 1, not {max_messages!r}")
    bounds = (max_body, max_messages)
    more = (context, page, *bounds, journal)
    return Server(served, chosen_wires, leave, keep, auth, max_runs, limits, *more)


class Server:
    """An ASGI application; `serve` makes it.

    It starts and ends with its lifespan, or with the application that it is mounted into. Its end
    cancels the open runs; those in a journal continue when it starts again.
    """

    def __init__(
        self,
        served: dict[str, ServedModel],
        wires: list[str],
        on_leave: Mapping[str, OnLeave],
        keep: float,
        auth: Auth | None,
        max_runs: int,
        limits: NodeLimits | None,
        context: ContextOf | None,
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
        self._context = context
        self.has_page = page
        if journal is not None and not isinstance(journal, Journal):
            journal = Journal(journal)
        self.journal = journal
        self._runs: Runs | None = None
        self._app = self._build()

    @property
    def has_auth(self) -> bool:
        """Whether clients need a token."""
        return self._auth is not None

    @property
    def runs(self) -> Runs:
        """All runs; raises `NotRunning` before the server's start and after its end."""
        if self._runs is None:
            raise NotRunning(
                "this server is not running: start it with its lifespan, or use mount_into(app)"
            )
        return self._runs

    def on_leave(self, wire: str) -> OnLeave:
        """Return the action when the client of a run leaves."""
        return self._on_leave.get(wire, self._on_leave["*"])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        from ._http import SEND_KEY

        if scope["type"] == "http" and scope["path"].endswith("/"):
            # Some applications add a slash to the paths of mounted ones.
            path = scope["path"].rstrip("/")
            if path != scope.get("root_path", "").rstrip("/"):
                scope = {**scope, "path": path}
        await self._app({**scope, SEND_KEY: send}, receive, send)

    def mount_into(self, app: Any, path: str = "/") -> None:
        """Mount it into a Starlette or FastAPI application; it starts and ends with that.

        Call it before the application starts. Routes that the application has already come first.

            app = FastAPI()
            serve(agent).mount_into(app, "/ai")
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
        """Answer requests inside this block.

        Raises `JournalError` if the journal cannot be opened, or if another server uses it.
        """
        if self._runs is not None:
            raise RuntimeError("this server is running already: mount it into one application only")
        async with AsyncExitStack() as stack:
            stack.enter_context(masked_logs())
            journal = self.journal
            if journal is not None and not journal.is_open:
                await stack.enter_async_context(journal)
            if journal is not None:
                stack.enter_context(_only_server(journal))
            commander = Commander(limits=self._limits)
            more: Any = {"keep": self._keep, "journal": journal, "context": self._context}
            runs = Runs(commander, max_runs=self._max_runs, **more)
            # At the end, in this order: the commander's end cancels the runs, then their last
            # entries are written, then the journal closes.
            stack.callback(runs.close)
            stack.push_async_callback(runs.flush)
            await stack.enter_async_context(commander)
            await runs.find_persisted()
            self._runs = runs
            work = (runs.resume(self.served), runs.maintain())
            tasks = [asyncio.create_task(each) for each in work]
            try:
                yield
            finally:
                for each in tasks:
                    each.cancel()
                runs.suspend()  # before the cancel, so that it is not the end of persisted runs
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
        """Serve on uvicorn until SIGINT or SIGTERM, in a program without a running event loop.

            serve(agent).run(port=8000)

        The first signal refuses new runs, waits `drain` seconds for the others, and cancels the
        rest, whose streams end with an error of their wire. The second signal cancels at once; the
        third kills the process. `on_start` gets the address, `http://HOST:PORT`, when clients can
        connect. Port 0 means any free port. Raises `ConfigurationError` for an address that other
        machines can reach without `auth`, `OSError` for an address that is not available,
        `JournalError` for a journal that cannot be used, and `MissingExtra` without uvicorn.
        """
        if find_spec("uvicorn") is None:
            raise MissingExtra("Server.run", "serve")
        from ._uvicorn import run_server

        run_server(self, host, port, drain, on_start)

    # --- for the wires

    async def user_of(self, request: Request) -> str | None:
        """Return the user of a request, "" without `auth`; None for an unknown token.

        Raises `AuthFailed` if the function `auth` fails.
        """
        if self._auth is None:
            return ""
        return await self._auth.user_of(request.headers.get("authorization", ""))

    def _build(self) -> Starlette:
        from ._http import application
        from ._openai_http import routes
        from ._runs_http import routes as runs_routes

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncGenerator[None]:
            async with self.running():
                yield

        openai = routes(self) if "openai" in self.wires else []
        return application([*openai, *runs_routes(self)], lifespan)


@contextmanager
def _only_server(journal: Journal) -> Generator[None]:
    """Reserve a journal for one server; raise `JournalError` if another server uses it.

    With two servers a client could reach the one that does not know its run.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(journal.reserve(RUN_ID_PREFIX))
        except RunBusy as busy:
            process = "another process" if busy.pid is None else f"process {busy.pid}"
            why = f"is in use by the server of {process}"
            remedy = "start one process (--workers 1), or give each server another file"
            raise JournalError(journal.name, why, remedy) from None
        yield
