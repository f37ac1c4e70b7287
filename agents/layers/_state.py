"""Saved memories of one agent and of a tree of agents: messages as JSON, and back."""

from __future__ import annotations

import json
import logging
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import fields, is_dataclass
from math import isfinite
from operator import is_
from typing import TYPE_CHECKING, Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import to_jsonable_python

from ...commander.errors import ConfigurationError
from ...messages import Message
from ...messages.text import encodable
from ...tools import ToolResult
from ._message import STORED_OUTPUT, TOOLS, AgentMessage, StoredOutput, own_output
from ._parsers import Parser, parse_reply

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = [
    "fit_json",
    "fit_keys",
    "json_value",
    "mark_own",
    "output_json",
    "read_again",
    "read_records",
    "read_state",
    "saved_fields",
]

logger = logging.getLogger("anabranch.agents")

# Earlier releases wrote a mapping key into a path unchanged, even with half a surrogate pair.
_HALF = re.compile(r"\.([^.\[\]]*[\ud800-\udfff][^.\[\]]*)")

# In a saved state, beside the fields of a message: true if its agent is the sender.
OWN_MARK = "own"

# Beside the fields of a saved message: true if its text restores the output, and its JSON does not.
FROM_TEXT = "output_from_text"

STORED_FIELDS = {"output", "formatted", *AgentMessage.model_fields, OWN_MARK, FROM_TEXT}

SURROGATE_ERROR = "surrogates not allowed"  # in the text of Python's ValueError


def mark_own(agent: Agent[Any], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the agent's own messages, so that an agent with another name recognizes them."""
    for record in records:
        if record["sender"] == agent.name:
            record[OWN_MARK] = True
    return records


def read_state(
    owner: Agent[Any],
    agents: Mapping[str, Agent[Any]],
    state: Mapping[str, Any],
    *,
    strict: bool,
    keep_outputs: bool = False,
) -> tuple[dict[str, list[AgentMessage]], list[str]]:
    """Return the messages of a state for each of `agents`, and the paths of dropped values.

    With `strict` nothing is dropped: a value that does not fit is a `ConfigurationError`. With
    `keep_outputs`, an output that does not fit becomes None, and stays in the next state.
    """
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a state must be a mapping, not {state!r:.200}")
    state = {_current_path(key): records for key, records in state.items()}
    unknown = sorted(state.keys() - agents.keys(), key=str)
    if strict and (missing := sorted(agents.keys() - state.keys())):
        raise ConfigurationError(f"the state lacks {missing}")
    if strict and unknown:
        raise ConfigurationError(f"{owner.name} has no memories for {unknown} of the state")
    dropped = [str(key) for key in unknown]
    restored: dict[str, list[AgentMessage]] = {}
    for key, agent in agents.items():
        records = state.get(key, [])
        if strict:
            found: list[AgentMessage | None] = [*read_records(records)]
        else:
            found = _read_loosely(records, key, dropped.append)
        messages = [message for message in found if message is not None]
        mappings = cast("list[dict[str, Any]]", records if found else [])
        marks = [
            bool(each.get(OWN_MARK)) for each, read in zip(mappings, found, strict=True) if read
        ]
        _restore_own(agent, messages, marks)
        for place, message in enumerate(found):
            if message is not None and not agent.restore_output(
                message, strict=strict and not keep_outputs, keep=keep_outputs
            ):
                dropped.append(f"{key}[{place}].output")
        restored[key] = messages
    return restored, dropped


def _read_loosely(
    records: Any, key: str, drop: Callable[[str], object]
) -> list[AgentMessage | None]:
    """Read the saved messages that fit; None stands for any other."""
    if not isinstance(records, list | tuple):
        drop(key)
        return []
    return [
        _read_one(record, f"{key}[{place}]", drop)
        for place, record in enumerate(cast("list[Any]", records))
    ]


def _read_one(record: Any, path: str, drop: Callable[[str], object]) -> AgentMessage | None:
    fields = dict(cast("Mapping[str, Any]", record)) if isinstance(record, Mapping) else {}
    unfit: set[Any] = fields.keys() - STORED_FIELDS
    while True:
        for name in sorted(unfit, key=str):
            drop(f"{path}.{name}")
            del fields[name]
        try:
            return read_records([fields])[0]
        except ConfigurationError as error:
            cause = error.__cause__
            faults = cause.errors() if isinstance(cause, ValidationError) else []
            unfit = {fault["loc"][0] for fault in faults if fault["loc"]} & fields.keys()
            if not unfit or "content" in unfit or fields.get("type") == TOOLS:
                drop(path)
                return None


def _restore_own(agent: Agent[Any], messages: list[AgentMessage], marks: list[bool]) -> None:
    """Rename the sender of the agent's own messages to its present name.

    `marks` says which messages are its own. A message of another sender with that name gets another
    sender, so that the model does not read it as the agent's.
    """
    name = agent.name
    if any(is_own and each.sender != name for each, is_own in zip(messages, marks, strict=True)):
        for each, is_own in zip(messages, marks, strict=True):
            if is_own:
                each.sender = name
            elif each.sender == name:
                each.sender = f"another {name}"
    others = {each.sender for each in messages} - {"user", "memory"}
    if agent.backend is not None and others and name not in others and not any(marks):
        logger.warning(
            "The state that %s loaded has no messages of its own, but messages of %s, which its"
            " model reads as the user's. Had the agent another name when the state was saved?",
            name,
            ", ".join(sorted(others)),
        )


def _current_path(key: Any) -> Any:
    """Return a path in its present form. An earlier release left half surrogate pairs in it."""
    if not isinstance(key, str) or encodable(key) is key:
        return key
    return _HALF.sub(lambda found: f"[{found[1]!r}]", key)


def saved_fields(message: AgentMessage) -> Iterator[tuple[str, Any]]:
    """Yield the fields to store; `reasoning` and `provider_items` only if set.

    Earlier releases do not know these two.
    """
    for name, value in message:
        if name == "output":
            stored: StoredOutput | None = vars(message).get(STORED_OUTPUT)
            if stored is None or output_json(own_output(message)) != stored.json:
                yield "formatted", own_output(message)
                continue
            yield "formatted", stored.stored
            if stored.from_text:
                yield FROM_TEXT, True
        elif name != "usage" and (value or name not in ("reasoning", "provider_items")):
            yield name, value


def output_json(output: object) -> Any:
    """Return an output as JSON values, None for one with a serializer that fails."""
    try:
        return json_value(output)
    except Exception:  # noqa: BLE001 - of a serializer of the application
        return None


def json_value(value: object) -> Any:
    """Return a value as JSON values."""
    try:
        result = to_jsonable_python(value, fallback=str, bytes_mode="base64")
    except ValueError as error:
        if SURROGATE_ERROR not in str(error):
            raise
        fitted = fit_keys(value)
        result = to_jsonable_python(fitted, fallback=str, bytes_mode="base64")
    try:  # nearly all values fit, and this test is many times faster than the walk of `fit_json`
        json.dumps(result, allow_nan=False, ensure_ascii=False).encode()
    except ValueError:
        return fit_json(result)
    return result


def fit_json(value: Any) -> Any:
    """Return JSON values that every reader of JSON accepts.

    JSON has no infinity, so that becomes text, which pydantic reads. UTF-8 has no half surrogate
    pair, which a tool or a terminal may produce, so that becomes U+FFFD.
    """
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return _fit_items(cast("dict[Any, Any]", value), fit_json)
    if isinstance(value, list):
        return [fit_json(each) for each in cast("list[Any]", value)]
    return value


def fit_keys(value: Any) -> Any:
    """Return a value whose keys pydantic can write, without half surrogate pairs.

    A value without half pairs is returned itself.
    """
    if isinstance(value, dict):
        mapping = cast("dict[Any, Any]", value)
        fitted_mapping = _fit_items(mapping, fit_keys)
        return (
            mapping
            if _same(fitted_mapping, mapping) and _same(fitted_mapping.values(), mapping.values())
            else fitted_mapping
        )
    if isinstance(value, list | tuple | deque):
        values = cast("Iterable[Any]", value)
        items = [fit_keys(each) for each in values]
        if _same(items, values):
            return values
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, BaseModel):
        changed = {name: fit for name, each in value if (fit := fit_keys(each)) is not each}
        return value.model_copy(update=changed) if changed else value
    if is_dataclass(value) and not isinstance(value, type):
        declared = {each.name: getattr(value, each.name, None) for each in fields(value)}
        changed = {
            name: fit for name, each in declared.items() if (fit := fit_keys(each)) is not each
        }
        fitted = copy(value) if changed else value
        for name, fit in changed.items():
            object.__setattr__(fitted, name, fit)
        return fitted
    return value


