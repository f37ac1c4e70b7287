"""Durable conversations: each message is a row, written once, chained by digest to those before.

The body of a job that is taken up runs again from its start, and so adds its messages again: they
are found in the journal, by who adds them, and compared. What was added by nodes that do not run
again is applied where it stood. So the messages always stand in the order of their rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NoReturn, SupportsIndex, cast

from ..commander import ConfigurationError
from ..commander.scope import is_aside_here, scope_here
from ..messages import Conversation, Message, Request, ToolSchema
from ..messages.kept import read_message, write_json, write_message
from ..tools import ToolResult
from ._canonical import digest
from .errors import JournalError, NotDurable, NotStorable

if TYPE_CHECKING:
    from ._file import Row
    from ._ledger import Ledger
    from ._scope import NodeScope

__all__ = ["KeptConversation", "Talks"]

TAG = 4  # bytes of an identity that say who is above the adder of a message


class Talks:
    """The conversations of one run, by name."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._open: dict[str, KeptConversation] = {}
        # The row of each reply, by its message, for messages that are replies.
        self._heard: dict[bytes, int] = {}

    def open(self, scope: NodeScope, name: str, system: str | None = None) -> KeptConversation:
        """Return the one of this name as it was when the root above `scope` began, or later."""
        talk = self._open.get(name)
        if talk is None:
            talk = self._open[name] = KeptConversation(
                name, self, self._ledger, self._entries.get(name, [])
            )
        talk.apply(self._ledger.first_row(scope.root))
        if system is not None and not len(talk):
            talk.keep(Message(role="system", content=system), digest("talk", name, "system"), "")
        return talk

    def catch_up(self, scope: NodeScope, until: float = inf) -> None:
        """Apply what was added below a node and is not added again, and all before that.

        `until` is the number of the row from which on the node runs again.
        """
        if not self._entries:
            return
        tag = scope.ident[:TAG].hex()
        for name, entries in self._entries.items():
            below = (entry.seq for entry in entries if tag in entry.above and entry.seq < until)
            if last := max(below, default=0):
                self.open(scope, name).apply(last)

    def clean(self, message: Message) -> Message:
        """Return a message without keys: a reply is played without them, and has to be the same."""
        said = write_message(message)
        cleaned = self._ledger.keys.cut(said)
        return message if cleaned == said else read_message(cleaned, _kind(message))

    def hear(self, number: int, text: bytes) -> None:
        """Take note of a reply that was kept in the row of this number."""
        self._heard[_digest(json.loads(text)["message"])] = number

    def find_reply(self, fields: Mapping[str, Any]) -> int | None:
        """Return the number of the row of the reply that this message is."""
        self._entries  # noqa: B018 - which hears what is in the journal
        return self._heard.get(_digest(fields))

    @cached_property
    def _entries(self) -> dict[str, list[_Entry]]:
        replies: dict[int, dict[str, Any]] = {}
        for row in self._ledger.of_kind("reply"):
            replies[row.seq] = json.loads(row.value)["message"]
            self._heard[_digest(replies[row.seq])] = row.seq
        found: dict[str, list[_Entry]] = {}
        for row in self._ledger.of_kind("message"):
            value = json.loads(row.value)
            found.setdefault(value["talk"], []).append(_Entry(row, value, replies))
        return found


def _digest(fields: Mapping[str, Any]) -> bytes:
    return digest(write_json(fields))


class _Entry:
    """A message that the journal has."""

    def __init__(self, row: Row, value: dict[str, Any], replies: dict[int, dict[str, Any]]) -> None:
        self.ident = row.ident
        self.seq = row.seq
        above: str = value.get("above", "")
        self.above = {above[start : start + 2 * TAG] for start in range(0, len(above), 2 * TAG)}
        self.after = value["after"]
        self.kind = ToolResult if "result" in value else Message
        said = value.get("result") or value.get("message")
        self.said: dict[str, Any] = replies[value["reply"]] if said is None else said


