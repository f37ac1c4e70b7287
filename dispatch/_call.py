"""One tool call while it arrives: its pieces, its end, and what it says to the user."""

from __future__ import annotations

import json
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from ..messages import ToolCall, ToolCallDelta, ToolCallError
from ..messages.arguments import read_arguments
from ..messages.text import SurrogateJoiner
from ._scan import ObjectScanner, StringDecoder
from ._user_text import TextOrigin, UserText

__all__ = ["OpenCall"]

_LONGEST_NAME = 1024  # of a tool; more of it is dropped, or each piece would copy all that came


class OpenCall:
    """A call whose arguments are still coming.

    `to_user` is the argument whose text is for the user and not for the tool, but for the tools
    named in `exempt`: theirs is an argument like others. `fault` says why the call cannot be run,
    once that is known; `handed_on` that it went to its branch. `again` is a head that came once
    more after the whole arguments: if others follow it, it is that of another call.
    """

    __slots__ = (
        "_exempt",
        "_to_user",
        "_user_part",
        "again",
        "arguments",
        "fault",
        "handed_on",
        "held",
        "id",
        "index",
        "joiner",
        "name",
        "raw",
        "repaired",
        "repeats",
        "scanner",
    )

    def __init__(
        self,
        index: int,
        to_user: str | None,
        texts: UserText,
        exempt: Container[str] = (),
        repeats: OpenCall | None = None,
    ) -> None:
        self.index = index
        self.repeats = repeats
        self.held: list[ToolCallDelta] = []
        self.id: str | None = None
        self.name = ""
        self.raw = ""  # the arguments as they came, once they were read
        self.arguments: dict[str, Any] = {}  # all of them, also the one for the user
        self.fault: str | None = None
        self.handed_on = False
        self.repaired = False
        self.again: ToolCallDelta | None = None
        self.joiner: SurrogateJoiner | None = None  # of the arguments, if they are not ASCII
        self._to_user = to_user
        self._exempt = exempt
        self._user_part: _UserPart | None = None
        if to_user is None:
            self.scanner = ObjectScanner()
        else:
            self._user_part = _UserPart(texts, waits=bool(exempt) or repeats is not None)
            self.scanner = ObjectScanner((to_user,), self._user_part)

    def take_name(self, name: str | None) -> None:
        """Take the name, which may be cut into pieces, all before the arguments.

        One that is repeated adds nothing.
        """
        if name and self.name != name and not (self.name and self.scanner.parts):
            self.name = (self.name + name)[:_LONGEST_NAME]
            if self.scanner.parts:
                self.settle_name()

    def settle_name(self) -> None:
        """Pass the text for the user on, unless it is for the tool: the name is now whole."""
        if self._user_part is not None and self._user_part.waits and self.repeats is None:
            self._user_part.go_on(mute=self.name in self._exempt)

    def feed(self, arguments: str) -> bool:
        """Take more of the arguments; return whether they are whole."""
        if self.name:
            self.settle_name()
        return self.scanner.feed(arguments)

    def end_text(self) -> None:
        """End the text for the user, whether or not it is whole."""
        if self._user_part is not None:
            self.settle_name()
            self._user_part.end()

    def read(self, *, truncated: bool = False) -> None:
        """Read the arguments, which are whole or will never be; `truncated` says which.

        Text after the object does not count: the call may have been handed on before it came.
        """
        sent = self.scanner.raw
        whole = sent[: self.scanner.end] if self.scanner.done else sent
        self.raw = whole
        self.arguments, self.fault = read_arguments(whole, self.scanner.deepest)
        if self.fault is not None:
            self.raw = sent
        if truncated and not sent.strip():
            self.fault = "the reply broke off before its arguments"
        if not self.name:
            self.fault = "it names no tool"

    def is_repeated(self, *, truncated: bool = False) -> bool:
        """Return whether this is the call that it `repeats`, or the beginning of it."""
        before = self.repeats
        assert before is not None, "only such a call may be another one"
        self.read()
        if truncated:
            return before.raw.startswith(self.raw)
        if self.fault is not None or before.fault is not None:
            return self.raw == before.raw
        return json.dumps(self.arguments) == json.dumps(before.arguments)

    def repair(self, arguments: dict[str, Any]) -> None:
        """Take arguments made from `raw` by a repair."""
        self.arguments, self.fault, self.repaired = arguments, None, True

    def error(self) -> ToolCallError:
        """Return what stands in the place of a faulty call."""
        return ToolCallError(self.id or "", self.name, self.index, self.raw, self.fault or "")

    def for_tool(self) -> ToolCall:
        """Return what the tool gets: the arguments without the one for the user."""
        arguments = self.arguments
        if self._to_user in arguments and self.name not in self._exempt:
            arguments = {key: arguments[key] for key in arguments if key != self._to_user}
        return self._with(arguments)

    def for_message(self) -> ToolCall:
        """Return the call as it stands in the message: as it was sent."""
        after = self.scanner.raw[self.scanner.end :] if self.scanner.done else ""
        sound = self.fault is None and not self.repaired
        return self._with(self.arguments, after if sound and after.isspace() else "")

    def _with(self, arguments: dict[str, Any], space: str = "") -> ToolCall:
        return ToolCall(
            id=self.id or "",
            name=self.name,
            arguments=arguments,
            index=self.index,
            raw=self.raw + space,
            error=self.fault,
            repaired=self.repaired,
        )


class _UserPart:
    """Passes the text of the argument for the user on, decoded, as it arrives.

    While it `waits`, because the text may be for the tool, it keeps what it sees.
    """

    __slots__ = ("_decoder", "_kept", "_mute", "_origin", "_texts", "waits")

    def __init__(self, texts: UserText, *, waits: bool) -> None:
        self.waits = waits
        self._kept: list[Callable[[], None]] = []
        self._mute = False
        self._texts = texts
        self._origin: TextOrigin | None = None
        self._decoder = StringDecoder()

    def go_on(self, *, mute: bool) -> None:
        """End the wait: pass on what was kept and what comes, or none of it."""
        self.waits, self._mute = False, mute
        kept, self._kept = self._kept, []
        for step in kept:
            step()

    def start(self, key: str, kind: str) -> None:
        if self.waits:
            self._kept.append(partial(self.start, key, kind))
        elif kind == '"' and not self._mute:
            self._origin = self._texts.begin()

    def piece(self, raw: str) -> None:
        if self.waits:
            self._kept.append(partial(self.piece, raw))
        elif self._origin is not None and (text := self._decoder.feed(raw)):
            self._texts.add(self._origin, text)

    def end(self) -> None:
        if self.waits:
            self._kept.append(self.end)
        elif self._origin is not None:
            if left := self._decoder.end():
                self._texts.add(self._origin, left)
            self._texts.end(self._origin)
            self._origin = None
