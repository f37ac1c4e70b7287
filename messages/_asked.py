"""What is told of one question to a model: when it goes out, and when its reply has ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ._delta import Delta
from ._message import Usage
from ._request import Request

__all__ = ["Asked", "Replied", "Working"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A question to a model, as an event of kind `request` has it.

    `number` is unique in its process; `first_chunk` and `reply` of the same question have it too.
    `options` are the backend's defaults and the request's own; `messages` and `tools` are how many
    messages were sent and the names of the tools on offer. `replayed` says that the reply stands
    in a journal, and that nobody was asked. `request` is the request itself; None where the event
    has come from another machine. `server` is the host and port that were asked, None of a model in
    this process.
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
        return Asked, (*about, self.tools, self.replayed, None, self.server)


@dataclass(frozen=True, slots=True)
class Replied:
    """How the reply to a question ended, as an event of kind `reply` has it.

    `first_chunk` is how many seconds after the question its first piece came, None if none did;
    `chunks` how many came. `usage` is what all attempts took, by model: the amounts that are
    charged. `error` is what it failed with; it is None of a reply that its reader has left, and
    `left` is True then. `deltas` are all that came; none where the event has come from another
    machine. `response_id` and `response_model` are the reply's own id and the name of the model
    that gave it, as its server says them; None where it says none.
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
        return Replied, (*about, self.error, self.left, (), *server)


@dataclass(frozen=True, slots=True)
class Working:
    """What a model is busy with before it speaks, as an event of kind `working` has it.

    `stage` is `queued` (`total` requests are served first), `waiting` (another process fetches the
    weights), `fetching`, `verifying` (in bytes), `loading` (no measure: `total` is 0) or `reading`
    the prompt (in tokens, nearly). `done` of `total` is how far it has come. `number` is that of
    the question; None where the model gets ready before there is one (`Backend.warm`).
    """

    stage: Literal["queued", "waiting", "fetching", "verifying", "loading", "reading"]
    done: int = 0
    total: int = 0
    number: int | None = None
