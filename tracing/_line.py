"""Events as lines of a recording: one JSON object each, read again by `_trace`.

The first line of each life says whose the recording is; all times are in seconds since then.
`n` is a node's number, `p` its parent's; 0 is the commander.

    {"recording": 1, "time": 1790000000.5, "pid": 12, "host": "box", "content": false}
    {"e": "put", "t": 0.001, "n": 1, "p": 0, "name": "Answer", "agent": "writer", "session": 7,
     "run": "order-A", "id": "9f...", "kept": true, "host": "other"}
    {"e": "started", "t": 0.002, "n": 1}       likewise joining, completed
    {"e": "failed", "t": 0.1, "n": 1, "error": {"type": "ValueError", "at": "app.py:9 in task"}}
                                               likewise retried; cancelled may have a "reason"
    {"e": "placed", "t": .., "n": 1, "host": "other"}
    {"e": "request", .., "q": 5, "provider": "openai", "model": "m", "options": {}, "messages": 3,
     "tools": ["search"], "replayed": true}
    {"e": "first_chunk", .., "q": 5}
    {"e": "reply", .., "q": 5, "first": 0.4, "chunks": 12, "usage": {"m": {..}}, "finish": "stop",
     "error": {..}, "left": true}
    {"e": "charged", .., "usage": {"m": {"input_tokens": 9, ..}}, "again": true}
                                               again: an earlier life of its run has spent it
    {"e": "price", "model": "m", "input": 1.0, "output": 4.0, "cached_input": 0.1}
    {"e": "called", .., "tool": "search", "call": "c1", "size": 12}     characters of its arguments
    {"e": "answered", .., "status": "ok", "size": 90}                   of its result
    {"e": "waiting", .., "on": [4, 5], "at": "app.py:9 in task", "text": "is running, awaits .."}
    {"e": "slow", .., "seconds": 0.3, "at": "app.py:9 in task"}
    {"e": "gap", "t": .., "missed": 9, "nodes": [[1, 0, "Answer", "running"]], "usage": {..}}
    {"e": "end", "t": .., "usage": {..}}

With content there are besides: "message" in errors, "reason", "input" and "output" of requests,
"arguments" and "result" of calls, and lines of kind "text". What looks like a key is masked
everywhere. Fields that say nothing are left out.
"""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from math import isfinite
from operator import index
from typing import Any, cast

from ..backends import Price, redact_keys
from ..backends.limits import Limits
from ..commander import Actor, Blocked, Event, EventKind, Explanation
from ..commander.errors import BackendError
from ..commander.tap import limits_above, own_actor, place_of, type_name, where_raised
from ..dispatch.assembly import assemble, assemble_partial
from ..messages import Asked, Message, Replied, ToolCall, Usage
from ..messages.mask import mask
from ..tools import ToolResult
from ._feed import Gap

__all__ = [
    "CONTENT_KINDS",
    "HEAD",
    "KINDS",
    "VERSION",
    "Lines",
    "is_plain",
    "message_of",
    "reason_of",
    "type_shown",
]

VERSION = 1
# What every recording begins with.
HEAD = b'{"recording":'

KINDS: tuple[EventKind, ...] = (
    "put", "started", "joining", "completed", "failed", "cancelled", "retried", "placed", "charged",
    "charged_again", "called", "answered", "request", "first_chunk", "reply", "waiting", "slow",
)  # fmt: skip
CONTENT_KINDS: tuple[EventKind, ...] = (*KINDS, "text")

# The most characters of a text that are written, items of a list, and lists in one another.
LONGEST = 20_000
MOST = 1000
DEEPEST = 50
# Characters of a word that may be a key.
LONGEST_WORD = 512
# How replies end; what else a server says there may be anything.
_REASONS = ("stop", "length", "tool_calls", "function_call", "content_filter", "error")
# What ends a node, or an attempt of it.
_ENDS = ("completed", "failed", "cancelled", "retried")


