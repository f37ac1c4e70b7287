"""One tool call while it arrives: its pieces, its end, and what it says to the user."""

from __future__ import annotations

from typing import Any

from ..commander import ToolError
from ._message import ToolCall, read_arguments
from ._scan import ObjectScanner, StringDecoder, join_surrogates
from ._speech import Speech, Voice

__all__ = ["OpenCall", "ToolCallError"]


class ToolCallError(ToolError):
    """A call that cannot be run: its arguments broke off or are not a JSON object.

    It stands in the place of the call in `reply.tool_calls`; its text is what the model is told.
    Attributes: `id`, `name` and `index` of the call, `raw`, its arguments as they came, and
    `reason`.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the wire's name
        name: str,
        index: int,
        raw: str,
        reason: str = "its arguments are not a JSON object",
    ) -> None:
        shown = raw if len(raw) <= 500 else f"{raw[:300]} ... {raw[-200:]}"
        super().__init__(
            f"The call of {name or 'an unnamed tool'} was not run: {reason}."
            f" Its arguments came as {shown!r}. Call it again with a whole JSON object."
        )
        self.id = id
        self.name = name
        self.index = index
        self.raw = raw
        self.reason = reason


class OpenCall:
    """A call whose arguments are still coming.

    `spoken` is the key whose text is for the user and not for the tool. `fault` says why the call
    cannot be run, once that is known; `handed_on` that it went to its branch.
    """

    __slots__ = (
        "_spoken",
        "arguments",
        "fault",
        "handed_on",
        "id",
        "index",
        "name",
        "raw",
        "repaired",
        "scanner",
    )

    def __init__(self, index: int, spoken: str | None, speech: Speech) -> None:
        self.index = index
        self.id: str | None = None
        self.name = ""
        self.raw = ""  # the arguments as they came, once they were read
        self.arguments: dict[str, Any] = {}  # all of them, the spoken one too
        self.fault: str | None = None
        self.handed_on = False
        self.repaired = False
        self._spoken = spoken
        if spoken is None:
            self.scanner = ObjectScanner()
        else:
            self.scanner = ObjectScanner((spoken,), _ToUser(speech))

    def read(self, *, truncated: bool = False) -> None:
        """Read the arguments, which are whole or will never be; `truncated` says which.

        Text after the object does not count: the call may have been handed on before it came.
        """
        sent = self.scanner.raw
        whole = sent[: self.scanner.end] if self.scanner.done else sent
        self.raw = join_surrogates(whole)
        self.arguments, self.fault = read_arguments(self.raw)
        if self.fault is not None:
            self.raw = join_surrogates(sent)
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
        if self._spoken in arguments:
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
    """Passes on the text of the spoken key, decoded, as it arrives."""

    __slots__ = ("_decoder", "_speech", "_voice")

    def __init__(self, speech: Speech) -> None:
        self._speech = speech
        self._voice: Voice | None = None
        self._decoder = StringDecoder()

    def start(self, key: str, kind: str) -> None:
        if kind == '"':
            self._voice = self._speech.open()

    def piece(self, raw: str) -> None:
        if self._voice is not None and (text := self._decoder.feed(raw)):
            self._speech.say(self._voice, text)

    def end(self) -> None:
        if self._voice is not None:
            if left := self._decoder.end():
                self._speech.say(self._voice, left)
            self._voice.close()
            self._voice = None
