"""The data of the events `request`, `reply` and `working`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._message import Delta, Usage
from ._request import Request

__all__ = ["ProgressEvent", "ReplyEvent", "RequestEvent"]


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """The data of an event `request`: a request that goes to a model.

    - `number`: unique in its process; `first_chunk` and `reply` of this request have it too
    - `options`: the backend's defaults and the request's own options
    - `messages`: the number of messages; `tools`: the names of the offered tools
    - `replayed`: the reply comes from a journal, and no model was asked
    - `request`: the request itself; None if the event comes from another machine
    - `server`: its host and port; None for a model in this process
    """

    number: int
    provider: str
    model: str
    options: Mapping[str, Any]
    messages: int
    tools: tuple[str, ...]
    replayed: bool = False
    request: Request | None = field(default=None, repr=False)
    server: tuple[str, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        about = (self.number, self.provider, self.model, dict(self.options), self.messages)
        return RequestEvent, (*about, self.tools, self.replayed, None, self.server)


@dataclass(frozen=True, slots=True)
class ReplyEvent:
    """The data of an event `reply`: a reply that has ended.

    - `first_chunk`: seconds from the request to its first chunk, None without one
    - `chunks`: the number of chunks
    - `usage`: the charged usage of all attempts, by model
    - `error`: why the reply failed; None if its reader left it, and `left` is then True
    - `deltas`: all deltas; empty if the event comes from another machine
    - `response_id`, `response_model`: the id and model that the server names, or None
    """

    number: int
    first_chunk: float | None
    chunks: int
    usage: Mapping[str, Usage]
    finish_reason: str | None = None
    error: BaseException | None = None
    left: bool = False
    deltas: tuple[Delta, ...] = field(default=(), repr=False)
    response_id: str | None = None
    response_model: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        about = (self.number, self.first_chunk, self.chunks, dict(self.usage), self.finish_reason)
        server = (self.response_id, self.response_model)
        return ReplyEvent, (*about, self.error, self.left, (), *server)


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """The data of an event `working`: the work of a model before its reply.

    `stage` is "queued" (`total` requests come first), "waiting" (for another process that fetches
    the weights), "fetching" or "verifying" (in bytes), "loading" (without a measure: `total` is 0)
    or "reading" the prompt (in tokens, approximately). `done` of `total` is complete. `number` is
    that of the request; None if the model is prepared without one (`Backend.warm`).
    """

    stage: Literal["queued", "waiting", "fetching", "verifying", "loading", "reading"]
    done: int = 0
    total: int = 0
    number: int | None = None
