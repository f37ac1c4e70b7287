"""OpenAI's Responses: from the log of a run to numbered events, or to one complete response.

The official SDK's types, and https://platform.openai.com/docs/api-reference/responses, define the
format. Events are numbered from 0 without gaps, and the same log always gives the same events, so
a client that reconnects gets the events after its last one. A tool call that runs here is an item
of type `mcp_call`, because clients do not answer that type. A model's reasoning is the summary of
an item of type `reasoning`; data that the provider needs back is the `encrypted_content` of
another such item.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from ._http import HOLE, frame_around, to_json
from ._run_log import Entry

__all__ = ["ResponseEvents"]

Fields: TypeAlias = dict[str, Any]

# Error codes of this wire, by the code of a failure.
ERROR_CODES = {
    "insufficient_quota": "rate_limit_exceeded",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "context_length_exceeded": "invalid_prompt",
    "input_refused": "input_refused",  # no code of this wire fits
}
# Reasons of this wire for an incomplete response, by the status of an answer.
INCOMPLETE_REASONS = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseEvents:
    """Makes the events of one response from all entries of its run, in order.

    `response` is the response so far.
    """

    def __init__(self, name: str, model: str, created: int, echo: Mapping[str, Any]) -> None:
        self._number = 0
        self._has_begun = False
        # The open message, its reply in the log, and the constant parts of its delta events.
        self._message: Fields | None = None
        self._speech: object = None
        self._key = "text"  # the field of the message's part that grows; or "refusal"
        self._frame: list[str] = []
        # The open reasoning, and its reply in the log.
        self._reasoning: Fields | None = None
        self._reasoning_speech: object = None
        self._calls: dict[str, Fields] = {}  # open calls, by their names in the log
        self.output: list[Fields] = []
        self.response: Fields = {
            "id": name,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "model": model,
            "output": self.output,
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "metadata": {},
            "temperature": None,
            "top_p": None,
            "usage": None,
            **echo,
        }

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self._number

    def begin(self) -> Iterator[Fields]:
        """Yield the first events; a second call yields none."""
        if not self._has_begun:
            self._has_begun = True
            yield self._event("created", response=self._snapshot())
            yield self._event("in_progress", response=self._snapshot())

    def feed(self, entry: Entry) -> Iterator[Fields]:
        """Yield the events of an entry."""
        yield from self.begin()
        kind, data = entry.kind, entry.data
        if kind != "reasoning":
            yield from self._end_reasoning()
        if kind in ("reasoning", "items", "called", "requested"):
            yield from self._end_message("completed")
        match kind:
            case "text":
                if data["speech"] != self._speech:
                    yield from self._end_message("completed")
                    yield from self._begin_message(data)
                yield self._add_text(data["text"])
            case "broken":
                yield from self._end_message("incomplete")
            case "reasoning":
                yield from self._add_reasoning(data)
            case "items":
                item = self._add_item("rs", type="reasoning", summary=[], status="completed")
                item["encrypted_content"] = json.dumps(data["items"])
                yield self._item_event("added", item)
                yield self._item_event("done", item)
            case "called":
                item = self._add_call("mcp", "mcp_call", data, server_label="anabranch")
                self._calls[data["call"]] = item
                yield self._item_event("added", item)
                yield self._event("mcp_call.in_progress", **self._of(item))
                yield from self._end_arguments("mcp_call", item, data["arguments"])
            case "answered":
                yield from self._end_call(data)
            case "requested":
                item = self._add_call("fc", "function_call", data, call_id=data["id"])
                yield self._item_event("added", item)
                name = {"name": data["name"]}
                yield from self._end_arguments("function_call", item, data["arguments"], **name)
                item["status"] = "completed"
                yield self._item_event("done", item)
            case "completed" | "failed" | "cancelled":
                yield from self._end(entry)
            case _:
                pass

    def continue_text(self, entry: Entry) -> str | None:
        """Return the frame of an entry that continues the message; None: give it to `feed`.

        This is the fast path for most entries.
        """
        if entry.kind != "text" or entry.data["speech"] != self._speech or self._message is None:
            return None
        text = entry.data["text"]
        self._message["content"][0][self._key] += text
        first, between, last = self._frame
        number = self._number
        self._number += 1
        return f"{first}{number}{between}{to_json(text)}{last}"

    # --- messages and reasoning

    def _begin_message(self, data: Mapping[str, Any]) -> Iterator[Fields]:
        item = self._add_item(
            "msg", type="message", role="assistant", status="in_progress", content=[]
        )
        self._speech, self._message = data["speech"], item
        self._key = "refusal" if "refusal" in data else "text"
        yield self._item_event("added", item)
        part: Fields = {"type": "output_text", "text": "", "annotations": []}
        if self._key == "refusal":
            part = {"type": "refusal", "refusal": ""}
        item["content"].append(part)
        yield self._of_text("content_part.added", part={**part})
        kind = f"response.{self._kind('delta')}"
        around = {"type": kind, "sequence_number": HOLE, **self._of(item)}
        around |= {"content_index": 0, "delta": HOLE, **self._logprobs()}
        self._frame = frame_around(around, event=kind)

    def _add_text(self, text: str) -> Fields:
        assert self._message is not None
        part = self._message["content"][0]
        if self._key == "refusal" and not part["refusal"]:
            text = text.removeprefix("\n")  # it separates the refusal from the text before
        part[self._key] += text
        return self._of_text(self._kind("delta"), delta=text, **self._logprobs())

    def _kind(self, event: str) -> str:
        """Return the type of an event of the part that grows."""
        return f"{'output_text' if self._key == 'text' else 'refusal'}.{event}"

    def _logprobs(self) -> dict[str, list[Any]]:
        return {"logprobs": []} if self._key == "text" else {}

    def _end_message(self, status: str) -> Iterator[Fields]:
        if (item := self._message) is None:
            return
        part = item["content"][0]
        item["status"] = status
        done = {self._key: part[self._key], **self._logprobs()}
        yield self._of_text(self._kind("done"), **done)
        yield self._of_text("content_part.done", part={**part})
        yield self._item_event("done", item)
        self._message = self._speech = None

    def _of_text(self, kind: str, **fields: Any) -> Fields:
        assert self._message is not None
        return self._event(kind, **self._of(self._message), content_index=0, **fields)

    def _add_reasoning(self, data: Mapping[str, Any]) -> Iterator[Fields]:
        if self._reasoning is None or self._reasoning_speech != data["speech"]:
            yield from self._end_reasoning()
            item = self._add_item("rs", type="reasoning", summary=[], status="in_progress")
            self._reasoning, self._reasoning_speech = item, data["speech"]
            yield self._item_event("added", item)
            part = {"type": "summary_text", "text": ""}
            item["summary"].append(part)
            yield self._of_summary("part.added", part={**part})
        assert self._reasoning is not None
        self._reasoning["summary"][0]["text"] += data["text"]
        yield self._of_summary("text.delta", delta=data["text"])

    def _end_reasoning(self) -> Iterator[Fields]:
        if (item := self._reasoning) is None:
            return
        part = item["summary"][0]
        yield self._of_summary("text.done", text=part["text"])
        yield self._of_summary("part.done", part={**part})
        item["status"] = "completed"
        yield self._item_event("done", item)
        self._reasoning = None

    def _of_summary(self, kind: str, **fields: Any) -> Fields:
        assert self._reasoning is not None
        of = {**self._of(self._reasoning), "summary_index": 0}
        return self._event(f"reasoning_summary_{kind}", **fields, **of)

    # --- calls

    def _add_call(self, prefix: str, kind: str, data: Mapping[str, Any], **of: str) -> Fields:
        # Without arguments, as OpenAI's: pydantic-ai would add those of the deltas to them.
        about = {"name": data["name"], "arguments": "", "status": "in_progress"}
        return self._add_item(prefix, type=kind, **of, **about)

    def _end_arguments(
        self, kind: str, item: Fields, arguments: str, **more: str
    ) -> Iterator[Fields]:
        item["arguments"] = arguments
        of = self._of(item)
        yield self._event(f"{kind}_arguments.delta", delta=arguments, **of)
        yield self._event(f"{kind}_arguments.done", arguments=arguments, **more, **of)

    def _end_call(self, data: Mapping[str, Any]) -> Iterator[Fields]:
        item = self._calls.pop(data["call"], None)
        if item is None:
            return
        item["status"] = "completed" if data["status"] == "ok" else "failed"
        item["output"] = data["text"]
        yield self._event(f"mcp_call.{item['status']}", **self._of(item))
        yield self._item_event("done", item)

    # --- the end

    def _end(self, entry: Entry) -> Iterator[Fields]:
        completed = entry.kind == "completed"
        yield from self._end_message("completed" if completed else "incomplete")
        for item in self._calls.values():
            item["status"] = "incomplete"
            yield self._item_event("done", item)
        self._calls.clear()
        response = self.response
        response["status"] = entry.kind
        response["usage"] = _usage(entry.data.get("usage"))
        reason = INCOMPLETE_REASONS.get(entry.data.get("status", ""))
        if completed and reason is not None:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": reason}
        if entry.kind == "failed":
            code = ERROR_CODES.get(entry.data["code"], "server_error")
            response["error"] = {"code": code, "message": entry.data["message"]}
        # This wire lacks an event for a cancelled response.
        kind = "incomplete" if response["status"] == "cancelled" else response["status"]
        yield self._event(kind, response=self._snapshot())

    # --- items and events

    def _add_item(self, prefix: str, **fields: Any) -> Fields:
        item = {"id": f"{prefix}_{self.response['id']}_{len(self.output)}", **fields}
        self.output.append(item)
        return item

    def _of(self, item: Fields) -> Fields:
        place = int(item["id"].rpartition("_")[2])
        return {"item_id": item["id"], "output_index": place}

    def _item_event(self, kind: str, item: Fields) -> Fields:
        place = self._of(item)["output_index"]
        return self._event(f"output_item.{kind}", output_index=place, item=_copy(item))

    def _event(self, kind: str, **fields: Any) -> Fields:
        event = {"type": f"response.{kind}", "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _snapshot(self) -> Fields:
        return self.response | {"output": [_copy(item) for item in self.output]}


def _copy(item: Mapping[str, Any]) -> Fields:
    """Copy the current state of an item, so that events that were sent do not change."""
    parts = {name: item[name] for name in ("content", "summary") if name in item}
    return {**item, **{name: [{**part} for part in each] for name, each in parts.items()}}


def _usage(usage: Mapping[str, Any] | None) -> Fields | None:
    if usage is None:
        return None
    inner, outer = usage["prompt_tokens_details"], usage["completion_tokens_details"]
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **inner},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": outer,
        "total_tokens": usage["total_tokens"],
    }
