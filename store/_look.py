"""What a run is about, read from its rows by somebody who does not drive it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any, NamedTuple

from ._file import ENDED, Letter, Row, RunRow
from ._gone import child_name
from ._rows import FIRST

__all__ = ["Partial", "RunView", "Wait", "is_abandoned", "view"]


class Wait(NamedTuple):
    """Something that a run waits for."""

    kind: str
    """"approval" or "doubt", which a person answers; "signal"; "sleep"; "retry"."""
    name: str
    """Of the tool or of the signal."""
    number: int
    """Of the row that says so; approvals and doubts are answered by it."""
    until: float | None
    """When the wait ends by itself, in seconds since the epoch; None if it does not."""
    type: str = ""
    """Of the signal, as its wait was annotated."""


class Partial(NamedTuple):
    """A reply that grows, or that was cut and is asked for again when the run goes on."""

    number: int
    """Of the last row of it."""
    text: str
    """What has been said so far."""
    time: float
    """When the last of it was written, in seconds since the epoch."""


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A run and all that its journal has of it, at one moment."""

    run: RunRow
    abandoned: bool
    """Whether it counts as running though the process that had it is gone."""
    rows: list[Row]
    letters: list[Letter]
    """What was sent to it, taken or not."""
    refused: dict[int, str]
    """Of what was sent and does not fit what was waited for: why, by the letter's number."""
    waits: list[Wait]
    """Oldest first; empty for a run that is over."""
    names: dict[bytes, str]
    """Of the nodes, effects and questions that the rows belong to, as far as they say it."""
    gone: list[str]
    """What is in the journal and was not come to again, as the code has changed; by whom."""
    result: bytes | None
    """What its first root gave, as JSON."""
    error: str | None
    """Why it failed, was cancelled or was parked."""
    usage: dict[str, dict[str, float]]
    """What the replies in its rows have taken, by model: summed counts."""
    partials: list[Partial]
    """What replies that are not whole have said so far, if `Journal(partials=)` asked for that."""


def view(run: RunRow, rows: list[Row], letters: list[Letter]) -> RunView:
    """Read what the rows of a run say."""
    names = {FIRST: run.class_name}
    ends: dict[str, Row] = {}
    refused: dict[int, str] = {}
    gone: list[str] = []
    usage: dict[str, dict[str, float]] = {}
    for row in rows:
        value: Any = json.loads(row.value) if row.value else None
        if name := child_name(row.ident):
            names[row.ident] = name
        elif row.kind in ("root", "intent", "question", "waits", "refused"):
            names[row.ident] = _name(value) or value["kind"]
        if row.kind == "refused":
            refused[value["id"]] = f"{value['why']} (it is to be {value['type']})"
        elif row.kind == "gone":
            gone.append(f"{value['by']}: {', '.join(value['what'])}")
        elif row.kind in ("reply", "broken", "spent"):
            for model, spent in (value["said"] if row.kind == "broken" else value)["taken"]:
                total = usage.setdefault(model, {})
                for name, count in spent.items():
                    if isinstance(count, int | float):
                        total[name] = total.get(name, 0) + count
        elif row.ident == FIRST and row.kind in ("result", "failure", "cancelled"):
            ends[row.kind] = row
    last = max(ends.values(), key=lambda row: row.seq, default=None)
    error = None if run.error is None else run.error.decode()
    if error is None and run.state in ENDED and last is not None and last.kind != "result":
        error = _why(last)
    return RunView(
        run=run,
        abandoned=is_abandoned(run),
        rows=rows,
        letters=letters,
        refused=refused,
        gone=gone,
        waits=[] if run.state in ENDED else _waits(rows, letters),
        names=names,
        result=last.value if last is not None and last.kind == "result" else None,
        error=error,
        usage=usage,
        partials=[] if run.state in ENDED else _partials(rows),
    )


def is_abandoned(run: RunRow) -> bool:
    """Say whether a run that counts as running has lost its process, of this machine."""
    host, _, pid = run.owner.rpartition(":")
    # On Windows this call would end the process that it asks about.
    if run.state != "running" or host != socket.gethostname() or sys.platform == "win32":
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        pass
    return False


def _waits(rows: list[Row], letters: list[Letter]) -> list[Wait]:
    """Return what has been asked or begun, and not ended."""
    waiting: dict[bytes, Wait] = {}
    for row in rows:
        if row.kind in ("letter", "withdrawn", "result", "failure", "cancelled"):
            waiting.pop(row.ident, None)
        elif row.kind in ("question", "waits", "attempt"):
            value = json.loads(row.value)
            kind = "retry" if row.kind == "attempt" else value["kind"]
            until = value.get("until", value.get("due"))
            waiting[row.ident] = Wait(kind, _name(value), row.seq, until, value.get("type", ""))
    for each in letters:
        if each.kind == "answer":
            waiting.pop(bytes.fromhex(each.name), None)
    now = time.time()
    return [each for each in waiting.values() if each.until is None or each.until > now]


def _partials(rows: list[Row]) -> list[Partial]:
    growing: dict[bytes, Partial] = {}
    for row in rows:
        if row.kind == "partial":
            value = json.loads(row.value)
            before = growing[row.ident].text if value["at"] else ""
            growing[row.ident] = Partial(row.seq, before + value["text"], row.time)
        elif row.kind == "reply":
            growing.pop(row.ident, None)
    return [each for each in growing.values() if each.text]


def _name(value: dict[str, Any]) -> str:
    return value.get("class") or value.get("tool") or value.get("name") or ""


def _why(row: Row) -> str:
    value: Any = json.loads(row.value)
    if row.kind == "failure":
        return f"{value['type'][1]}: {value['message']}"
    reason: str = value["reason"]
    return f"cancelled: {reason}" if reason else "cancelled"
