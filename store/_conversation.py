"""Durable conversations: each message is a row, written once, chained by digest to those before.

The body of a job that is resumed runs again from its start, and so adds its messages again. They
are found in the journal by the node that adds them, and compared. Messages of nodes that do not run
again are added where they were. So the messages are always in the order of their rows.

No text is stored twice: the row of a reply's message names the row of the reply, and the row of a
tool's result names that of the effect. To find the messages below a node, a row names the node that
added it and the nodes above that one, up to the first that an earlier row names. So a row stays
small however deep its node is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

from ..commander import ConfigurationError
from ..commander.durable import is_in_side_task, scope_here
from ..messages import Conversation, Message, Request, ToolSchema
from ..messages.kept import read_message, write_json, write_message
from ..tools import Illustrated, ToolResult
from ..tools.calls import read_text
from ._json import digest
from .errors import JournalError, NotDurable, NotStorable

if TYPE_CHECKING:
    from ._file import Row
    from ._scope import NodeScope
    from ._state import JournalState

__all__ = ["Conversations", "DurableConversation"]

# Bytes of an identity that name a node in the row of a message: under "by", and in earlier versions
# under "above", which had all nodes above it.
TAG_BYTES, OLD_TAG_BYTES = 8, 4
RESULT_FIELDS = ("content", "parts", "files")  # the fields of a `ToolResult` that the tool returned


class Conversations:
    """The conversations of one run, by name."""

    def __init__(self, ledger: JournalState) -> None:
        self._ledger = ledger
        self._open: dict[str, DurableConversation] = {}
        # By tag of a node that a row names: the tag of the node above it, "" at a root.
        self._parents: dict[str, str] = {}

    def open(self, scope: NodeScope, name: str, system: str | None = None) -> DurableConversation:
        """Return the one of this name, as it was when the root above `scope` began or later."""
        talk = self._open.get(name)
        if talk is None:
            talk = self._open[name] = DurableConversation(
                name, self, self._ledger, self._entries.get(name, [])
            )
        talk.apply(self._ledger.first_row(scope.root))
        if system is not None and not len(talk):
            talk.keep(Message(role="system", content=system), digest("talk", name, "system"))
        return talk

    def catch_up(self, scope: NodeScope, until: float = inf) -> None:
        """Add the recorded messages below a node that does not run again, and all before them.

        `until` is the number of the row from which on the node runs again.
        """
        if not self._entries:
            return
        tags = (scope.ident[:TAG_BYTES].hex(), scope.ident[:OLD_TAG_BYTES].hex())
        for name, last in self._last.items():
            number = max(last.get(tag, 0) for tag in tags)
            if number >= until:
                before = [entry for entry in self._entries[name] if entry.seq < until]
                last = self._last_below(before)
                number = max(last.get(tag, 0) for tag in tags)
            if number:
                self.open(scope, name).apply(number)

    def clean(self, message: Message) -> Message:
        """Return a message without keys, as a replayed reply has none and has to be equal."""
        said = write_message(message)
        cleaned = self._ledger.keys.cut(said)
        return message if cleaned == said else read_message(cleaned, _kind(message))

    def hear(self, number: int, text: bytes) -> None:
        """Note that the row of this number has the reply of a model."""
        self._sources[_digest(json.loads(text)["message"])] = number

    def note_result(self, number: int, gave: Any) -> None:
        """Note that the row of this number has the result of a tool."""
        if (fields := _result_fields(gave)) is not None:
            self._sources[_digest(fields)] = number

    def write(self, kind: type[Message], said: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a message's row; it names the row that has the text already."""
        if kind is Message:
            number = self._sources.get(_digest(said))
            return {"message": said} if number is None else {"reply": number}
        given = {name: said[name] for name in RESULT_FIELDS if name in said}
        number = self._sources.get(_digest(given))
        if number is None:
            return {"result": said}
        return {"result": {k: v for k, v in said.items() if k not in RESULT_FIELDS}, "gave": number}

    def path(self, scope: NodeScope) -> list[str]:
        """Return the tags of a node and of those above it, up to the first that a row names."""
        tags: list[str] = []
        each: Any = scope
        while each is not None and not each.is_root:
            tags.append(each.ident[:TAG_BYTES].hex())
            if tags[-1] in self._parents:
                break
            each = each.parent
        return tags

    def note_path(self, tags: Sequence[str]) -> None:
        """Note the nodes that a row names."""
        for tag, above in zip(tags, [*tags[1:], ""], strict=False):
            self._parents.setdefault(tag, above)

    @cached_property
    def _entries(self) -> dict[str, list[_Entry]]:
        found: dict[str, list[_Entry]] = {}
        rows = self._ledger.of_kind("message")
        texts = [*self._ledger.of_kind("reply"), *self._ledger.of_kind("gave")] if rows else []
        sources = {row.seq: row for row in texts}
        for row in rows:
            value = json.loads(row.value)
            entry = _Entry(row, value, sources)
            found.setdefault(value["talk"], []).append(entry)
            if "by" in value:
                self.note_path(entry.path)
        return found

    @cached_property
    def _sources(self) -> dict[bytes, int]:
        """The numbers of the rows with the text of messages, by the digest of the text."""
        found: dict[bytes, int] = {}
        for row in self._ledger.of_kind("reply"):
            found[_digest(json.loads(row.value)["message"])] = row.seq
        for row in self._ledger.of_kind("gave"):
            if (fields := _result_fields(json.loads(row.value))) is not None:
                found[_digest(fields)] = row.seq
        return found

    @cached_property
    def _last(self) -> dict[str, dict[str, int]]:
        """By conversation: the last row below each node."""
        return {name: self._last_below(entries) for name, entries in self._entries.items()}

    def _last_below(self, entries: list[_Entry]) -> dict[str, int]:
        """Return the number of the last of these rows below each node, by the node's tag."""
        last: dict[str, int] = {}
        for entry in reversed(entries):
            for tag in entry.path:
                last.setdefault(tag, entry.seq)
            above = self._parents.get(entry.path[-1]) if entry.path else None
            while above and above not in last:  # if one is known, so are all above it
                last[above] = entry.seq
                above = self._parents.get(above)
        return last


