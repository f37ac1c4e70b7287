"""`Replay`: recognize log entries that earlier executions of a run have added already.

The journal replays recorded replies and calls, so a resumed run produces their entries again, in
other pieces and with other node numbers. The log must have each one once.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from ._run_log import EntryKind


__all__ = ["Replay"]


class _LoggedReply:
    """A reply in the log, and the number of its characters that this execution has repeated."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.text = ""
        self.repeated = 0
        self.broken = False  # it broke off, and the replay breaks it off again


class Replay:
    """Drops repeated entries, and gives new ones names that are unique in the run.

    The names come from node numbers, which are unique in one execution only, so `prefix` precedes
    them.
    """

    def __init__(self, entries: Iterable[tuple[EntryKind, Mapping[str, Any]]], prefix: str) -> None:
        self._prefix = prefix
        # The logged entries that this execution has not repeated yet: replies in order; names of
        # calls by their contents; names of answered calls; unanswered questions; reasoning.
        self._replies: deque[_LoggedReply] = deque()
        self._calls: dict[str, deque[str]] = {}
        self._answered: set[str] = set()
        self._questions: dict[str, deque[int]] = {}
        self._reasoning = ""
        self.last_question: int = 0
        # The last reply, unless it broke off. Calls may follow it.
        self._open: _LoggedReply | None = None
        # Replies and calls by their names in this execution, and the name of the last reply.
        self._repeating: dict[str, _LoggedReply] = {}
        self._renamed: dict[str, str] = {}
        self._last_reply = ""
        for kind, data in entries:
            self._remember(kind, data)

    def _remember(self, kind: EntryKind, data: Mapping[str, Any]) -> None:
        match kind:
            case "text":
                if self._open is None or self._open.name != data["speech"]:
                    self._open = _LoggedReply(data["speech"])
                    self._replies.append(self._open)
                self._open.text += data["text"]
            case "reasoning":
                self._reasoning += data["text"]
            case "broken" if self._open is not None:
                if "agent" in data:  # recorded in the journal, so it is replayed
                    self._open.broken = True
                else:  # added by `RunLog.begin_execution`: the journal lacks this reply
                    self._replies.pop()
                self._open = None
            case "called":
                self._calls.setdefault(_call_key(data), deque()).append(data["call"])
            case "answered":
                self._answered.add(data["call"])
            case "asked":
                self._questions.setdefault(_call_key(data), deque()).append(data["question"])
                self.last_question = max(self.last_question, data["question"])
            case "decided":
                for numbers in self._questions.values():
                    if data["question"] in numbers:
                        numbers.remove(data["question"])
            case _:
                pass

    @property
    def last_text(self) -> str:
        """The text of the last reply."""
        return self._replies[-1].text if self._replies else ""

    @property
    def has_open_reply(self) -> bool:
        """Whether the last reply may be unfinished."""
        return self._open is not None

    def is_interrupted(self, recorded: Iterable[str]) -> bool:
        """Return whether the open reply is not in the journal; if so, forget it.

        `recorded` are the texts of the journal's replies. The next execution repeats those.
        """
        last = self._open
        assert last is not None
        # Several replies may begin with the same text, so compare the counts.
        repeating = sum(text.startswith(last.text) for text in recorded)
        if repeating >= sum(each.text.startswith(last.text) for each in self._replies):
            return False
        self._replies.pop()
        self._open = None
        return True

    def find_question(self, data: Mapping[str, Any]) -> int | None:
        """Return the number of an unanswered question that is asked again; None for a new one."""
        numbers = self._questions.get(_call_key(data))
        return numbers.popleft() if numbers else None

    def is_new(self, kind: EntryKind, data: dict[str, Any]) -> bool:
        """Return whether an entry has new data; remove repeated text and set its names."""
        match kind:
            case "text":
                return self._is_new_text(data)
            case "reasoning":
                data["speech"] = self._prefix + data["speech"]
                before, text = self._reasoning, data["text"]
                if not _agree(before, text):  # new reasoning, or replies in another order
                    before = ""
                data["text"], self._reasoning = text[len(before) :], before[len(text) :]
                return bool(data["text"])
            case "broken":
                reply = self._repeating.pop(self._last_reply, None)
                self._last_reply = ""
                return reply is None or not (reply.broken and reply.repeated == len(reply.text))
            case "called":
                name = self._prefix + data["call"]
                before = self._calls.get(_call_key(data))
                data["call"] = self._renamed[name] = before.popleft() if before else name
                return data["call"] == name
            case "answered":
                name = self._prefix + data["call"]
                data["call"] = self._renamed.get(name, name)
                return data["call"] not in self._answered
            case _:
                return True

    def _is_new_text(self, data: dict[str, Any]) -> bool:
        name = self._last_reply = self._prefix + data["speech"]
        reply = self._repeating.get(name)
        if reply is None:
            if not self._replies or not _agree(self._replies[0].text, data["text"]):
                data["speech"] = name
                return True
            reply = self._repeating[name] = self._replies.popleft()
        data["speech"] = reply.name
        repeated = reply.text[reply.repeated : reply.repeated + len(data["text"])]
        if not data["text"].startswith(repeated):  # a new reply that began like the logged one
            data["speech"] = name
            self._repeating[name] = _LoggedReply(name)
            return True
        reply.repeated += len(repeated)
        data["text"] = data["text"][len(repeated) :]
        return bool(data["text"])


def _agree(one: str, other: str) -> bool:
    return one.startswith(other) or other.startswith(one)


def _call_key(data: Mapping[str, Any]) -> str:
    """Return a key of a call that is the same in each execution."""
    found: Sequence[Any] = [data["id"], data["name"], data["arguments"]]
    return json.dumps(cast("Any", found))
