"""OpenAI's chat completions: from the log of a run to chunks, or to one complete completion.

The official SDK's types, and https://platform.openai.com/docs/api-reference/chat, define the
format. Calls of an agent's tools run here; the client gets the text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._failure import status_of
from ._http import HOLE, frame_around, to_json
from ._run_log import Entry

__all__ = ["ChatChunks", "chat_completion", "chat_error"]

ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error"}
FINISH_REASONS = ("length", "content_filter", "tool_calls")


@dataclass(slots=True)
class ChatChunks:
    """Makes the chunks of one completion from all entries of its run, in order."""

    name: str
    model: str
    created: int
    include_usage: bool = False
    _texts: Texts = field(default_factory=lambda: Texts())
    _has_begun: bool = False
    _calls: int = 0
    # The constant parts of a chunk with text, for replies and for refusals; those in use.
    _frames: dict[bool, list[str]] = field(default_factory=dict[bool, list[str]])
    _frame: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._frames = {
            is_refusal: frame_around(self._chunk({name: HOLE}))
            for is_refusal, name in ((False, "content"), (True, "refusal"))
        }

    def continue_text(self, entry: Entry) -> str | None:
        """Return the frame of an entry that continues the last text; None: give it to `feed`.

        This is the fast path for most entries.
        """
        if entry.kind != "text" or entry.data["speech"] != self._texts.speech:
            return None
        return to_json(entry.data["text"]).join(self._frame)

    def feed(self, entry: Entry) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an entry; one with an "error" ends the stream."""
        if not self._has_begun:
            self._has_begun = True
            yield self._chunk({"role": "assistant", "content": ""})
        if text := self._texts.feed(entry):
            is_refusal = self._texts.is_refusal
            self._frame = self._frames[is_refusal]
            yield self._chunk({"refusal" if is_refusal else "content": text})
        if entry.kind == "reasoning":
            yield self._chunk({"reasoning_content": entry.data["text"]})
        if entry.kind == "items":
            yield self._chunk({"provider_items": entry.data["items"]})
        if entry.kind == "requested":
            call = {"index": self._calls, **tool_call(entry)}
            self._calls += 1
            yield self._chunk({"tool_calls": [call]})
        if entry.kind == "completed":
            yield self._chunk({}, finish_of(entry))
            if self.include_usage:
                yield self._base() | {"choices": [], "usage": entry.data["usage"]}
        elif entry.is_last:
            yield chat_error(entry)

    def _base(self) -> dict[str, Any]:
        chunk = {"id": self.name, "object": "chat.completion.chunk", "created": self.created}
        return chunk | {"model": self.model}

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
        usage = {"usage": None} if self.include_usage else {}
        return self._base() | {"choices": [choice]} | usage


class Texts:
    """Joins the replies of a run to one text, with an empty line between them; so with refusals."""

    def __init__(self) -> None:
        self.speech: object = None  # the last reply
        self.is_refusal = False  # whether the last text is a refusal
        self._has_begun: set[bool] = set()

    def feed(self, entry: Entry) -> str:
        """Return the text that an entry adds."""
        if entry.kind != "text":
            return ""
        text: str = entry.data["text"]
        if entry.data["speech"] == self.speech:
            return text
        self.speech, self.is_refusal = entry.data["speech"], "refusal" in entry.data
        if self.is_refusal in self._has_begun:
            return f"\n\n{text}"
        self._has_begun.add(self.is_refusal)
        return text.removeprefix("\n") if self.is_refusal else text


def chat_completion(
    name: str, model: str, created: int, entries: Iterable[Entry]
) -> dict[str, Any]:
    """Make the complete completion of a completed run; it has the text of all chunks together."""
    joined, texts, refusals, last = Texts(), list[str](), list[str](), None
    calls: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    for entry in entries:
        text = joined.feed(entry)
        (refusals if joined.is_refusal else texts).append(text)
        calls += [tool_call(entry)] if entry.kind == "requested" else []
        if entry.kind == "reasoning":
            more["reasoning_content"] = more.get("reasoning_content", "") + entry.data["text"]
        if entry.kind == "items":
            more["provider_items"] = entry.data["items"]
        last = entry
    assert last is not None
    assert last.kind == "completed"
    refusal = "".join(refusals) or None
    content = "".join(texts) or (None if refusal or calls else "")
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": refusal}
    message |= more
    if calls:
        message["tool_calls"] = calls
    choice = {"index": 0, "message": message, "finish_reason": finish_of(last), "logprobs": None}
    completion = {"id": name, "object": "chat.completion", "created": created, "model": model}
    return completion | {"choices": [choice], "usage": last.data["usage"]}


def tool_call(entry: Entry) -> dict[str, Any]:
    """Make a tool call that the client must run."""
    function = {"name": entry.data["name"], "arguments": entry.data["arguments"]}
    return {"id": entry.data["id"], "type": "function", "function": function}


def finish_of(entry: Entry) -> str:
    """Return the finish reason of a completed run."""
    status = entry.data.get("status", "")
    return status if status in FINISH_REASONS else "stop"


def chat_error(entry: Entry) -> dict[str, Any]:
    """Make the error of a failed or cancelled run, without its cause."""
    message = entry.data.get("message", "The run was cancelled.")
    code = entry.data.get("code", "cancelled")
    kind = ERROR_TYPES.get(status_of(code), "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