def _digest(fields: Mapping[str, Any]) -> bytes:
    return digest(write_json(fields))


def _result_fields(gave: Any) -> dict[str, Any] | None:
    """Return the `ToolResult` fields of a tool's result; None for the result of `durable.call`."""
    if isinstance(gave, str):
        return {"content": gave}
    if not isinstance(gave, dict) or "text" not in gave:
        return None
    text = read_text(gave)
    parts, files = (text.parts, text.files) if isinstance(text, Illustrated) else ((), ())
    said = write_message(ToolResult(content=str(text), parts=[*parts], files=[*files]))
    return {name: said[name] for name in RESULT_FIELDS if name in said}


class _Entry:
    """A recorded message."""

    def __init__(self, row: Row, value: dict[str, Any], sources: Mapping[int, Row]) -> None:
        self.ident = row.ident
        self.seq = row.seq
        path, size = (
            (value["by"], TAG_BYTES) if "by" in value else (value.get("above", ""), OLD_TAG_BYTES)
        )
        # The tags of the node that added it and of those above it, as far as the row has them.
        self.path = [path[start : start + 2 * size] for start in range(0, len(path), 2 * size)]
        self.after = value["after"]
        self.kind = ToolResult if "result" in value else Message
        self.said: dict[str, Any] = value.get("result") or value.get("message") or {}
        if "gave" in value:
            self.said |= _result_fields(json.loads(sources[value["gave"]].value)) or {}
        elif "reply" in value:
            self.said = json.loads(sources[value["reply"]].value)["message"]


