"""An interrupted call: its messages, tool calls and results, read from its journal entries."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...dispatch.assembly import STOPPED
from ...messages import Message
from ...messages.kept import read_message
from ...tools import ToolResult
from ._executor import INTERRUPTED
from ._message import TOOLS, AgentMessage
from ._state import read_records

if TYPE_CHECKING:
    from ...store import RunView

__all__ = ["InterruptedCall", "read_interrupted_call"]


class InterruptedCall(NamedTuple):
    """What a call that was cut had said, done and heard; nothing of it runs again.

    A tool call whose end is not recorded is answered as interrupted. The text of an incomplete
    reply is the last message that it said, in state "failed". Behind it come steering messages that
    no request had.

    `begun` has the tools that ran after each text reply, by the id of the message: their names, and
    what they gave, None if that is not recorded.
    """

    said: list[AgentMessage]
    begun: dict[int, list[tuple[str, str | None]]]


def read_interrupted_call(view: RunView, name: str) -> InterruptedCall:
    """Return what the agent `name` had said, done and heard in the last call of a session."""
    began = max(row.seq for row in view.rows if row.kind == "root")
    said: list[AgentMessage] = []
    told: dict[str, list[AgentMessage]] = defaultdict(list)  # by the call that was told it
    rounds: list[tuple[Message, dict[str, deque[bytes]]]] = []  # the tools begun, by their name
    behind: dict[int, list[bytes]] = {}  # the tools begun behind a text, by the id of its message
    latest: list[bytes] | None = None  # those of the last reply
    gave: dict[bytes, str] = {}
    names: dict[bytes, str] = {}
    for row in view.rows:
        if row.seq < began:
            continue
        if row.kind == "intent":
            names[row.ident] = json.loads(row.value)["name"]
            if not rounds and latest is not None:
                latest.append(row.ident)
            elif rounds:
                rounds[-1][1].setdefault(names[row.ident], deque()).append(row.ident)
        elif row.kind in ("gave", "failed"):
            value = json.loads(row.value)
            failed = f"The call failed: {value}" if row.kind == "failed" else json.dumps(value)
            gave[row.ident] = value if isinstance(value, str) else failed
        elif row.kind == "note":
            value: Any = json.loads(row.value)
            if "message" in value:
                told[value["of"]] += read_records([value["message"]])
            elif "heard" in value:
                numbers: list[int] = value["heard"]
                heard = {id(each): each for each in (told[value["of"]][each] for each in numbers)}
                # What came of no request was heard by a later one.
                said = [*(each for each in said if id(each) not in heard), *heard.values()]
        elif row.kind == "reply" and all(each in gave for each in names):
            # Else it is one of an agent that a tool has called.
            message = read_message(json.loads(row.value)["message"])
            if message.tool_calls:
                rounds.append((message, {}))
                parts = AgentMessage(
                    content=message.content or "", sender=name, formatted=[message], type=TOOLS
                )
                said.append(parts)
            else:
                refused = {"refusal": message.refusal} if message.refusal else {}
                status = (
                    {"status": message.finish_reason} if message.finish_reason in STOPPED else {}
                )
                said.append(
                    AgentMessage(
                        content=message.content or message.refusal or "",
                        sender=name,
                        extra={**status, **refused},
                        reasoning=message.reasoning,
                        provider_items=message.provider_items,
                    )
                )
                latest = behind[id(said[-1])] = []
    _answer([each for each in said if each.type == TOOLS], rounds, gave)
    partial = "".join(each.text for each in view.partials[-1:] if each.number > began)
    if partial:
        said.append(AgentMessage(content=partial, sender=name, stream_state="failed"))
    ids = {id(each) for each in said}
    said += (each for call in told.values() for each in call if id(each) not in ids)
    begun = {
        number: [(names[ident], gave.get(ident)) for ident in idents]
        for number, idents in behind.items()
    }
    return InterruptedCall(said, begun)


def _answer(
    said: Sequence[AgentMessage],
    rounds: Sequence[tuple[Message, dict[str, deque[bytes]]]],
    gave: dict[bytes, str],
) -> None:
    """Put the results behind their calls."""
    for each, (message, begun) in zip(said, rounds, strict=True):
        for call in message.tool_calls:
            idents: Any = begun.get(call.name)
            text = gave.get(idents.popleft()) if idents else None
            status = "failed" if text is None else "ok"
            each.formatted.append(ToolResult.of(call, text or INTERRUPTED, status))