class Lines:
    """Makes lines of the events of one commander; without `content`, of what happened alone."""

    def __init__(
        self,
        start: float,
        epoch: float,
        *,
        content: bool = False,
        prices: Mapping[str, Price] | None = None,
    ) -> None:
        self._start = start
        self._epoch = epoch
        self._content = content
        self._prices = dict(prices or {})
        self._priced: set[str] = set()
        # Names come again and again.
        self._name = lru_cache(4096)(_text)
        self._quoted = lru_cache(4096)(_quoted)
        # Text that was said by nodes which may go on in the middle of a word.
        self._held: dict[int, str] = {}
        # Whose work nodes on other machines do, as far as they have not ended.
        self._away: dict[int, Actor | None] = {}
        # What the events of a kind bring, and their lines; the others bring nothing.
        self._data: dict[str, Callable[[Event], dict[str, Any]]] = {
            "failed": self._failed,
            "retried": self._failed,
            "cancelled": self._cancelled,
            "placed": lambda event: {"host": _text(event.data)},
            "called": self._called,
            "answered": self._answered,
            "request": self._request,
            "first_chunk": lambda event: {"q": index(event.data)},
            "reply": self._reply,
            "waiting": self._waiting,
            "slow": _slow,
        }
        self._lines: dict[str, Callable[[Event, float], list[str]]] = {
            **dict.fromkeys(self._data, self._tell),
            "put": self._put,
            "charged": self._charge,
            "charged_again": self._charge,
            "text": self._speak,
        }

    def head(self) -> str:
        """Return the line that begins a life."""
        return _write({
            "recording": VERSION,
            "time": self._epoch + self._start,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "content": self._content,
        })  # fmt: skip

    def clock_of(self, event: Event) -> float:
        """Return when something happened, by the clock of this machine's events."""
        return event.clock if event.host is None else event.time - self._epoch

    def of(self, events: Iterable[Event]) -> list[str]:
        """Return the lines of events, in their order; data that nobody can read say nothing."""
        lines: list[str] = []
        start = self._start
        for event in events:
            kind, source = event.kind, event.source
            number = source.id
            at = (self.clock_of(event) if source.special else event.clock) - start
            if self._held and kind in _ENDS and number in self._held:
                lines.append(self._say(event, at, self._held.pop(number)))
            if kind not in self._lines:
                if kind != "missed":
                    lines.append(f'{{"e":"{kind}","t":{at:.6f},"n":{number}}}')
                continue
            try:
                lines += self._lines[kind](event, at)
            except Exception:  # noqa: BLE001 - whatever a user's program has told there
                if kind in _ENDS:
                    lines.append(_write({"e": kind, "t": round(at, 6), "n": number}))
            if kind in _ENDS and self._away:
                self._away.pop(number, None)
        return lines

    def _tell(self, event: Event, at: float) -> list[str]:
        begin = {"e": event.kind, "t": round(at, 6), "n": event.source.id}
        return [_write(begin | self._data[event.kind](event))]

    def _charge(self, event: Event, at: float) -> list[str]:
        said = {"e": "charged", "t": round(at, 6), "n": event.source.id}
        again = {"again": True} if event.kind == "charged_again" else {}
        return [*self._price(event), _write({**said, "usage": self._usage(event.data), **again})]

    def _speak(self, event: Event, at: float) -> list[str]:
        """Return the line of a piece of text, but for the last word: a key may be cut in two."""
        if not isinstance(event.data, str):
            return []
        number = event.source.id
        text = self._held.pop(number, "") + event.data
        end = max(text.rfind(" "), text.rfind("\n"), len(text) - LONGEST_WORD - 1) + 1
        if text[end:]:
            self._held[number] = text[end:]
        return [self._say(event, at, text[:end])] if end else []

    def _say(self, event: Event, at: float, text: str) -> str:
        said = {"e": "text", "t": round(at, 6), "n": event.source.id, "text": _text(text)}
        return _write(said)

    def gap(self, gap: Gap) -> str:
        """Return the line that stands for events which were lost."""
        nodes = [
            [node.node_id, node.parent_id, self._name(node.name), node.state] for node in gap.tree
        ]
        at = round(gap.clock - self._start, 6)
        missed = {"e": "gap", "t": at, "missed": gap.missed}
        return _write(missed | {"nodes": nodes, "usage": self._usage(gap.usage)})

    def end(self, clock: float, usage: dict[str, Any] | None) -> list[str]:
        """Return the last lines."""
        at = round(clock - self._start, 6)
        held = [
            _write({"e": "text", "t": at, "n": number, "text": _text(text)})
            for number, text in self._held.items()
        ]
        return [*held, _write({"e": "end", "t": at, "usage": self._usage(usage or {})})]

    # --- the kinds

    def _put(self, event: Event, at: float) -> list[str]:
        source = event.source
        name = self._quoted(source.name)
        line = f'{{"e":"put","t":{at:.6f},"n":{source.id},"p":{source.parent_id},"name":{name}'
        if not source.special:
            return [line + "}"]
        more: dict[str, Any] = {}
        actor = own_actor(event)
        if event.host is not None:
            more["host"] = event.host
            self._away[source.id] = actor
            if source.parent_id is not None and self._away.get(source.parent_id) == actor:
                actor = None
        if actor is not None:
            more["agent"] = self._name(actor.agent)
            if actor.session_id is not None:
                more["session"] = self._name(str(actor.session_id))
        if (place := place_of(event)) is not None:
            more["run"], more["id"] = self._name(place.run_id), place.identity
            if place.recorded:
                more["kept"] = True
        return [f"{line},{_write(more)[1:]}" if more else line + "}"]

    def _price(self, event: Event) -> list[str]:
        """Return lines for the prices that are not known yet."""
        lines: list[str] = []
        for model in event.data:
            if model in self._priced:
                continue
            found = self._prices.get(model)
            for limits in limits_above(event):
                if found is None and isinstance(limits, Limits) and limits.prices:
                    found = limits.prices.get(model)
            if found is not None:
                self._priced.add(model)
                cached = found.input if found.cached_input is None else found.cached_input
                price = {"input": found.input, "output": found.output, "cached_input": cached}
                lines.append(_write({"e": "price", "model": str(model), **price}))
        return lines

    def _failed(self, event: Event) -> dict[str, Any]:
        if isinstance(event.data, str):
            return {"error": {"type": type_shown(event.data) or "?"}}
        return {"error": self._error(event.data)}

    def _error(self, error: BaseException, depth: int = 3) -> dict[str, Any]:
        said: dict[str, Any] = {"type": type_name(error)}
        if at := where_raised(error):
            said["at"] = at
        if self._content:
            said["message"] = _text(_str(error))
        if isinstance(error, BaseExceptionGroup) and depth:
            inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
            said["of"] = [self._error(each, depth - 1) for each in inner[:10]]
        return said

    def _cancelled(self, event: Event) -> dict[str, Any]:
        return {"reason": _text(str(event.data))} if self._content and event.data else {}

    def _called(self, event: Event) -> dict[str, Any]:
        call: ToolCall = event.data
        said = {"tool": self._name(call.name), "call": _text(call.id), "size": len(call.text)}
        if self._content:
            said["arguments"] = _clean(call.arguments)
        return said

    def _answered(self, event: Event) -> dict[str, Any]:
        answer: ToolResult = event.data
        said = {"status": answer.status, "size": len(answer.content or "")}
        return said | ({"result": _text(answer.content or "")} if self._content else {})

    def _request(self, event: Event) -> dict[str, Any]:
        asked: Asked = event.data
        options = asked.options if self._content else dict(filter(is_plain, asked.options.items()))
        said: dict[str, Any] = {
            "q": index(asked.number),
            "provider": self._name(asked.provider),
            "model": self._name(asked.model),
            "options": _clean(dict(options)),
            "messages": asked.messages,
            "tools": [self._name(name) for name in asked.tools],
        }
        if asked.replayed:
            said["replayed"] = True
        if self._content and asked.request is not None:
            said["input"] = [_message(each) for each in _news(asked.request.messages)]
        return said

    def _reply(self, event: Event) -> dict[str, Any]:
        replied: Replied = event.data
        said: dict[str, Any] = {
            "q": index(replied.number),
            "chunks": replied.chunks,
            "usage": self._usage(replied.usage),
        }
        if replied.first_chunk is not None:
            said["first"] = round(replied.first_chunk, 6)
        if (reason := reason_of(replied, content=self._content)) is not None:
            said["finish"] = reason
        if replied.error is not None:
            said["error"] = self._error(replied.error)
        if replied.left:
            said["left"] = True
        if self._content and replied.deltas:
            message = message_of(replied)
            if message is not None:
                said["output"] = _message(message)
        return said

    def _waiting(self, event: Event) -> dict[str, Any]:
        found: Explanation = event.data
        said = {"on": list(found.waits_for), "at": found.at, "text": self._name(found.text)}
        return {name: value for name, value in said.items() if value}

    def _usage(self, usage: Mapping[str, Any]) -> dict[str, Any]:
        """Write what was spent: tokens field by field, other accounts as numbers."""
        said: dict[str, Any] = {}
        for account, amount in usage.items():
            if isinstance(amount, Usage):
                said[self._name(str(account))] = amount.model_dump(exclude_defaults=True)
            elif isinstance(amount, (int, float)):
                said[self._name(str(account))] = _plain(amount)
        return said


