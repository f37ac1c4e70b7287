"""OpenAI's Responses: from the log of a run to numbered events, or to one whole response.

The shapes are those of https://platform.openai.com/docs/api-reference/responses, as the official
SDK's types have them. Events are numbered from 0 without a gap, and the same log always gives the
same events: so a client that comes back is given those behind the last one that it had. A call of
a tool, which runs here, is an item of type `mcp_call`: the kind of call whose answer is not the
client's affair. What a model reasons is an item of type `reasoning`, whose summary it is; the data
that its provider wants back are the `encrypted_content` of another one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ._frames import HOLE, frame_around, to_json
from ._log import Entry

__all__ = ["ResponseEvents"]

STATUS = {"completed": "completed", "failed": "failed", "cancelled": "cancelled"}
# Why a run failed, in the codes that this wire has.
ERRORS = {
    "insufficient_quota": "rate_limit_exceeded",
    "rate_limit_exceeded": "rate_limit_exceeded",
    "context_length_exceeded": "invalid_prompt",
}
# What cut a reply short, by the status of an agent's answer.
INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


class ResponseEvents:
    """Makes the events of one response; fed with all entries of a run, from the first on.

    `response` is the whole response as far as it has come.
    """

    def __init__(self, name: str, model: str, created: int, echo: Mapping[str, Any]) -> None:
        self._number = 0
        self._begun = False
        self._speech: object = None  # whose text the open message is
        self._message: dict[str, Any] | None = None
        self._key = "text"  # of its part, where the text stands
        self._around: list[str] = []  # of the events that say more of it
        self._calls: dict[str, tuple[int, dict[str, Any]]] = {}
        # The item of the reasoning that grows, and whose it is.
        self._reasoning: dict[str, Any] | None = None
        self._reasoner: object = None
        self.output: list[dict[str, Any]] = []
        self.response: dict[str, Any] = {
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

    def begin(self) -> Iterator[dict[str, Any]]:
        """Give the first events; twice is harmless."""
        if not self._begun:
            self._begun = True
            yield self._event("response.created", response=self._snapshot())
            yield self._event("response.in_progress", response=self._snapshot())

    def feed(self, entry: Entry) -> Iterator[dict[str, Any]]:
        """Give the events of an entry."""
        yield from self.begin()
        if entry.kind != "reasoning":
            yield from self._end_reasoning()
        match entry.kind:
            case "reasoning":
                yield from self._end_message("completed")
                yield from self._reason(entry.data)
            case "items":
                yield from self._end_message("completed")
                yield from self._seal(entry.data["items"])
            case "text":
                if entry.data["speech"] != self._speech:
                    yield from self._end_message("completed")
                    yield from self._begin_message(entry.data)
                yield from self._say(entry.data["text"])
            case "broken":
                yield from self._end_message("incomplete")
            case "called":
                yield from self._end_message("completed")
                yield from self._call(entry.data)
            case "requested":
                yield from self._end_message("completed")
                yield from self._request(entry.data)
            case "answered":
                yield from self._answer(entry.data)
            case "completed" | "failed" | "cancelled":
                yield from self._end(entry)
            case _:
                pass

    def more(self, entry: Entry) -> str | None:
        """Write the frame of an entry that says more of the same; None of any other, to `feed`."""
        if entry.kind != "text" or entry.data["speech"] != self._speech or self._message is None:
            return None
        text = entry.data["text"]
        self._message["content"][0][self._key] += text
        first, between, last = self._around
        number = self._number
        self._number += 1
        return f"{first}{number}{between}{to_json(text)}{last}"

    # --- messages

    def _begin_message(self, said: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        place = len(self.output)
        item: dict[str, Any] = {
            "id": f"msg_{self.response['id']}_{place}",
            "type": "message",
            "role": "assistant",
            "status": "in_progress",
            "content": [],
        }
        self._speech, self._message = said["speech"], item
        self.output.append(item)
        yield self._event("response.output_item.added", output_index=place, item=_copy(item))
        part: dict[str, Any] = {"type": "output_text", "text": "", "annotations": []}
        if "refusal" in said:
            part = {"type": "refusal", "refusal": ""}
        self._key = "refusal" if "refusal" in said else "text"
        item["content"].append(part)
        yield self._of_part("response.content_part.added", part=_copy(part))
        more = {"type": self._kind("delta"), "sequence_number": HOLE, **self._place, "delta": HOLE}
        self._around = frame_around({**more, **self._logprobs()}, event=self._kind("delta"))

    def _say(self, text: str) -> Iterator[dict[str, Any]]:
        assert self._message is not None
        if self._key == "refusal" and not self._message["content"][0]["refusal"]:
            text = text.removeprefix("\n")  # which separates it from the text before it
        self._message["content"][0][self._key] += text
        yield self._of_part(self._kind("delta"), delta=text, **self._logprobs())

    def _kind(self, what: str) -> str:
        """Return the type of an event of the part that grows."""
        return f"response.{'output_text' if self._key == 'text' else 'refusal'}.{what}"

    def _logprobs(self) -> dict[str, list[Any]]:
        return {"logprobs": []} if self._key == "text" else {}

    def _end_message(self, status: str) -> Iterator[dict[str, Any]]:
        item = self._message
        if item is None:
            return
        part = item["content"][0]
        item["status"] = status
        done = {self._key: part[self._key], **self._logprobs()}
        yield self._of_part(self._kind("done"), **done)
        yield self._of_part("response.content_part.done", part=_copy(part))
        place = self.output.index(item)
        yield self._event("response.output_item.done", output_index=place, item=_copy(item))
        self._message = self._speech = None

    def _of_part(self, kind: str, **fields: Any) -> dict[str, Any]:
        return self._event(kind, **self._place, **fields)

    @property
    def _place(self) -> dict[str, Any]:
        item = self._message
        assert item is not None
        place = self.output.index(item)
        return {"item_id": item["id"], "output_index": place, "content_index": 0}

    # --- reasoning

    def _reason(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        kind = "response.reasoning_summary"
        if self._reasoning is None or self._reasoner != data["speech"]:
            yield from self._end_reasoning()
            item = self._reasoning_item("in_progress")
            self._reasoning, self._reasoner = item, data["speech"]
            yield self._event("response.output_item.added", item=_copy(item), **self._at(item))
            part = {"type": "summary_text", "text": ""}
            item["summary"].append(part)
            yield self._event(f"{kind}_part.added", part={**part}, **self._of_summary())
        assert self._reasoning is not None
        self._reasoning["summary"][0]["text"] += data["text"]
        yield self._event(f"{kind}_text.delta", delta=data["text"], **self._of_summary())

    def _end_reasoning(self) -> Iterator[dict[str, Any]]:
        item = self._reasoning
        if item is None:
            return
        kind, part = "response.reasoning_summary", item["summary"][0]
        yield self._event(f"{kind}_text.done", text=part["text"], **self._of_summary())
        yield self._event(f"{kind}_part.done", part={**part}, **self._of_summary())
        item["status"] = "completed"
        yield self._event("response.output_item.done", item=_copy(item), **self._at(item))
        self._reasoning = None

    def _seal(self, items: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        item = self._reasoning_item("completed")
        item["encrypted_content"] = json.dumps(items)
        for kind in ("added", "done"):
            yield self._event(f"response.output_item.{kind}", item=_copy(item), **self._at(item))

    def _reasoning_item(self, status: str) -> dict[str, Any]:
        name = f"rs_{self.response['id']}_{len(self.output)}"
        item: dict[str, Any] = {"id": name, "type": "reasoning", "summary": [], "status": status}
        self.output.append(item)
        return item

    def _at(self, item: dict[str, Any]) -> dict[str, Any]:
        return {"output_index": self.output.index(item)}

    def _of_summary(self) -> dict[str, Any]:
        assert self._reasoning is not None
        of = self._at(self._reasoning)
        return {**of, "item_id": self._reasoning["id"], "summary_index": 0}

    # --- calls

    def _call(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        place = len(self.output)
        item = {
            "id": f"mcp_{self.response['id']}_{place}",
            "type": "mcp_call",
            "server_label": "anabranch",
            "name": data["name"],
            "arguments": "",
            "status": "in_progress",
        }
        self.output.append(item)
        self._calls[data["call"]] = place, item
        at = {"output_index": place}
        of = {**at, "item_id": item["id"]}
        # An item begins without arguments, as OpenAI's do: pydantic-ai puts them together.
        yield self._event("response.output_item.added", item=_copy(item), **at)
        yield self._event("response.mcp_call.in_progress", **of)
        item["arguments"] = data["arguments"]
        kind = "response.mcp_call_arguments"
        yield self._event(f"{kind}.delta", delta=item["arguments"], **of)
        yield self._event(f"{kind}.done", arguments=item["arguments"], **of)

    def _answer(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        found = self._calls.pop(data["call"], None)
        if found is None:
            return
        place, item = found
        good = data["status"] == "ok"
        item["status"] = "completed" if good else "failed"
        item["output"] = data["text"]
        at = {"output_index": place}
        kind = f"response.mcp_call.{item['status']}"
        yield self._event(kind, item_id=item["id"], **at)
        yield self._event("response.output_item.done", item=_copy(item), **at)

    def _request(self, data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        place = len(self.output)
        item = {
            "id": f"fc_{self.response['id']}_{place}",
            "type": "function_call",
            "call_id": data["id"],
            "name": data["name"],
            "arguments": "",
            "status": "in_progress",
        }
        self.output.append(item)
        at = {"output_index": place}
        of = {**at, "item_id": item["id"]}
        yield self._event("response.output_item.added", item=_copy(item), **at)
        item["arguments"] = data["arguments"]
        kind = "response.function_call_arguments"
        yield self._event(f"{kind}.delta", delta=item["arguments"], **of)
        done = {"arguments": item["arguments"], "name": item["name"]}
        yield self._event(f"{kind}.done", **done, **of)
        item["status"] = "completed"
        yield self._event("response.output_item.done", item=_copy(item), **at)

    # --- the end

    def _end(self, entry: Entry) -> Iterator[dict[str, Any]]:
        whole = entry.kind == "completed"
        yield from self._end_message("completed" if whole else "incomplete")
        for place, item in self._calls.values():
            item["status"] = "incomplete"
            done = {"output_index": place, "item": _copy(item)}
            yield self._event("response.output_item.done", **done)
        self._calls.clear()
        response = self.response
        response["status"] = STATUS[entry.kind]
        response["usage"] = _usage(entry.data.get("usage"))
        cut = INCOMPLETE.get(entry.data.get("status", ""))
        if whole and cut is not None:
            response["status"] = "incomplete"
            response["incomplete_details"] = {"reason": cut}
        if entry.kind == "failed":
            code = ERRORS.get(entry.data["code"], "server_error")
            response["error"] = {"code": code, "message": entry.data["message"]}
        # There is no event for a response that was cancelled: it is incomplete for who reads it.
        kind = "incomplete" if response["status"] == "cancelled" else response["status"]
        yield self._event(f"response.{kind}", response=self._snapshot())

    def _event(self, kind: str, **fields: Any) -> dict[str, Any]:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event

    def _snapshot(self) -> dict[str, Any]:
        return self.response | {"output": [_copy(item) for item in self.output]}


def _copy(item: Mapping[str, Any]) -> dict[str, Any]:
    """Copy an item as it is now: events that were made do not change."""
    parts = {name: item[name] for name in ("content", "summary") if name in item}
    return {**item, **{name: [{**part} for part in each] for name, each in parts.items()}}


def _usage(usage: Mapping[str, Any] | None) -> dict[str, Any] | None:
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
