"""An interrupted call: its messages, tool calls and results, read from its journal entries."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ...dispatch.assembly import STOPPED
from ...messages import Message
from ...messages.compact_json import read_message
from ...tools import ToolResult
from ._executor import INTERRUPTED
from ._message import TOOLS, AgentMessage, reply_message
from ._state import read_records

if TYPE_CHECKING:
    from ...store import RunView

__all__ = ["InterruptedCall", "read_interrupted_call"]


class InterruptedCall(NamedTuple):
    """The messages of an interrupted call. Nothing of it runs again.

    A tool call without a recorded end has the result "interrupted". The text of an incomplete reply
    is a last message of the agent, in state "failed". The steering messages that no request
    delivered follow it.

    `tools` has the tools that ran after each text reply, by the id of the message: their names and
    their results, None if not recorded.

    `has_passed` is whether the guards of the call have passed its input. Without that there are no
    messages, and the input must not be remembered.
    """

    messages: list[AgentMessage]
    tools: dict[int, list[tuple[str, str | None]]]
    has_passed: bool = True

    def up_to_tools(self) -> InterruptedCall:
        """Return the part that had effects: up to the last message whose tools have begun."""
        used = (n for n, each in enumerate(self.messages, 1) if self._has_tools(each))
        return self._replace(messages=self.messages[: max(used, default=0)])

    def _has_tools(self, message: AgentMessage) -> bool:
        return message.type == TOOLS or bool(self.tools.get(id(message)))


def read_interrupted_call(view: RunView, name: str, *, has_guards: bool) -> InterruptedCall:
    """Return the messages of the agent `name` in the last call of a session.

    Replies of guards and of agents that tools have called are not its messages. With `has_guards`
    it needs an entry that these have passed.
    """
    start = max(row.seq for row in view.rows if row.kind == "root")
    messages: list[AgentMessage] = []
    steered: dict[str, list[AgentMessage]] = defaultdict(list)  # by the call that received them
    # Each reply with tool calls, and the calls that began after it, by the tool's name.
    rounds: list[tuple[Message, dict[str, deque[bytes]]]] = []
    # The calls that began after a text reply, by the id of its message; and those of the last one.
    after_text: dict[int, list[bytes]] = {}
    latest: list[bytes] | None = None
    results: dict[bytes, str] = {}
    names: dict[bytes, str] = {}
    # The results of agents that are tools, by the tool's name and the request.
    answers: dict[tuple[str, str], deque[str]] = defaultdict(deque)
    # The number of messages before each gate of guards that have not passed, and if it is inner.
    gates: dict[str, tuple[int, bool]] = {"": (0, False)} if has_guards else {}
    aside = {row.seq for row in view.rows if b'"aside"' in row.value and _is_aside(row.value)}
    for row in view.rows:
        if row.seq < start or row.seq in aside:
            continue
        if row.kind == "intent":
            gates.clear()  # no tool begins before the guards have passed
            names[row.ident] = json.loads(row.value)["name"]
            if not rounds and latest is not None:
                latest.append(row.ident)
            elif rounds:
                rounds[-1][1].setdefault(names[row.ident], deque()).append(row.ident)
        elif row.kind in ("gave", "failed"):
            value = json.loads(row.value)
            failed = f"The call failed: {value}" if row.kind == "failed" else json.dumps(value)
            results[row.ident] = value if isinstance(value, str) else failed
        elif row.kind == "note":
            value: Any = json.loads(row.value)
            if "guards" in value:
                if not value["inner"]:
                    gates.pop("", None)
                if value["guards"] == "begun":
                    gates[value["of"]] = len(messages), value["inner"]
                else:
                    gates.pop(value["of"], None)
            elif "request" in value:
                answers[value["tool"], value["request"]].append(value["result"])
            elif "message" in value:
                steered[value["of"]] += read_records([value["message"]])
            elif "heard" in value:
                numbers: list[int] = value["heard"]
                delivered = {
                    id(each): each for each in (steered[value["of"]][each] for each in numbers)
                }
                # The request may have failed. Then a later one delivered the messages, and counts.
                messages = [
                    *(each for each in messages if id(each) not in delivered),
                    *delivered.values(),
                ]
        elif row.kind == "reply" and all(each in results for each in names):
            # Else a tool is running: this is a reply to an agent that the tool has called.
            message = read_message(json.loads(row.value)["message"])
            is_cut = message.finish_reason in STOPPED
            status = {"status": message.finish_reason} if is_cut else {}
            messages.append(reply_message(message, name, **status))
            if message.tool_calls:
                rounds.append((message, {}))
            else:
                latest = after_text[id(messages[-1])] = []
    _answer([each for each in messages if each.type == TOOLS], rounds, results, answers)
    if any(not is_inner for _, is_inner in gates.values()):
        return InterruptedCall([], {}, has_passed=False)
    if gates:  # those of an agent to which a handoff went
        messages = messages[: min(count for count, _ in gates.values())]
    growing = [each for each in view.partials if each.number > start and each.number not in aside]
    partial = "" if gates else "".join(each.text for each in growing[-1:])
    if partial:
        messages.append(AgentMessage(content=partial, sender=name, stream_state="failed"))
    ids = {id(each) for each in messages}
    messages += (each for call in steered.values() for each in call if id(each) not in ids)
    tools = {
        number: [(names[ident], results.get(ident)) for ident in idents]
        for number, idents in after_text.items()
    }
    return InterruptedCall(messages, tools)


def _is_aside(value: bytes) -> bool:
    found: Any = json.loads(value)
    return isinstance(found, dict) and bool(cast("dict[str, Any]", found).get("aside"))


def _answer(
    messages: Sequence[AgentMessage],
    rounds: Sequence[tuple[Message, dict[str, deque[bytes]]]],
    results: dict[bytes, str],
    answers: dict[tuple[str, str], deque[str]],
) -> None:
    """Add the results after their calls."""
    for each, (message, calls) in zip(messages, rounds, strict=True):
        for call in message.tool_calls:
            idents: Any = calls.get(call.name)
            text = results.get(idents.popleft()) if idents else None
            if not idents and text is None:
                given = answers.get((call.name, str(call.arguments.get("request"))))
                text = given.popleft() if given else None
            status = "failed" if text is None else "ok"
            each.output.append(ToolResult.of(call, text or INTERRUPTED, status))
