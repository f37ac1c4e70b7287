"""The saved memories of an agent and all below it: what is written, and how it is read again."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from ...commander.errors import ConfigurationError
from ...messages.text import encodable
from ._memory import OWN, read_records
from ._message import TOOLS, AgentMessage

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["mark_own", "read_state"]

logger = logging.getLogger("anabranch.agents")

# A key of a mapping as earlier releases wrote it into a path.
_HALF = re.compile(r"\.([^.\[\]]*[\ud800-\udfff][^.\[\]]*)")


def mark_own(agent: Agent[Any], records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark the messages that the agent has said, so that another of its place knows them."""
    for record in records:
        if record["sender"] == agent.name:
            record[OWN] = True
    return records


def read_state(
    owner: Agent[Any], agents: Mapping[str, Agent[Any]], state: Mapping[str, Any], *, strict: bool
) -> tuple[dict[str, list[AgentMessage]], list[str]]:
    """Return the messages that a state has for each of `agents`, and the paths of what was dropped.

    With `strict` nothing is dropped: whatever does not fit is a `ConfigurationError`.
    """
    if not isinstance(state, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(f"a state is a mapping, not {state!r:.200}")
    state = {_path_now(key): records for key, records in state.items()}
    unknown = sorted(state.keys() - agents.keys(), key=str)
    if strict and (missing := sorted(agents.keys() - state.keys())):
        raise ConfigurationError(f"the state lacks {missing}")
    if strict and unknown:
        raise ConfigurationError(f"{owner.name} has nothing of the state's {unknown}")
    dropped = [str(key) for key in unknown]
    restored: dict[str, list[AgentMessage]] = {}
    for key, agent in agents.items():
        records = state.get(key, [])
        if strict:
            found: list[AgentMessage | None] = [*read_records(records)]
        else:
            found = _read_loosely(records, key, dropped.append)
        messages = [message for message in found if message is not None]
        given = cast("list[dict[str, Any]]", records if found else [])
        own = [bool(each.get(OWN)) for each, read in zip(given, found, strict=True) if read]
        _claim(agent, messages, own)
        for place, message in enumerate(found):
            if message is not None and not agent.restore_formatted(message, strict=strict):
                dropped.append(f"{key}[{place}].formatted")
        restored[key] = messages
    return restored, dropped


def _read_loosely(
    records: Any, key: str, drop: Callable[[str], object]
) -> list[AgentMessage | None]:
    """Read what can be read of saved messages; None stands for one that cannot."""
    if not isinstance(records, list | tuple):
        drop(key)
        return []
    return [
        _read_one(record, f"{key}[{place}]", drop)
        for place, record in enumerate(cast("list[Any]", records))
    ]


def _read_one(record: Any, path: str, drop: Callable[[str], object]) -> AgentMessage | None:
    fields = dict(cast("Mapping[str, Any]", record)) if isinstance(record, Mapping) else {}
    unfit: set[Any] = fields.keys() - {*AgentMessage.model_fields, OWN}
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


def _claim(agent: Agent[Any], messages: list[AgentMessage], own: list[bool]) -> None:
    """Let the agent have what was said in its place, whatever name it had when it was saved."""
    name = agent.name
    if any(mine and each.sender != name for each, mine in zip(messages, own, strict=True)):
        for each, mine in zip(messages, own, strict=True):
            if mine:
                each.sender = name
            elif each.sender == name:
                each.sender = f"another {name}"
    others = {each.sender for each in messages} - {"user", "memory"}
    if agent.backend is not None and others and name not in others and not any(own):
        logger.warning(
            "the state that %s has loaded has nothing that %s said, but messages of %s, which its"
            " model reads as the user's: was the agent called so when it was saved?",
            name,
            name,
            ", ".join(sorted(others)),
        )


def _path_now(key: Any) -> Any:
    """Return a path as it is written now: an earlier release left half a surrogate pair in it."""
    if not isinstance(key, str) or encodable(key) is key:
        return key
    return _HALF.sub(lambda found: f"[{found[1]!r}]", key)
