"""Records: events as JSON values, for recordings, live traces and streams of a server.

A recording has one record on each line. The first record of each execution identifies its process
and has its start as `time`; each `t` is in seconds since then. `n` is the number of a node and `p`
that of its parent; the commander has number 0.

    {"recording": 1, "time": 1790000000.5, "pid": 12, "host": "box", "content": false}
    {"e": "put", "t": 0.001, "n": 1, "p": 0, "name": "Answer", "agent": "writer", "session": 7,
     "run": "order-A", "id": "9f...", "kept": true, "host": "other"}
                                               kept: its outcome comes from the journal
    {"e": "started", "t": 0.002, "n": 1}       also joining, completed
    {"e": "failed", "t": 0.1, "n": 1, "error": {"type": "ValueError", "at": "app.py:9 in task"}}
                                               also retried; cancelled may have a "reason"
    {"e": "placed", "t": .., "n": 1, "host": "other"}
    {"e": "request", .., "q": 5, "provider": "openai", "model": "m", "options": {}, "messages": 3,
     "tools": ["search"], "replayed": true}
    {"e": "first_chunk", .., "q": 5}
    {"e": "reply", .., "q": 5, "first": 0.4, "chunks": 12, "usage": {"m": {..}}, "finish": "stop",
     "error": {..}, "left": true}              left: the reply was not read to its end
    {"e": "charged", .., "usage": {"m": {"input_tokens": 9, ..}}, "again": true}
                                               again: an earlier execution has paid for it
    {"e": "price", "model": "m", "input": 1.0, "output": 4.0, "cached_input": 0.1}
    {"e": "called", .., "tool": "search", "call": "c1", "size": 12}     characters of its arguments
    {"e": "answered", .., "status": "ok", "size": 90}                   characters of its result
    {"e": "waiting", .., "on": [4, 5], "at": "app.py:9 in task", "text": "is running, awaits .."}
    {"e": "slow", .., "seconds": 0.3, "at": "app.py:9 in task"}
    {"e": "gap", "t": .., "missed": 9, "nodes": [[1, 0, "Answer", "running"]], "usage": {..}}
    {"e": "end", "t": .., "usage": {..}}

With content there are also "message" in errors, "reason", "input" and "output" of requests,
"arguments" and "result" of calls, and records of kind "text". API keys are masked everywhere. Empty
fields are left out.
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
from typing import Any, TypeAlias, cast

from pydantic_core import PydanticSerializationError, to_json

from ..backends import Price, redact_keys
from ..backends.limits import Limits
from ..commander import Actor, Blocked, Event, EventKind, Explanation
from ..commander.errors import BackendError
from ..commander.tap import limits_above, own_actor, run_identity_of, type_name, where_raised
from ..dispatch.assembly import assemble, assemble_partial
from ..messages import Message, ReplyEvent, RequestEvent, ToolCall, Usage
from ..messages.mask import mask
from ..tools import ToolResult
from ._event_thread import Gap

__all__ = [
    "CONTENT_KINDS",
    "FIRST_BYTES",
    "RECORDED_KINDS",
    "RECORDING_VERSION",
    "Record",
    "Records",
    "error_message",
    "is_plain_option",
    "masked_json",
    "masked_text",
    "reply_message",
    "safe_finish_reason",
    "to_line",
    "type_in_repr",
]

Record: TypeAlias = dict[str, Any]

RECORDING_VERSION = 1
# The first bytes of each recording.
FIRST_BYTES = b'{"recording":'

RECORDED_KINDS: tuple[EventKind, ...] = (
    "put", "started", "joining", "completed", "failed", "cancelled", "retried", "placed", "charged",
    "charged_again", "called", "answered", "request", "first_chunk", "reply", "waiting", "slow",
)  # fmt: skip
CONTENT_KINDS: tuple[EventKind, ...] = (*RECORDED_KINDS, "text")

# Longer texts, lists and objects are cut, and so are values that are nested more deeply.
MAX_TEXT_CHARS = 20_000
MAX_ITEMS = 1000
MAX_NESTED_VALUES = 50
# Python does not read integers of more than 4,300 digits from text.
MAX_INTEGER_BITS = 10_000
# API keys are shorter, so a longer word can be masked in two parts.
MAX_KEY_CHARS = 512
# Finish reasons of the wire. Any other text of a server is content.
_FINISH_REASONS = ("stop", "length", "tool_calls", "function_call", "content_filter", "error")
# Kinds without data.
_BARE_KINDS = ("started", "joining", "completed")
# Kinds that end a node or an attempt.
_END_KINDS = ("completed", "failed", "cancelled", "retried")


def to_line(record: Record) -> str:
    """Return a record as one line of a recording, without the line break."""
    try:
        return to_json(record).decode()
    except PydanticSerializationError:  # it cannot encode a single surrogate
        return json.dumps(record, separators=(",", ":"))


class Records:
    """Turns the events of one commander into records; without `content` they contain no text."""

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
        self._name = lru_cache(4096)(masked_text)  # few names, each in many events
        self._quoted_name = lru_cache(4096)(_quoted)
        # The unfinished last word of each node's text. It may be the beginning of an API key, which
        # is recognized and masked only when it is complete.
        self._last_words: dict[int, str] = {}
        # The agent of each open node on another machine.
        self._remote: dict[int, Actor | None] = {}
        # Kinds that are not listed have no data. For `missed`, `gap` makes the record.
        self._makers: dict[str, Callable[[Event, Record], Iterable[Record]] | None] = {
            "missed": None,
            "put": self._put,
            "placed": lambda event, record: [record | {"host": masked_text(event.data)}],
            "charged": self._charge,
            "charged_again": self._charge,
            "failed": self._fail,
            "retried": self._fail,
            "cancelled": self._cancel,
            "called": self._call,
            "answered": self._answer,
            "request": self._request,
            "first_chunk": lambda event, record: [record | {"q": _integer(event.data)}],
            "reply": self._reply,
            "waiting": self._wait,
            "slow": _slow,
            "text": self._text,
        }

    def first(self) -> Record:
        """Return the first record of an execution."""
        return {
            "recording": RECORDING_VERSION,
            "time": self._epoch + self._start,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "content": self._content,
        }

    def clock_of(self, event: Event) -> float:
        """Return the time of an event by this process's clock; other machines have other clocks."""
        return event.clock if event.host is None else event.time - self._epoch

    def of(self, events: Iterable[Event]) -> list[Record]:
        """Return the records of events, in order; an event with unreadable data has none."""
        records: list[Record] = []
        add, start, makers = records.append, self._start, self._makers
        for event in events:
            kind, source = event.kind, event.source
            # Only a special source can have a place, an actor or a run.
            clock = self.clock_of(event) if source.is_special else event.clock
            # Three times as fast as `round`, with the same result for times after the start.
            at = int((clock - start) * 1e6 + 0.5) / 1e6
            record: Record = {"e": kind, "t": at, "n": source.id}
            if kind in _END_KINDS and (self._last_words or self._remote):
                if text := self._last_words.pop(source.id, ""):
                    add(_text_record(record, text))
                self._remote.pop(source.id, None)
            if kind not in makers:
                add(record)
            elif (make := makers[kind]) is not None:
                try:
                    records += make(event, record)
                except Exception:  # noqa: BLE001 - a user's program can emit any data
                    if kind in _END_KINDS:
                        add(record)
        return records

    def lines(self, events: Iterable[Event]) -> list[str]:
        """Return the records of events as lines of a recording.

        It formats the most frequent kinds directly: a recording then costs a node 7 % less time
        than with `of` and `to_line` (`benchmarks/tracing.py`).
        """
        lines: list[str] = []
        start, name_of = self._start, self._quoted_name
        ends_matter = self._last_words or self._remote
        for event in events:
            kind, source = event.kind, event.source
            if kind == "put" and not source.is_special:
                name = name_of(source.name)
                at, parent = event.clock - start, source.parent_id
                lines.append(
                    f'{{"e":"put","t":{at:.6f},"n":{source.id},"p":{parent},"name":{name}}}'
                )
            elif kind in _BARE_KINDS and not (source.is_special or ends_matter):
                lines.append(f'{{"e":"{kind}","t":{event.clock - start:.6f},"n":{source.id}}}')
            else:
                lines += [to_line(each) for each in self.of((event,))]
                ends_matter = self._last_words or self._remote
        return lines

    def gap(self, gap: Gap) -> Record:
        """Return the record that replaces lost events."""
        nodes = [
            [node.node_id, node.parent_id, self._name(node.name), node.state] for node in gap.tree
        ]
        at = round(gap.clock - self._start, 6)
        missed = {"e": "gap", "t": at, "missed": gap.missed}
        return missed | {"nodes": nodes, "usage": self._usage(gap.usage)}

    def end(self, clock: float, usage: Mapping[str, Any] | None) -> list[Record]:
        """Return the last records."""
        at = round(clock - self._start, 6)
        words = [
            _text_record({"t": at, "n": number}, text) for number, text in self._last_words.items()
        ]
        return [*words, {"e": "end", "t": at, "usage": self._usage(usage or {})}]

    # --- one method for each kind

    def _put(self, event: Event, record: Record) -> list[Record]:
        source = event.source
        record["p"], record["name"] = source.parent_id, self._name(source.name)
        if not source.is_special:
            return [record]
        actor = own_actor(event)
        if event.host is not None:
            record["host"] = event.host
            self._remote[source.id] = actor
            # Each event of another machine names the agent. Record it only at the agent's own node.
            if source.parent_id is not None and self._remote.get(source.parent_id) == actor:
                actor = None
        if actor is not None:
            record["agent"] = self._name(actor.agent)
            if actor.session_id is not None:
                record["session"] = self._name(str(actor.session_id))
        if (place := run_identity_of(event)) is not None:
            record["run"], record["id"] = self._name(place.run_id), place.identity
            if place.recorded:
                record["kept"] = True
        return [record]

    def _charge(self, event: Event, record: Record) -> list[Record]:
        again = {"again": True} if event.kind == "charged_again" else {}
        record |= {"e": "charged", "usage": self._usage(event.data), **again}
        return [*self._new_prices(event), record]

    def _new_prices(self, event: Event) -> list[Record]:
        records: list[Record] = []
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
                records.append({"e": "price", "model": str(model), **price})
        return records

    def _fail(self, event: Event, record: Record) -> list[Record]:
        if isinstance(event.data, str):
            return [record | {"error": {"type": type_in_repr(event.data) or "?"}}]
        return [record | {"error": self._error(event.data)}]

    def _error(self, error: BaseException, depth: int = 3) -> Record:
        found: Record = {"type": type_name(error)}
        if at := where_raised(error):
            found["at"] = at
        if self._content:
            found["message"] = masked_text(error_message(error))
        if isinstance(error, BaseExceptionGroup) and depth:
            inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
            found["of"] = [self._error(each, depth - 1) for each in inner[:10]]
        return found

    def _cancel(self, event: Event, record: Record) -> list[Record]:
        if self._content and event.data:
            return [record | {"reason": masked_text(str(event.data))}]
        return [record]

    def _call(self, event: Event, record: Record) -> list[Record]:
        call: ToolCall = event.data
        name, call_id = self._name(call.name), masked_text(call.id)
        arguments = {"arguments": masked_json(call.arguments)} if self._content else {}
        return [record | {"tool": name, "call": call_id, "size": len(call.text), **arguments}]

    def _answer(self, event: Event, record: Record) -> list[Record]:
        answer: ToolResult = event.data
        text = answer.content or ""
        result = {"result": masked_text(text)} if self._content else {}
        return [record | {"status": masked_text(answer.status), "size": len(text), **result}]

    def _request(self, event: Event, record: Record) -> list[Record]:
        asked: RequestEvent = event.data
        options = asked.options if self._content else filter(is_plain_option, asked.options.items())
        record |= {
            "q": _integer(asked.number),
            "provider": self._name(asked.provider),
            "model": self._name(asked.model),
            "options": masked_json(dict(options)),
            "messages": _integer(asked.messages),
            "tools": [self._name(name) for name in asked.tools],
        }
        if asked.replayed:
            record["replayed"] = True
        if self._content and asked.request is not None:
            record["input"] = [_message(each) for each in _new_messages(asked.request.messages)]
        return [record]

    def _reply(self, event: Event, record: Record) -> list[Record]:
        replied: ReplyEvent = event.data
        record |= {
            "q": _integer(replied.number),
            "chunks": _integer(replied.chunks),
            "usage": self._usage(replied.usage),
        }
        if replied.first_chunk is not None:
            record["first"] = round(replied.first_chunk, 6)
        if (reason := safe_finish_reason(replied, content=self._content)) is not None:
            record["finish"] = reason
        if replied.error is not None:
            record["error"] = self._error(replied.error)
        if replied.left:
            record["left"] = True
        if self._content and replied.deltas and (message := reply_message(replied)) is not None:
            record["output"] = _message(message)
        return [record]

    def _wait(self, event: Event, record: Record) -> list[Record]:
        found: Explanation = event.data
        details = {"on": [*found.waits_for], "at": found.at, "text": self._name(found.text)}
        return [record | {name: value for name, value in details.items() if value}]

    def _text(self, event: Event, record: Record) -> list[Record]:
        if not isinstance(event.data, str):
            return []
        number = event.source.id
        text = self._last_words.pop(number, "") + event.data
        end = max(text.rfind(" "), text.rfind("\n"), len(text) - MAX_KEY_CHARS - 1) + 1
        if text[end:]:
            self._last_words[number] = text[end:]
        return [_text_record(record, text[:end])] if end else []

    def _usage(self, usage: Mapping[str, Any]) -> Record:
        """Return the usage of each model by field, and amounts in other units as numbers."""
        found: Record = {}
        for account, amount in usage.items():
            if isinstance(amount, Usage):
                found[self._name(str(account))] = amount.model_dump(exclude_defaults=True)
            elif isinstance(amount, (int, float)):
                found[self._name(str(account))] = _plain(amount)
        return found


