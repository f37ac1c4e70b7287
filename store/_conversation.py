"""Durable conversations: each message is a row, written once, chained by digest to those before.

The body of a resumed job runs again from its start, and so adds its messages again. The journal
finds them by the node that adds them, and compares. Messages of nodes that do not run again are
added at their recorded position. So the messages are always in the order of their rows.

No text is stored twice: the row of a reply's message has the number of the reply's row, and the row
of a tool's result that of the effect's row. A row also names the node that added it and the nodes
above, up to the first that an earlier row names. So the messages below a node can be found, and a
row stays small however deep its node is.
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
from ..messages.compact_json import read_message, write_json, write_message
from ..tools import Illustrated, ToolResult
from ..tools.calls import read_text
from ._json import digest
from .errors import JournalError, NotDurable, NotStorable

if TYPE_CHECKING:
    from ._execution import Execution
    from ._journal_file import Row
    from ._scope import NodeScope

__all__ = ["Conversations", "DurableConversation"]

# The bytes of an identity that name a node in the row of a message: under "by", and in earlier
# versions under "above", which had all nodes above the message.
TAG_BYTES, OLD_TAG_BYTES = 8, 4
RESULT_FIELDS = ("content", "parts", "files")  # the fields of a `ToolResult` that the tool returned


class Conversations:
    """The conversations of one run, by name."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        self._open: dict[str, DurableConversation] = {}
        # By tag of a node that a row names: the tag of its parent, "" for a root.
        self._parents: dict[str, str] = {}

    def open(self, scope: NodeScope, name: str, system: str | None = None) -> DurableConversation:
        """Return the conversation of this name, with the messages before the root of `scope`."""
        conversation = self._open.get(name)
        if conversation is None:
            conversation = self._open[name] = DurableConversation(
                name, self, self._execution, self._entries.get(name, [])
            )
        conversation.apply(self._execution.first_row_number(scope.root))
        if system is not None and not len(conversation):
            conversation.add_once(
                Message(role="system", content=system), digest("talk", name, "system")
            )
        return conversation

    def catch_up(self, scope: NodeScope, until: float = inf) -> None:
        """Add the recorded messages below a node that does not run again, and all before them.

        `until` is the number of the row after which the node does run again.
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
        """Return a message without keys, as a replayed reply has none and must be equal."""
        fields = write_message(message)
        cleaned = self._execution.keys.cut(fields)
        return message if cleaned == fields else read_message(cleaned, _kind(message))

    def note_reply(self, number: int, text: bytes) -> None:
        """Note that the row of this number has the reply of a model."""
        self._sources[_digest(json.loads(text)["message"])] = number

    def note_result(self, number: int, result: Any) -> None:
        """Note that the row of this number has the result of a tool."""
        if (fields := _result_fields(result)) is not None:
            self._sources[_digest(fields)] = number

    def write(self, kind: type[Message], fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a message's row, with the number of the row that has its text."""
        if kind is Message:
            number = self._sources.get(_digest(fields))
            return {"message": fields} if number is None else {"reply": number}
        returned = {name: fields[name] for name in RESULT_FIELDS if name in fields}
        number = self._sources.get(_digest(returned))
        if number is None:
            return {"result": fields}
        return {
            "result": {k: v for k, v in fields.items() if k not in RESULT_FIELDS},
            "gave": number,
        }

    def path(self, scope: NodeScope) -> list[str]:
        """Return the tags of a node and of the nodes above, up to the first that a row names."""
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
    def _entries(self) -> dict[str, list[_RecordedMessage]]:
        found: dict[str, list[_RecordedMessage]] = {}
        rows = self._execution.rows_of_kind("message")
        texts = (
            [*self._execution.rows_of_kind("reply"), *self._execution.rows_of_kind("gave")]
            if rows
            else []
        )
        sources = {row.seq: row for row in texts}
        for row in rows:
            value = json.loads(row.value)
            entry = _RecordedMessage(row, value, sources)
            found.setdefault(value["talk"], []).append(entry)
            if "by" in value:
                self.note_path(entry.path)
        return found

    @cached_property
    def _sources(self) -> dict[bytes, int]:
        """The numbers of the rows with the text of messages, by the digest of the text."""
        found: dict[bytes, int] = {}
        for row in self._execution.rows_of_kind("reply"):
            found[_digest(json.loads(row.value)["message"])] = row.seq
        for row in self._execution.rows_of_kind("gave"):
            if (fields := _result_fields(json.loads(row.value))) is not None:
                found[_digest(fields)] = row.seq
        return found

    @cached_property
    def _last(self) -> dict[str, dict[str, int]]:
        """By conversation: the last row below each node."""
        return {name: self._last_below(entries) for name, entries in self._entries.items()}

    def _last_below(self, entries: list[_RecordedMessage]) -> dict[str, int]:
        """Return the number of the last of these rows below each node, by the node's tag."""
        last: dict[str, int] = {}
        for entry in reversed(entries):
            for tag in entry.path:
                last.setdefault(tag, entry.seq)
            above = self._parents.get(entry.path[-1]) if entry.path else None
            while above and above not in last:  # one that has a number has them above it too
                last[above] = entry.seq
                above = self._parents.get(above)
        return last