def _slow(event: Event) -> dict[str, Any]:
    blocked: Blocked = event.data
    return {"seconds": round(blocked.seconds, 3), "at": blocked.at}


def type_shown(text: str) -> str:
    """Return the type of an error that could not be sent to here, of what it shows there."""
    named = re.match(r"\w+(?=\()", text)
    return named[0] if named else ""


def reason_of(replied: Replied, *, content: bool) -> str | None:
    """Return how a reply has ended; a word of the server's own is content."""
    reason = replied.finish_reason
    if reason is None or reason in _REASONS:
        return reason
    return _text(reason) if content else "other"


def message_of(replied: Replied) -> Message | None:
    """Return what the model has said; None if that is nothing, or nothing that makes a message."""
    whole = replied.error is None and not replied.left
    try:
        return (assemble if whole else assemble_partial)(replied.deltas)
    except BackendError:
        return None


def _news(messages: Sequence[Message]) -> Sequence[Message]:
    """Return what the model has not been told before: what follows its own last message."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "assistant":
            return messages[place + 1 :]
    return messages


def _message(message: Message) -> dict[str, Any]:
    said: dict[str, Any] = {"role": message.role}
    if message.content:
        said["content"] = _text(message.content)
    if message.parts:
        said["parts"] = [_text(part.about) for part in message.parts]
    if message.reasoning:
        said["reasoning"] = _text(message.reasoning)
    if message.tool_calls:
        said["tool_calls"] = [
            _clean({"name": call.name, "arguments": call.text if call.error else call.arguments})
            for call in message.tool_calls
        ]
    return said


def is_plain(option: tuple[str, Any]) -> bool:
    """Say whether an option is no content: a number, or one of the wire's own words."""
    name, value = option
    words = ("auto", "none", "required", "low", "medium", "high", "minimal")
    return name != "extra" and (isinstance(value, (int, float)) or value is None or value in words)


