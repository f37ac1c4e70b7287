"""One tool call while it arrives: its pieces, its end, and what it says to the user."""

from __future__ import annotations

from collections.abc import Callable, Container
from functools import partial
from typing import Any

from ..messages import ToolCall, ToolCallDelta, ToolCallError
from ..messages.arguments import read_arguments
from ._scan import HalfKeeper, ObjectScanner, StringDecoder
from ._speech import Speech, Voice

__all__ = ["OpenCall"]


class OpenCall:
    """A call whose arguments are still coming.

    `spoken` is the key whose text is for the user and not for the tool, but for the tools in
    `keepers`: theirs is an argument like others. `fault` says why the call cannot be run, once
    that is known; `handed_on` that it went to its branch. `again` is a head that came once more
    after the whole arguments: if others follow it, it is that of another call.
    """

    __slots__ = (
        "_keepers",
        "_spoken",
        "_teller",
        "again",
        "arguments",
        "fault",
        "halves",
        "handed_on",
        "id",
        "index",
        "name",
        "raw",
        "repaired",
        "scanner",
    )

    def __init__(
        self, index: int, spoken: str | None, speech: Speech, keepers: Container[str] = ()
    ) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.raw = ""  # the arguments as they came, once they were read
        self.arguments: dict[str, Any] = {}  # all of them, the spoken one too
        self.fault: str | None = None
        self.handed_on = False
        self.repaired = False
        self.again: ToolCallDelta | None = None
        self.halves: HalfKeeper | None = None  # of the arguments, if they are not ASCII
        self._spoken = spoken
        self._keepers = keepers
        self._teller: _ToUser | None = None
        if spoken is None:
            self.scanner = ObjectScanner()
        else:
            self._teller = _ToUser(speech, waits=bool(keepers))
            self.scanner = ObjectScanner((spoken,), self._teller)

    def feed(self, arguments: str) -> bool:
        """Take more of the arguments; return whether they are whole."""
        if self.name:
            self.tell()
        return self.scanner.feed(arguments)

    def tell(self) -> None:
        """Tell the user what the call says, unless it is for the tool: its name is now known."""
        if self._teller is not None and self._teller.waits:
            self._teller.go_on(mute=self.name in self._keepers)

    def hush(self) -> None:
        """Say no more, whether or not the text for the user has an end."""
        if self._teller is not None:
            self.tell()
            self._teller.end()

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

    def repair(self, arguments: dict[str, Any]) -> None:
        """Take arguments made from `raw` by a repair."""
        self.arguments, self.fault, self.repaired = arguments, None, True

    def error(self) -> ToolCallError:
        """Return what stands in the place of a faulty call."""
        return ToolCallError(self.id or "", self.name, self.index, self.raw, self.fault or "")

    def for_tool(self) -> ToolCall:
        """Return what the tool gets: the arguments without the spoken one."""
        arguments = self.arguments
        if self._spoken in arguments and self.name not in self._keepers:
            arguments = {key: arguments[key] for key in arguments if key != self._spoken}
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


class _ToUser:
    """Passes on the text of the spoken key, decoded, as it arrives.

    While it `waits`, because the text may be for the tool, it keeps what it sees.
    """

    __slots__ = ("_decoder", "_kept", "_mute", "_speech", "_voice", "waits")

    def __init__(self, speech: Speech, *, waits: bool) -> None:
        self.waits = waits
        self._kept: list[Callable[[], None]] = []
        self._mute = False
        self._speech = speech
        self._voice: Voice | None = None
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
            self._voice = self._speech.open()

    def piece(self, raw: str) -> None:
        if self.waits:
            self._kept.append(partial(self.piece, raw))
        elif self._voice is not None and (text := self._decoder.feed(raw)):
            self._speech.say(self._voice, text)

    def end(self) -> None:
        if self.waits:
            self._kept.append(self.end)
        elif self._voice is not None:
            if left := self._decoder.end():
                self._speech.say(self._voice, left)
            self._voice.close()
            self._voice = None