def _slow(event: Event, record: Record) -> list[Record]:
    blocked: Blocked = event.data
    return [record | {"seconds": round(blocked.seconds, 3), "at": blocked.at}]


def _integer(value: Any) -> int:
    if (number := index(value)).bit_length() > MAX_INTEGER_BITS:
        raise ValueError("a count must be smaller")
    return number


def _text_record(record: Record, text: str) -> Record:
    return {**record, "e": "text", "text": masked_text(text)}


def type_in_repr(text: str) -> str:
    """Return the type of an error from another machine: only its `repr` arrived."""
    named = re.match(r"\w+(?=\()", text)
    return named[0] if named else ""


def safe_finish_reason(replied: ReplyEvent, *, content: bool) -> str | None:
    """Return why a reply ended; without `content`, "other" for an unknown text of the server."""
    reason = replied.finish_reason
    if reason is None or reason in _FINISH_REASONS:
        return reason
    return masked_text(reason) if content else "other"


def reply_message(replied: ReplyEvent) -> Message | None:
    """Return the model's message; None if its deltas do not form one."""
    complete = replied.error is None and not replied.left
    try:
        return (assemble if complete else assemble_partial)(replied.deltas)
    except BackendError:
        return None


def _new_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages after the model's last one: earlier requests contain the others."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "assistant":
            return messages[place + 1 :]
    return messages