def _str(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - it is a user's
        return f"a {type_name(error)}, which cannot be shown"


def _text(text: str) -> str:
    """Return a text without keys, cut where it is very long."""
    # Cut behind the keys: half of one would be none that is known.
    clean: str = mask(redact_keys(text[: 2 * LONGEST]))
    if len(text) <= LONGEST:
        return clean
    return f"{clean[:LONGEST]}... and {len(text) - LONGEST} more characters"


def _clean(value: Any) -> Any:
    """Return what can be written of a value, without keys."""
    return mask(_plain(value))


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > DEEPEST:
        return "..."
    match value:
        case str():
            return _text(value)
        case None | bool() | int():
            return value
        case float():
            return value if isfinite(value) else str(value)
        case Mapping():
            fields = [*islice(cast("Mapping[Any, Any]", value).items(), MOST)]
            written = {_text(str(name)): _plain(each, depth + 1) for name, each in fields}
            return written if len(fields) < MOST else {**written, "...": "and perhaps more"}
        case list() | tuple():
            items = cast("Sequence[Any]", value)
            written = [_plain(each, depth + 1) for each in items[:MOST]]
            return written if len(items) <= MOST else [*written, f"... {len(items)} in all"]
        case _:
            return f"a {type_name(value)}"


def _quoted(name: str) -> str:
    return json.dumps(_text(name))


def _write(said: dict[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))