class _Messages(list[Message]):
    """The messages of a durable conversation, which can only be appended."""

    def __init__(self, talk: DurableConversation) -> None:
        super().__init__()
        self._talk = talk

    def put(self, message: Message) -> None:
        """Append a message that has a row."""
        super().append(message)

    def append(self, message: Message, /) -> None:
        self._talk.add(message)

    def extend(self, messages: Iterable[Message], /) -> None:
        self._talk.add(*messages)

    def __iadd__(self, messages: Iterable[Message], /) -> _Messages:  # type: ignore[override,misc]
        self._talk.add(*messages)
        return self

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Raise `NotStorable` for a change."""
        raise NotStorable(
            "the messages of a durable conversation are rows, which are never changed: add to it,"
            " or go on with a plain Conversation that holds a copy of them"
        )

    __setitem__ = __delitem__ = __imul__ = insert = pop = remove = clear = reverse = refuse
    sort: Any = refuse

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)


class DurableConversation(Conversation):
    """A conversation of a run, whose messages are recorded and replayed.

    A body that runs again has to add the same messages, else `JournalMismatch`. Changing a message
    is `NotStorable`. Adding outside the nodes of the run is `NotDurable`.
    """

    def __init__(
        self, name: str, talks: Conversations, ledger: JournalState, entries: list[_Entry]
    ) -> None:
        super().__init__(thread_id=f"{ledger.run_id}/{name}")
        self._name = name
        self._talks = talks
        self._ledger = ledger
        self.messages = self._messages = _Messages(self)
        self._entries = entries
        self._by_ident = {entry.ident: entry for entry in entries}
        self._applied = 0  # of the entries
        # By node that has made a request of it and has not added the answer yet: the nodes that
        # have added an answer since.
        self._answering: dict[bytes, list[NodeScope]] = {}
        self._chain = ""
        for entry in entries:
            if entry.after != self._chain:
                raise JournalError(
                    ledger.file.name,
                    f"has the messages of {self.thread_id!r} in another order or with other words"
                    " than they were written",
                    "it was damaged or changed from outside: go on with a copy from before that",
                )
            self._chain = _chain(self._chain, entry.kind, entry.said)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "messages" and name in self.__dict__ and not isinstance(value, _Messages):
            self._messages.refuse()
        super().__setattr__(name, value)

    def request(
        self, *, tools: Sequence[ToolSchema | Mapping[str, Any]] | None = None, **options: Any
    ) -> Request:
        if (scope := scope_here()) is not None:
            self._answering[cast("NodeScope", scope).now] = []
        return super().request(tools=tools, **options)

    def _require_one_answer(self, scope: NodeScope) -> None:
        """Refuse the second of two that answer at once, as it may be the first after a restart."""
        answered = self._answering.pop(scope.now, None)
        if answered is None:
            return
        if any(each not in scope.up() and scope not in each.up() for each in answered):
            raise ConfigurationError(
                f"{self.thread_id!r} is answered by two at once, and after a restart the other"
                " one may be first, so that both would read something else: let one wait for the"
                " other, or give each a conversation of its own"
            )
        for each in self._answering.values():
            each.append(scope)

    def add(self, *messages: Message | Mapping[str, Any] | str) -> None:
        plain = Conversation()
        plain.add(*messages)
        scope: Any = scope_here()
        if scope is None or scope.ledger is not self._ledger:
            raise NotDurable(f"{self.thread_id!r} is added to outside the nodes of its run")
        self._require_one_answer(scope)
        for message in map(self._talks.clean, plain.messages):
            what = f"message {self._name}"
            if is_in_side_task():  # other tasks of the body have no reproducible order
                what += _chain("", _kind(message), write_message(message))
            ident = digest(scope.now, what, scope.number(what))
            self.keep(message, ident, scope)

    def keep(self, message: Message, ident: bytes, by: NodeScope | None = None) -> None:
        """Add a message, or check that it equals the recorded one."""
        kind, said = _kind(message), write_message(message)
        entry = self._by_ident.get(ident)
        same = entry is not None and (entry.kind, write_json(entry.said)) == (
            kind,
            write_json(said),
        )
        # A suspended execution may add other text, such as that a call was cut off: it is dropped.
        if entry is not None and (same or not self._ledger.suspended):
            if not same:
                raise self._ledger.mismatch(
                    f"what is added to {self.thread_id!r} differs from what stands there:"
                    f" {write_json(said):.300}, and there {write_json(entry.said):.300}"
                )
            self.apply(entry.seq, message)
            return
        self.apply(inf)
        if not self._ledger.suspended:  # or the next execution does it again
            path = [] if by is None else self._talks.path(by)
            value: dict[str, Any] = {"talk": self._name, "after": self._chain}
            value |= {"by": "".join(path)} if path else {}
            value |= self._talks.write(kind, said)
            self._ledger.append(ident, "message", write_json(value).encode())
            self._talks.note_path(path)
            self._chain = _chain(self._chain, kind, said)
        self._messages.put(message)

    def apply(self, number: float, own: Message | None = None) -> None:
        """Add the recorded messages up to the row of this number.

        `own` is the object of this execution for the last of them.
        """
        while self._applied < len(self._entries):
            entry = self._entries[self._applied]
            if entry.seq > number:
                return
            self._applied += 1
            if own is None or entry.seq != number:
                self._messages.put(read_message(entry.said, entry.kind))
            else:
                self._messages.put(own)


def _kind(message: Message) -> type[Message]:
    return ToolResult if isinstance(message, ToolResult) else Message


def _chain(before: str, kind: type[Message], said: Mapping[str, Any]) -> str:
    name = "ToolResult" if kind is ToolResult else "Message"  # whatever the class is called now
    return digest(before, name, write_json(said)).hex()