def _digest(fields: Mapping[str, Any]) -> bytes:
    return digest(write_json(fields))


def _result_fields(result: Any) -> dict[str, Any] | None:
    """Return the `ToolResult` fields of a tool's result; None for the result of `durable.call`."""
    if isinstance(result, str):
        return {"content": result}
    if not isinstance(result, dict) or "text" not in result:
        return None
    text = read_text(result)
    parts, files = (text.parts, text.files) if isinstance(text, Illustrated) else ((), ())
    fields = write_message(ToolResult(content=str(text), parts=[*parts], files=[*files]))
    return {name: fields[name] for name in RESULT_FIELDS if name in fields}


class _RecordedMessage:
    """A recorded message."""

    def __init__(self, row: Row, value: dict[str, Any], sources: Mapping[int, Row]) -> None:
        self.ident = row.ident
        self.seq = row.seq
        path, size = (
            (value["by"], TAG_BYTES) if "by" in value else (value.get("above", ""), OLD_TAG_BYTES)
        )
        # The tags of the node that added it and of the nodes above it that the row names.
        self.path = [path[start : start + 2 * size] for start in range(0, len(path), 2 * size)]
        self.after = value["after"]
        self.kind = ToolResult if "result" in value else Message
        self.fields: dict[str, Any] = value.get("result") or value.get("message") or {}
        if "gave" in value:
            self.fields |= _result_fields(json.loads(sources[value["gave"]].value)) or {}
        elif "reply" in value:
            self.fields = json.loads(sources[value["reply"]].value)["message"]