def _message(message: Message) -> Record:
    found: Record = {"role": message.role}
    if message.content:
        found["content"] = masked_text(message.content)
    if message.parts:
        found["parts"] = [masked_text(part.about) for part in message.parts]
    if message.reasoning:
        found["reasoning"] = masked_text(message.reasoning)
    if message.tool_calls:
        found["tool_calls"] = [
            masked_json(
                {"name": call.name, "arguments": call.text if call.error else call.arguments}
            )
            for call in message.tool_calls
        ]
    return found


def is_plain_option(option: tuple[str, Any]) -> bool:
    """Return whether an option can be recorded without `content`: a number or a fixed word."""
    name, value = option
    words = ("auto", "none", "required", "low", "medium", "high", "minimal")
    return name != "extra" and (isinstance(value, (int, float)) or value is None or value in words)


def error_message(error: BaseException) -> str:
    """Return the message of an error, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a user's class
        return f"{type_name(error)} without a readable message"


def masked_text(text: str) -> str:
    """Return a text with masked keys, cut after `MAX_TEXT_CHARS`."""
    # Mask before the cut, because a part of a key would not be recognized.
    clean: str = mask(redact_keys(text[: 2 * MAX_TEXT_CHARS]))
    if len(text) <= MAX_TEXT_CHARS:
        return clean
    return f"{clean[:MAX_TEXT_CHARS]}... and {len(text) - MAX_TEXT_CHARS} more characters"


def masked_json(value: Any) -> Any:
    """Return any value as JSON values with masked keys."""
    return mask(_plain(value))


def _quoted(name: str) -> str:
    return json.dumps(masked_text(name))


def _plain(value: Any, depth: int = 0) -> Any:
    if depth > MAX_NESTED_VALUES:
        return "..."
    match value:
        case str():
            return masked_text(value)
        case None | bool():
            return value
        case int():
            return (
                value
                if value.bit_length() <= MAX_INTEGER_BITS
                else f"an integer of {value.bit_length()} bits"
            )
        case float():
            return value if isfinite(value) else str(value)
        case Mapping():
            fields = [*islice(cast("Mapping[Any, Any]", value).items(), MAX_ITEMS)]
            found = {masked_text(str(name)): _plain(each, depth + 1) for name, each in fields}
            return found if len(fields) < MAX_ITEMS else {**found, "...": "and perhaps more"}
        case list() | tuple():
            items = cast("Sequence[Any]", value)
            found = [_plain(each, depth + 1) for each in items[:MAX_ITEMS]]
            return found if len(items) <= MAX_ITEMS else [*found, f"... {len(items)} in all"]
        case _:
            return f"a {type_name(value)}"
