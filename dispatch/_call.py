"""One tool call while its arguments arrive, and the text for the user in these."""

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

# The rest of a tool's name is dropped: each piece copies the name, which would be quadratic.
_MAX_NAME_CHARS = 1024


class OpenCall:
    """A call whose arguments are still arriving.

    `to_user` names the argument whose text is for the user and not for the tool. For the tools in
    `exempt` it is a normal argument. `fault` is the reason why the call cannot run, once known.
    `handed_on` is set when the branch has the call. `again` is a repeated head that came
    after the complete arguments: if more arguments follow, it began another call. `repeats` is the
    earlier call that this one may be a copy of. Until that is known, `held_pieces` has its pieces.
    """

    __slots__ = (
        "_exempt",
        "_to_user",
        "_user_part",
        "again",
        "arguments",
        "fault",
        "handed_on",
        "held_pieces",
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
        self.index: int = index
        self.repeats: OpenCall | None = repeats
        self.held_pieces: list[ToolCallDelta] = []
        self.id: str | None = None
        self.name: str = ""
        self.raw: str = ""  # the arguments as JSON text, set by `read`
        self.arguments: dict[str, Any] = {}  # including the one for the user
        self.fault: str | None = None
        self.handed_on: bool = False
        self.repaired: bool = False
        self.again: ToolCallDelta | None = None
        self.joiner: SurrogateJoiner | None = None  # set once half a surrogate pair has come
        self._to_user = to_user
        self._exempt = exempt
        self._user_part: _UserPart | None = None
        if to_user is None:
            self.scanner: ObjectScanner = ObjectScanner()
        else:
            # The text waits until the name is known, which may be exempt, and until the call is
            # known to be no copy: the user has already seen the text of the first one.
            self._user_part = _UserPart(texts, waits=bool(exempt) or repeats is not None)
            self.scanner = ObjectScanner((to_user,), self._user_part)

    def take_name(self, name: str | None) -> None:
        """Take the name or a piece of it; ignore a repeated name.

        A name in pieces is complete before the arguments begin.
        """
        if name and self.name != name and not (self.name and self.scanner.parts):
            self.name = (self.name + name)[:_MAX_NAME_CHARS]
            if self.scanner.parts:
                self.settle_name()

    def settle_name(self) -> None:
        """Take the name as complete: release the text for the user, or mute it if exempt."""
        if self._user_part is not None and self._user_part.waits and self.repeats is None:
            self._user_part.release(mute=self.name in self._exempt)

    def feed(self, arguments: str) -> bool:
        """Take more of the arguments; return whether they are complete."""
        if self.name:  # a name is complete when the arguments begin
            self.settle_name()
        return self.scanner.feed(arguments)

    def end_text(self) -> None:
        """End the text for the user, complete or not."""
        if self._user_part is not None:
            self.settle_name()
            self._user_part.end()

    def read(self, *, truncated: bool = False) -> None:
        """Parse the arguments, and set `fault` if they are invalid or the name is missing.

        `truncated`: the reply broke off, so an incomplete object stays incomplete. Text after the
        object is ignored, because the call may have been handed on before that text arrived.
        """
        sent = self.scanner.raw
        whole = sent[: self.scanner.end] if self.scanner.done else sent
        self.raw = whole
        self.arguments, self.fault = read_arguments(whole, self.scanner.deepest)
        if self.fault is not None:
            self.raw = sent  # a repair sees everything that the model sent
        if truncated and not sent.strip():
            self.fault = "the reply broke off before its arguments"
        if not self.name:
            self.fault = "it names no tool"

    def is_repeated(self, *, truncated: bool = False) -> bool:
        """Return whether this is a copy of the call that it `repeats`, or the beginning of one."""
        before = self.repeats
        assert before is not None, "only such a call may be another one"
        self.read()
        if truncated:
            return before.raw.startswith(self.raw)
        if self.fault is not None or before.fault is not None:
            return self.raw == before.raw
        return json.dumps(self.arguments) == json.dumps(before.arguments)

    def repair(self, arguments: dict[str, Any]) -> None:
        """Replace the arguments by those that a repair returned."""
        self.arguments, self.fault, self.repaired = arguments, None, True

    def error(self) -> ToolCallError:
        """Return the error that replaces a faulty call in its branch."""
        return ToolCallError(self.id or "", self.name, self.index, self.raw, self.fault or "")

    def for_tool(self) -> ToolCall:
        """Return the call for the tool, without the argument for the user."""
        arguments = self.arguments
        if self._to_user in arguments and self.name not in self._exempt:
            arguments = {key: arguments[key] for key in arguments if key != self._to_user}
        return self._with(arguments)

    def for_message(self) -> ToolCall:
        """Return the call for the message, with the arguments exactly as the model sent them."""
        # White space behind the object is part of the text that the model sent.
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
    """Decodes the argument for the user and passes its text on as it arrives.

    While it `waits`, because the text may be for the tool, it stores the steps to take later.
    """

    __slots__ = ("_decoder", "_deferred_steps", "_mute", "_origin", "_texts", "waits")

    def __init__(self, texts: UserText, *, waits: bool) -> None:
        self.waits = waits
        self._deferred_steps: list[Callable[[], None]] = []
        self._mute = False
        self._texts = texts
        self._origin: TextOrigin | None = None
        self._decoder = StringDecoder()

    def release(self, *, mute: bool) -> None:
        """End the wait: take the stored steps and all later ones; with `mute` drop the text."""
        self.waits, self._mute = False, mute
        steps, self._deferred_steps = self._deferred_steps, []
        for step in steps:
            step()

    def start(self, key: str, kind: str) -> None:
        if self.waits:
            self._deferred_steps.append(partial(self.start, key, kind))
        elif kind == '"' and not self._mute:
            self._origin = self._texts.begin()

    def piece(self, raw: str) -> None:
        if self.waits:
            self._deferred_steps.append(partial(self.piece, raw))
        elif self._origin is not None and (text := self._decoder.feed(raw)):
            self._texts.add(self._origin, text)

    def end(self) -> None:
        if self.waits:
            self._deferred_steps.append(self.end)
        elif self._origin is not None:
            if left := self._decoder.end():
                self._texts.add(self._origin, left)
            self._texts.end(self._origin)
            self._origin = None