class _Messages(list[Message]):
    """The messages of a durable conversation, which can only be appended."""

    def __init__(self, conversation: DurableConversation) -> None:
        super().__init__()
        self._conversation = conversation

    def put(self, message: Message) -> None:
        """Append a recorded message."""
        super().append(message)

    def append(self, message: Message, /) -> None:
        self._conversation.add(message)

    def extend(self, messages: Iterable[Message], /) -> None:
        self._conversation.add(*messages)

    def __iadd__(self, messages: Iterable[Message], /) -> _Messages:  # type: ignore[override,misc]
        self._conversation.add(*messages)
        return self

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Raise `NotStorable` for a change."""
        raise NotStorable(
            "recorded messages of a durable conversation cannot be changed: add messages, or copy"
            " them into a plain Conversation"
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
        self,
        name: str,
        conversations: Conversations,
        execution: Execution,
        entries: list[_RecordedMessage],
    ) -> None:
        super().__init__(thread_id=f"{execution.run_id}/{name}")
        self._name = name
        self._conversations = conversations
        self._execution = execution
        self._messages = _Messages(self)
        self.messages: list[Message] = self._messages
        self._entries = entries
        self._by_ident = {entry.ident: entry for entry in entries}
        self._applied = 0  # of the entries
        # By node that has made a request and has not added the answer yet: the nodes that have
        # added an answer since.
        self._answering: dict[bytes, list[NodeScope]] = {}
        self._chain = ""
        for entry in entries:
            if entry.after != self._chain:
                raise JournalError(
                    execution.file.name,
                    f"has changed messages of {self.thread_id!r}, or in another order",
                    "it was damaged or edited: use a backup from before that",
                )
            self._chain = _chain(self._chain, entry.kind, entry.fields)

    def __setattr__(self, name: str, value: object) -> None:
        if name == "messages" and name in self.__dict__ and not isinstance(value, _Messages):
            self._messages.refuse()
        super().__setattr__(name, value)

    def request(
        self, *, tools: Sequence[ToolSchema | Mapping[str, Any]] | None = None, **options: Any
    ) -> Request:
        if (scope := scope_here()) is not None:
            self._answering[cast("NodeScope", scope).attempt_ident] = []
        return super().request(tools=tools, **options)

    def _require_one_answer(self, scope: NodeScope) -> None:
        """Refuse the second of two concurrent answers: a restart may swap them."""
        answering_nodes = self._answering.pop(scope.attempt_ident, None)
        if answering_nodes is None:
            return
        if any(each not in scope.up() and scope not in each.up() for each in answering_nodes):
            raise ConfigurationError(
                f"two nodes answer {self.thread_id!r} at once, and their order may differ after a"
                " restart: let one wait for the other, or give each its own conversation"
            )
        for each in self._answering.values():
            each.append(scope)

    def add(self, *messages: Message | Mapping[str, Any] | str) -> None:
        plain = Conversation()
        plain.add(*messages)
        scope: Any = scope_here()
        if scope is None or scope.execution is not self._execution:
            raise NotDurable(
                f"a message was added to {self.thread_id!r} outside the nodes of its run"
            )
        self._require_one_answer(scope)
        for message in map(self._conversations.clean, plain.messages):
            what = f"message {self._name}"
            if is_in_side_task():  # other tasks have no order that can be replayed
                what += _chain("", _kind(message), write_message(message))
            ident = digest(scope.attempt_ident, what, scope.number(what))
            self.add_once(message, ident, scope)

    def add_once(self, message: Message, ident: bytes, by: NodeScope | None = None) -> None:
        """Add a message, or check that it equals the recorded one."""
        kind, fields = _kind(message), write_message(message)
        entry = self._by_ident.get(ident)
        same = entry is not None and (entry.kind, write_json(entry.fields)) == (
            kind,
            write_json(fields),
        )
        # A suspended execution may add other text, such as that a call was cut off. It is lost.
        if entry is not None and (same or not self._execution.suspended):
            if not same:
                raise self._execution.park(
                    f"a message added to {self.thread_id!r} differs from the recorded one:"
                    f" {write_json(fields):.300} instead of {write_json(entry.fields):.300}"
                )
            self.apply(entry.seq, message)
            return
        self.apply(inf)
        if not self._execution.suspended:  # else the next execution adds it
            path = [] if by is None else self._conversations.path(by)
            value: dict[str, Any] = {"talk": self._name, "after": self._chain}
            value |= {"by": "".join(path)} if path else {}
            value |= self._conversations.write(kind, fields)
            self._execution.append(ident, "message", write_json(value).encode())
            self._conversations.note_path(path)
            self._chain = _chain(self._chain, kind, fields)
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
                self._messages.put(read_message(entry.fields, entry.kind))
            else:
                self._messages.put(own)


def _kind(message: Message) -> type[Message]:
    return ToolResult if isinstance(message, ToolResult) else Message


def _chain(before: str, kind: type[Message], fields: Mapping[str, Any]) -> str:
    name = "ToolResult" if kind is ToolResult else "Message"  # stored, so independent of the class
    return digest(before, name, write_json(fields)).hex()