class _Messages(list[Message]):
    """The messages of a durable conversation: more can be added, none changed."""

    def __init__(self, talk: KeptConversation) -> None:
        super().__init__()
        self._talk = talk

    def put(self, message: Message) -> None:
        """Append one that is a row."""
        super().append(message)

    def append(self, message: Message, /) -> None:
        self._talk.add(message)

    def extend(self, messages: Iterable[Message], /) -> None:
        self._talk.add(*messages)

    def __iadd__(self, messages: Iterable[Message], /) -> _Messages:  # type: ignore[override,misc]
        self._talk.add(*messages)
        return self

    def refuse(self, *_: object, **__: object) -> NoReturn:
        """Refuse to be edited."""
        raise NotStorable(
            "the messages of a durable conversation are rows, which are never changed: add to it,"
            " or go on with a plain Conversation that holds a copy of them"
        )

    __setitem__ = __delitem__ = __imul__ = insert = pop = remove = clear = reverse = refuse
    sort: Any = refuse

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        return list, (list(self),)


class KeptConversation(Conversation):
    """A conversation of a run: what is added to it is kept, and found again when the run goes on.

    What a body adds again must be what it added before, else it is `JournalMismatch`. Its messages
    cannot be changed in place: `NotStorable`. Adding outside the run's nodes is `NotDurable`.
    """

    def __init__(self, name: str, talks: Talks, ledger: Ledger, entries: list[_Entry]) -> None:
        super().__init__(thread_id=f"{ledger.run_id}/{name}")
        self._name = name
        self._talks = talks
        self._ledger = ledger
        self.messages = self._messages = _Messages(self)
        self._entries = entries
        self._by_ident = {entry.ident: entry for entry in entries}
        self._applied = 0  # of the entries
        # Those that have made a request of it and not added the answer yet, by who they are; with
        # each of them, who has added an answer meanwhile.
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
        self, *, tools: Sequence[ToolSchema | Mapping[str, Any]] = (), **options: Any
    ) -> Request:
        if (scope := scope_here()) is not None:
            self._answering[cast("NodeScope", scope).now] = []
        return super().request(tools=tools, **options)

    def _require_one_answer(self, scope: NodeScope) -> None:
        """Refuse the second of two that answer at once: in another life it may be the first."""
        answered = self._answering.pop(scope.now, None)
        if answered is None:
            return
        if any(each not in scope.up() and scope not in each.up() for each in answered):
            raise ConfigurationError(
                f"{self.thread_id!r} is answered by two at once, and in another life the other one"
                " may be first, so that both would read something else: let one wait for the"
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
        above: list[str] = []
        each = scope
        while each is not None and not each.is_root:
            above.append(each.ident[:TAG].hex())
            each = each.parent
        for message in map(self._talks.clean, plain.messages):
            what = f"message {self._name}"
            if is_aside_here():  # tasks beside the body have no order that would come again
                what += _chain("", _kind(message), write_message(message))
            ident = digest(scope.now, what, scope.number(what))
            self.keep(message, ident, "".join(above))

    def keep(self, message: Message, ident: bytes, above: str) -> None:
        """Add a message, if it does not stand there already from an earlier life."""
        kind, said = _kind(message), write_message(message)
        entry = self._by_ident.get(ident)
        same = entry is not None and (entry.kind, write_json(entry.said)) == (
            kind,
            write_json(said),
        )
        # A life that is suspended may come to other words, as that a call was cut: they are gone.
        if entry is not None and (same or not self._ledger.suspended):
            if not same:
                raise self._ledger.mismatch(
                    f"what is added to {self.thread_id!r} differs from what stands there:"
                    f" {write_json(said):.300}, and there {write_json(entry.said):.300}"
                )
            self.apply(entry.seq, message)
            return
        self.apply(inf)
        if not self._ledger.suspended:  # else it is not: this is done again in the next life
            number = self._talks.find_reply(said)
            value: dict[str, Any] = {"talk": self._name, "after": self._chain}
            value |= {"above": above} if above else {}
            if number is not None and kind is Message:
                value["reply"] = number
            else:
                value["result" if kind is ToolResult else "message"] = said
            self._ledger.append(ident, "message", write_json(value).encode())
            self._chain = _chain(self._chain, kind, said)
        self._messages.put(message)

    def apply(self, number: float, own: Message | None = None) -> None:
        """Let all stand there that was added up to the row of this number.

        `own` is what the last of them was made of in this life.
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
    return digest(before, kind.__name__, write_json(said)).hex()
