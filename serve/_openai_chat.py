"""OpenAI's chat completions: from the log of a run to chunks, or to one whole completion.

The shapes are those of https://platform.openai.com/docs/api-reference/chat, as the official SDK's
types have them. Tool calls run here, and the client gets text only.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._failure import status_of
from ._http import HOLE, frame_around, to_json
from ._log import Entry

__all__ = ["ChatChunks", "chat_completion", "chat_error"]

ERROR_TYPES = {400: "invalid_request_error", 429: "rate_limit_error"}
FINISH = {name: name for name in ("length", "content_filter", "tool_calls")}


@dataclass(slots=True)
class ChatChunks:
    """Makes the chunks of one completion; it is fed all entries of a run, from the first on."""

    name: str
    model: str
    created: int
    include_usage: bool = False
    _said: Texts = field(default_factory=lambda: Texts())
    _begun: bool = False
    _calls: int = 0
    # Of the chunks that say more of what was said last, by whether that is a refusal.
    _arounds: dict[bool, list[str]] = field(default_factory=dict[bool, list[str]])
    _around: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self._arounds = {
            refuses: frame_around(self._chunk({name: HOLE}))
            for refuses, name in ((False, "content"), (True, "refusal"))
        }

    def more(self, entry: Entry) -> str | None:
        """Write the frame of an entry that says more of the same; None of any other, to `feed`."""
        if entry.kind != "text" or entry.data["speech"] != self._said.speech:
            return None
        return to_json(entry.data["text"]).join(self._around)

    def feed(self, entry: Entry) -> Iterator[dict[str, Any]]:
        """Yield the chunks of an entry; one with an "error" ends the stream."""
        if not self._begun:
            self._begun = True
            yield self._chunk({"role": "assistant", "content": ""})
        if text := self._said.feed(entry):
            refuses = self._said.refuses
            self._around = self._arounds[refuses]
            yield self._chunk({"refusal" if refuses else "content": text})
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
    """The text that a client gets of a run: its replies, with an empty line between them.

    A refusal is a text of its own.
    """

    def __init__(self) -> None:
        self.speech: object = None  # whose text came last
        self.refuses = False  # whether that is a refusal
        self._begun: set[bool] = set()

    def feed(self, entry: Entry) -> str:
        """Return the text that an entry adds."""
        if entry.kind != "text":
            return ""
        text: str = entry.data["text"]
        if entry.data["speech"] == self.speech:
            return text
        self.speech, self.refuses = entry.data["speech"], "refusal" in entry.data
        if self.refuses in self._begun:
            return f"\n\n{text}"
        self._begun.add(self.refuses)
        return text.removeprefix("\n") if self.refuses else text


def chat_completion(
    name: str, model: str, created: int, entries: Iterable[Entry]
) -> dict[str, Any]:
    """Make the complete completion of a run; its text is that of all chunks."""
    said, texts, refusals, last = Texts(), list[str](), list[str](), None
    calls: list[dict[str, Any]] = []
    more: dict[str, Any] = {}
    for entry in entries:
        text = said.feed(entry)
        (refusals if said.refuses else texts).append(text)
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
    """Make a call for the client to run."""
    function = {"name": entry.data["name"], "arguments": entry.data["arguments"]}
    return {"id": entry.data["id"], "type": "function", "function": function}


def finish_of(entry: Entry) -> str:
    """Return the finish reason of a completed run."""
    return FINISH.get(entry.data.get("status", ""), "stop")


def chat_error(entry: Entry) -> dict[str, Any]:
    """Make the error of a failed or cancelled run; it tells nothing about the inside."""
    message = entry.data.get("message", "the run was cancelled")
    code = entry.data.get("code", "cancelled")
    kind = ERROR_TYPES.get(status_of(code), "server_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}
