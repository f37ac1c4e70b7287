"""The one interface behind which every model stands."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, SupportsIndex, cast

from ..commander.durable import scope_here
from ..commander.errors import ConfigurationError
from ..commander.kinds import passes_with
from ..commander.thread import at_cancel
from ..dispatch import Format
from ..dispatch.assembly import assemble
from ..messages import Delta, Message, Request, require_request
from ..messages.options import check_options
from ._recorded import keep_replies, key_of
from ._takes import fit_parts
from .limits import Limits

__all__ = ["Backend", "Recipe"]


@dataclass(frozen=True, slots=True, repr=False)
class Recipe:
    """How to make a backend again in another process, and whether a key would have to travel."""

    make: Callable[[], Backend]
    has_key: bool


@passes_with("stream", "one that connect(...) makes")
class Backend(ABC):
    """A model that answers requests with a stream of deltas.

    `model` is its name, `provider` the kind of backend (`openai`, `http`, `local`, `vllm`).
    `default_options` have the wire's names; a request's own options win. `formats` are the ways in
    which the model writes calls into its text, where neither its server nor `stream` reads them:
    `respond` and `complete` do, and whoever forks a reply can. Entering opens
    connections or loads the model; leaving closes them; both may be done again. One backend may
    serve any number of streams at once.

    `recipe` is set by `connect`: with it a backend travels to another process, where it is made
    again and finds its key by name.

    Below a durable job a whole reply is kept in the journal, and played from there when the run is
    taken up again: a subclass does nothing for it. Played, it takes no turn of limits, and is
    charged and counted in budgets as it was. One that fails, or is left early, is kept as far as
    it came, and ends there again.
    """

    provider: str = "unknown"
    recipe: Recipe | None = None

    formats: Sequence[Format] = ()

    @property
    def item_provider(self) -> str:
        """The name that marks the `ProviderItem`s of its replies; it sends back only such items.

        A backend that speaks the chat-completions wire to a server has the host of its address,
        with the port where the address has one: `api.deepseek.com`, `localhost:8000`. So one
        service has one name, whether it is reached as `openai:` or by its address, and backends for
        other wires of the same service have another. All others have their `provider`.
        """
        return self.provider

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port that its requests go to; None of a model in this process."""
        return None

    @property
    def asks_others(self) -> bool:
        """Whether it only hands requests on to other backends: those are told of, not this one."""
        return False

    @property
    def takes(self) -> frozenset[str] | None:
        """What its model takes beside text, of "image", "audio", "file" (a PDF) and "url".

        "url" says that an image may be an address. None: nobody knows, and all is sent. A request
        with anything else is a `ConfigurationError` before it is sent; in what was answered
        before, as by another model, and in what a tool gave, a note stands in its place.
        """
        return None

    def check_parts(self, messages: Sequence[Message]) -> None:
        """Raise `ConfigurationError` if its model is known not to take the parts of `messages`."""
        fit_parts(self, Request(messages))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        stream: Any = cls.stream  # perhaps of a class beside this one
        if not (hasattr(stream, "keeps_replies") or hasattr(stream, "__isabstractmethod__")):
            cast("Any", cls).stream = keep_replies(stream)

    def __init__(
        self, model: str, *, formats: Sequence[Format] = (), **default_options: Any
    ) -> None:
        self.model = model
        self.formats = formats
        self.check_defaults(default_options)
        self.default_options = default_options

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.model!r})"

    def check_defaults(self, options: Mapping[str, Any]) -> None:
        """Raise `ConfigurationError` if there is a default option that is none.

        Here that is any name which the wire has not: a misspelt one, or a misspelt setting.
        """
        check_options(options, type(self).__name__, of=type(self))

    @abstractmethod
    def stream(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Answer `request`, delta by delta.

        Raises a `BackendError`; after the first delta only `StreamInterrupted` or `BadResponse`.
        Closing the generator, or cancelling the task that reads it, stops the model and frees the
        connection before it returns. Close it (`contextlib.aclosing`) if you may leave early.
        """

    async def warm(self, request: Request) -> None:  # noqa: B027 - most models are always ready
        """Get ready for requests that begin as `request` does: nothing that must be done.

        A model in this process is loaded, and the small one reads ahead: the messages and tools,
        before a person has written the next message. Nothing is charged, and nobody is asked who
        takes money. A request that comes meanwhile waits no longer than it would without.
        Cancelled, it stops soon and keeps what was done; a second call costs little.
        """

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        """Return the limits of its own in which replies of this model are counted."""
        return ()

    def redact(self, text: str) -> str:
        """Return `text` with stars where the backend's key stood."""
        return text

    def has_reply(self, request: Request) -> bool:
        """Say whether the next reply to `request` is one that the durable run around has already.

        It is played then, and asks for nothing. Outside a durable run there is none.
        """
        scope = scope_here(any_loop=True)
        if scope is None:
            return False
        try:
            fitted = fit_parts(self, request)
        except ConfigurationError:
            return False
        return scope.has_reply(key_of(fitted), self.redact)

    async def complete(self, request: Request) -> Message:
        """Answer `request` with the whole message. Raises and is cancelled as `stream` is."""
        require_request(request)
        async with aclosing(self.stream(request)) as deltas:
            return assemble([delta async for delta in deltas], self.formats)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each of `texts`, in their order; none for none, without a request.

        All go in one request, and all vectors have one size. It takes its turn, is tried again,
        charged and cancelled as a reply is, and raises what `stream` raises; `TypeError` for what
        is no list of texts; `ConfigurationError` if backends of this kind make no embeddings.
        Nothing of it is kept in a journal: a later life of a durable run asks again.
        """
        raise ConfigurationError(
            f"{type(self).__name__} makes no embeddings: connect to a server that does, such as"
            " 'openai:text-embedding-3-small', or any at http://HOST/v1"
        )

    def stream_sync(self, request: Request) -> Generator[Delta, None, None]:
        """Answer `request` as `stream` does, for code without an event loop.

        The connections it opens last as long as the generator. In a thread of `in_thread`, as that
        of a plain tool, a cancel of its node ends the wait for the model and closes the connection,
        and the step raises `CancelledError`. Inside a running loop it is a `RuntimeError`, raised
        at the first step.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            source = self.stream(request)
        else:
            raise RuntimeError("stream_sync is for code without an event loop; use stream here")

        told = False
        stepping: asyncio.Task[Any] | None = None

        async def step() -> Delta | None:
            nonlocal stepping
            if told:
                raise asyncio.CancelledError
            stepping = asyncio.current_task()
            try:
                return await anext(source, None)
            finally:
                stepping = None

        def stop() -> None:
            nonlocal told
            told = True
            if stepping is not None:
                stepping.cancel()

        async def finish() -> None:
            try:
                await source.aclose()
            finally:
                await self.leave_loop()

        with asyncio.Runner() as runner, at_cancel(runner.get_loop(), stop):
            try:
                while (delta := runner.run(step())) is not None:
                    yield delta
            finally:
                runner.run(finish())

    def __reduce_ex__(self, protocol: SupportsIndex) -> str | tuple[Any, ...]:
        """Travel as what `connect` was given; a key that was given by value does not travel."""
        if self.recipe is None:
            return super().__reduce_ex__(protocol)
        if self.recipe.has_key:
            raise ConfigurationError(
                "this backend cannot be sent to another process, since its key was given by value:"
                " set the environment variable there (OPENAI_API_KEY, with base_url= for other"
                " servers) and leave out api_key, and what is secret in the address"
            )
        return self.recipe.make, ()

    async def leave_loop(self) -> None:  # noqa: B027 - most backends hold nothing of the sort
        """Free what is bound to the running loop, which is about to end."""

    async def aclose(self) -> None:  # noqa: B027 - most backends hold nothing
        """Free what the backend holds. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
