"""`Backend`, the interface to every model."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, SupportsIndex, TypeVar, cast, overload

from ..commander.durable import scope_here
from ..commander.errors import ConfigurationError
from ..commander.kinds import passes_with
from ..commander.thread import at_cancel
from ..dispatch import Format
from ..dispatch.assembly import assemble
from ..messages import (
    Delta,
    Message,
    OutputMessage,
    OutputMode,
    OutputSchema,
    Request,
    require_request,
)
from ..messages.options import check_options
from ._recorded import key_of, record_replies
from ._request_fit import fit_parts
from .limits import Limits
from .typed_output import TypedOutput, check_retries

__all__ = ["Backend", "BackendFactory"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True, repr=False)
class BackendFactory:
    """Makes a backend again in another process. `has_key`: its key would have to be sent along."""

    make: Callable[[], Backend]
    has_key: bool


@passes_with("stream", "one that connect(...) makes")
class Backend(ABC):
    """A model that answers requests with a stream of deltas.

        async with connect("openai:gpt-5") as backend:
            async with aclosing(backend.stream(request)) as deltas:
                async for delta in deltas:
                    print(delta.text, end="")

    `model` is its name, `provider` the kind of backend (`openai`, `http`, `local`, `vllm`).
    `default_options` have the names of chat completions; a request's own options win. `formats` are
    the formats of calls in the model's text. `respond` and `complete` use them, and so can your own
    code that forks a reply. Leave them empty if the server or `stream` reads such calls.

    Entering opens connections or loads the model, leaving closes them; both can be repeated. One
    backend serves any number of streams at once. `connect` sets `factory`, which makes a backend
    picklable: the other process makes it again and finds its key in the environment.

    Below a durable job the journal stores each complete reply, and a resumed run replays it. A
    subclass does nothing for this. A replayed reply takes no turn of limits. Its usage is charged
    and counted in budgets again. A reply that failed or was left early is stored as far as it came,
    and ends there again.
    """

    provider: str = "unknown"
    factory: BackendFactory | None = None

    formats: Sequence[Format] = ()

    @property
    def item_provider(self) -> str:
        """The provider name of the `ProviderItem`s in its replies; it sends only such items back.

        For a server with chat completions this is the host of its address, with its port if given:
        `api.deepseek.com`, `localhost:8000`. So a service has one name, as `openai:` and by its
        address, and a backend for another wire of that service needs another one. For others it is
        `provider`.
        """
        return self.provider

    @property
    def server(self) -> tuple[str, int] | None:
        """The host and port of its server; None for a model in this process."""
        return None

    @property
    def asks_others(self) -> bool:
        """Whether it only passes requests on: then the other backends emit the events."""
        return False

    @property
    def takes(self) -> frozenset[str] | None:
        """The inputs its model takes beside text: "image", "audio", "file" (a PDF), "url".

        "url" means that an image may be an address. None means unknown: everything is sent. Any
        other part of the newest messages raises `ConfigurationError` before the request is sent. In
        older messages and in results of tools, a note replaces the part.
        """
        return None

    @property
    def output_modes(self) -> Sequence[OutputMode]:
        """The ways in which its model can be asked for typed output, the best first.

        This is what is known about the model or its server. By default nothing is, and each mode is
        possible with `output_mode=`. Where "tool" follows "text" as the second mode, it is the best
        one for a request with tools.
        """
        return ("text", "tool", "schema", "grammar")

    def check_parts(self, messages: Sequence[Message]) -> None:
        """Raise `ConfigurationError` if the model is known not to take a part of `messages`."""
        fit_parts(self, Request(messages))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        stream: Any = cls.stream  # may come from another base class
        if not (hasattr(stream, "records_replies") or hasattr(stream, "__isabstractmethod__")):
            cast("Any", cls).stream = record_replies(stream)

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
        """Raise `ConfigurationError` for a default option that does not exist.

        Here, an option must be known in chat completions. This finds misspelt options and settings.
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
        """Prepare for requests that begin as `request` does. Calling it is optional.

        A model in this process is loaded. The small model also reads the messages and tools, before
        the user has written the next message. Nothing is charged, and no paid service is asked. A
        request that arrives in between waits no longer than without. If cancelled, it stops soon
        and keeps its progress; a second call costs little.
        """

    def limits_of_model(self, model: str) -> Sequence[Limits]:
        """Return this backend's own limits that count replies of `model`."""
        return ()

    def redact(self, text: str) -> str:
        """Return `text` with stars in place of the backend's key."""
        return text

    def has_reply(self, request: Request) -> bool:
        """Return whether the durable run's journal has the next reply to `request`.

        Such a reply is replayed without asking the model. False outside a durable run.
        """
        scope = scope_here(any_loop=True)
        if scope is None:
            return False
        try:
            fitted = fit_parts(self, request)
        except ConfigurationError:
            return False
        return scope.has_reply(key_of(fitted), self.redact)

    @overload
    async def complete(self, request: Request) -> Message: ...
    @overload
    async def complete(
        self,
        request: Request,
        *,
        output_type: type[T] | OutputSchema[T],
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
    ) -> OutputMessage[T]: ...
    # A type checker cannot infer the type from a union, a `Literal` and other special forms.
    @overload
    async def complete(
        self,
        request: Request,
        *,
        output_type: object,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
    ) -> OutputMessage[Any]: ...
    async def complete(
        self,
        request: Request,
        *,
        output_type: Any = None,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
    ) -> Message:
        """Return the complete reply to `request`. Raises and is cancelled as `stream`.

        message = await backend.complete(Request([Message(role="user", content="Hello")]))

        With `output_type` the reply is an `OutputMessage`, whose `output` is a value of that type:
        a model, a dataclass, a `TypedDict`, a union, a list, a primitive or a `Literal`. How the
        model is asked follows from `output_modes`, unless `output_mode` says it. If the reply does
        not fit, the model reads the reason and is asked again, `output_retries` times.

        Raises `OutputInvalid` after that, and `Refused`, `ContentFiltered` or `ReplyTruncated` for
        a reply that another request would not improve. Raises `ConfigurationError` for a request
        with tools, as only `respond` runs them, and for a mode that is not possible.
        """
        require_request(request)
        if output_type is None:
            if output_mode is not None:
                raise ConfigurationError("output_mode= needs output_type=, the type of the output")
            async with aclosing(self.stream(request)) as deltas:
                return assemble([delta async for delta in deltas], self.formats)
        if request.tools:
            raise ConfigurationError(
                "complete(output_type=...) runs no tools. Use respond(), or leave out the tools"
            )
        check_retries(output_retries)
        output = TypedOutput(OutputSchema[Any].of(output_type), self, output_mode)
        conversation = list(request.messages)
        for retries in range(output_retries, -1, -1):
            asked = output.prepare(Request(conversation, (), request.options))
            message = await self.complete(asked)
            try:
                return output.read(message)
            except ValueError as error:
                if (failure := output.failure(message, str(error), retries)) is not None:
                    raise failure from error
                conversation += output.correct(message, str(error))
        raise AssertionError("the last attempt gives an output or an error")

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """Return a vector for each of `texts`, in their order.

        All texts go in one request, and all vectors have one size; an empty list sends no request.
        The request takes its turn, is retried, charged and cancelled as a reply. Raises as
        `stream`, `TypeError` unless `texts` is a list of texts, and `ConfigurationError` if this
        kind of backend makes no embeddings. Journals do not store vectors: a resumed run asks
        again.
        """
        raise ConfigurationError(
            f"{type(self).__name__} makes no embeddings: connect to a server that does, such as"
            " 'openai:text-embedding-3-small', or any at http://HOST/v1"
        )

    def stream_sync(self, request: Request) -> Generator[Delta, None, None]:
        """Answer `request` as `stream` does, for code without an event loop.

        Its connections are closed with the generator. In a thread of `in_thread`, as that of a
        plain tool, a cancel of the node ends the wait for the model, closes the connection and
        raises `CancelledError` in the thread. In a running loop, the first step raises
        `RuntimeError`.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            source = self.stream(request)
        else:
            raise RuntimeError("stream_sync cannot be used in an event loop; use stream")

        is_stopped = False
        stepping: asyncio.Task[Any] | None = None

        async def step() -> Delta | None:
            nonlocal stepping
            if is_stopped:
                raise asyncio.CancelledError
            stepping = asyncio.current_task()
            try:
                return await anext(source, None)
            finally:
                stepping = None

        def stop() -> None:
            nonlocal is_stopped
            is_stopped = True
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
        """Pickle as the arguments of `connect`.

        Raises `ConfigurationError` if a key was among them.
        """
        if self.factory is None:
            return super().__reduce_ex__(protocol)
        if self.factory.has_key:
            raise ConfigurationError(
                "this backend cannot be sent to another process, because it was given a key. Set"
                " the key there as an environment variable (OPENAI_API_KEY, with base_url= for"
                " other servers), and leave out api_key and secrets in the address."
            )
        return self.factory.make, ()

    async def leave_loop(self) -> None:  # noqa: B027 - most backends hold no such resources
        """Free the resources that are bound to the running loop, which is about to close."""

    async def aclose(self) -> None:  # noqa: B027 - most backends hold nothing
        """Free all resources. Closing twice is harmless."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()