def _same(one: Iterable[Any], other: Iterable[Any]) -> bool:
    return all(map(is_, one, other))


def _fit_items(value: dict[Any, Any], fit: Callable[[Any], Any]) -> dict[Any, Any]:
    """Return a mapping with keys that JSON accepts; keys that would become equal stay distinct."""
    fitted: dict[Any, Any] = {}
    for key, each in value.items():
        if isinstance(key, str) and (name := encodable(key)) is not key:
            while name in value or name in fitted:
                name += "\N{REPLACEMENT CHARACTER}"
            key = name
        fitted[key] = fit(each)
    return fitted


def read_again(parser: Parser[Any], text: str, saved: object, status: str | None) -> Any:
    """Return the parser's value of a reply, given the saved JSON of that value.

    JSON may lack fields of the value, or name them differently. So the result is the value parsed
    from the text, if it has the same JSON, else the value that the parser restores from the JSON.
    Raises `ValueError` if neither works.
    """
    with suppress(ValueError):  # a subclass may have parsed another text than this one
        value = parse_reply(parser, text, status)
        if json_value(value) == saved:
            return value
    return parser.restore(saved)


def read_records(records: Iterable[Mapping[str, Any]]) -> list[AgentMessage]:
    """Return the saved messages; raise `ConfigurationError` for another value."""
    messages: list[AgentMessage] = []
    try:
        if not isinstance(records, (list, tuple)):
            raise TypeError(f"a list of messages was expected, not {records!r:.200}")
        for record in cast("Sequence[Mapping[str, Any]]", records):
            if not isinstance(record, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise TypeError(f"a message was expected, not {record!r:.200}")
            # pydantic alone would accept any mapping, and silently drop unknown fields.
            if unknown := record.keys() - STORED_FIELDS:
                raise ValueError(f"unknown fields {', '.join(sorted(map(repr, unknown)))}")
            if "content" not in record:
                raise ValueError("a message must have a 'content'")
            message: AgentMessage = AgentMessage.model_validate(record)
            if record.get(FROM_TEXT):
                vars(message)[STORED_OUTPUT] = StoredOutput(message.output, message.output, True)
            if message.type == TOOLS:
                parts = [Message.model_validate(part) for part in message.output]
                message.output = [
                    ToolResult.model_validate(saved) if part.role == "tool" else part
                    for part, saved in zip(parts, message.output, strict=True)
                ]
            messages.append(message)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"this is not a saved memory ({str(error).splitlines()[0]})"
        ) from error
    return messages
