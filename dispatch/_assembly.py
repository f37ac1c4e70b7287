"""From deltas to branches and to the finished message: the core of a fork, with no waiting."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ._call import OpenCall, ToolCallError
from ._delta import Delta, ToolCallDelta
from ._format import Format
from ._message import Message, ToolCall, Usage
from ._scan import HalfKeeper, join_surrogates
from ._speech import Sink, Speech
from ._splitter import TextSplitter

__all__ = ["Assembly", "Branches"]

# With these the model was stopped, it did not stop: empty arguments are then missing ones.
_STOPPED = ("length", "content_filter")


@dataclass(slots=True)
class Branches:
    """Where the parts of a reply go."""

    text: Sink[str]
    reasoning: Sink[str]
    calls: Sink[ToolCall | ToolCallError]
    pieces: Sink[ToolCallDelta]
    others: Mapping[str, Sink[str]] = field(default_factory=dict[str, Sink[str]])


class Assembly:
    """Takes the deltas of one reply; sends each part to its branch and keeps what it adds up to.

    `feed` every delta, then take `end` once. `message` is what the endpoint would have given
    without streaming, `partial` what can be kept of a reply that broke off.
    """

    def __init__(
        self, branches: Branches, to_user: str | None = None, formats: Sequence[Format] = ()
    ) -> None:
        self._branches = branches
        self._pieces = branches.pieces
        self._to_user = to_user
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls: dict[int, OpenCall] = {}  # by the wire's index: the last one there
        self._order: list[OpenCall] = []
        # The call that the last piece belonged to, and its wire index.
        self._call: OpenCall
        self._at: int | None = None
        self._places: set[int] = set()  # the indices given to calls, and the next free one
        self._next_place = 0
        self._ids: set[str] = set()  # of the calls that were handed on or found faulty
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._speech = Speech(branches.text)
        self._content_voice = self._speech.standing()
        self._refusal_voice = self._speech.standing()
        self._content_halves = HalfKeeper()
        self._reasoning_halves = HalfKeeper()
        self._splitter = TextSplitter(formats, self) if formats else None
        self._take_content = self.show if self._splitter is None else self._splitter.feed
        self.whole = False  # a finish_reason or the end mark has come

    def feed(self, deltas: Iterable[Delta]) -> None:
        """Take the next deltas; of several, the pieces of one call are read together."""
        keep = self._pieces.put
        run: list[str] = []  # of the arguments of the call at `at`
        at = self._at
        for delta in deltas:
            if delta.text:
                self._scan(run)
                self._take_text(delta.text)
                at = self._at
            for piece in delta.tool_calls:
                if piece.index != at or piece.name is not None or piece.id is not None:
                    self._scan(run)
                    if half := self._content_halves.end():
                        self._take_content(half)  # or it would come after what the call says
                    self._turn_to(piece)
                    at = self._at
                keep(piece)
                run.append(piece.arguments)
            if delta.reasoning or delta.finish_reason or delta.done or delta.refusal or delta.usage:
                self._scan(run)
                self._take_rest(delta)
        self._scan(run)

    def _scan(self, run: list[str]) -> None:
        if run:
            arguments = "".join(run)
            run.clear()
            if arguments and self._call.scanner.feed(arguments):
                self._try_hand_on()

    def _take_rest(self, delta: Delta) -> None:
        if delta.reasoning:
            self._take_reasoning(delta.reasoning)
        if delta.refusal:
            self._refusal.append(delta.refusal)
            self._refusal_voice.say(delta.refusal)
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.finish_reason is not None:
            self._finish_reason = delta.finish_reason
        self.whole = self.whole or delta.done or delta.finish_reason is not None

    def _take_text(self, text: str) -> None:
        if self._content_halves.half or not text.isascii():
            text = self._content_halves.feed(text)
        if text:
            self._take_content(text)

    def show(self, text: str) -> None:
        """Take text of the content that is for the user."""
        self._content.append(text)
        self._speech.say(self._content_voice, text)

    def put(self, branch: str, text: str) -> None:
        """Take text of the content that is for a branch; only reasoning has a field of its own."""
        if branch == "reasoning":
            self._reasoning.append(text)
            self._branches.reasoning.put(text)
        else:
            self._branches.others[branch].put(text)

    def new_call(self) -> int:
        """Begin a call that is written in the content; return its index."""
        return self._begin(-1).index

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Take more of a call that is written in the content."""
        piece = ToolCallDelta(index, None, name, arguments)
        self._turn_to(piece)
        self._pieces.put(piece)
        self._scan([arguments])
        if name and self._call.scanner.done:
            self._try_hand_on()

    def _take_reasoning(self, text: str) -> None:
        if self._reasoning_halves.half or not text.isascii():
            text = self._reasoning_halves.feed(text)
        if text:
            self.put("reasoning", text)

    def _turn_to(self, piece: ToolCallDelta) -> None:
        """Make the call that `piece` belongs to the one whose pieces are taken."""
        if piece.id is None and piece.name is None and piece.index in self._calls:
            call = self._calls[piece.index]
        else:
            call = self._call_of(piece)
        self._at = piece.index
        self._call = call

    def _call_of(self, piece: ToolCallDelta) -> OpenCall:
        call = self._find(piece)
        if call is None:
            call = self._begin(piece.index)
        if piece.id and not call.id:
            call.id = piece.id
        if piece.name and call.name != piece.name and not (call.name and call.scanner.parts):
            call.name += piece.name  # it may be cut in two; one that is repeated adds nothing
        return call

    def _find(self, piece: ToolCallDelta) -> OpenCall | None:
        """Return the call that a piece belongs to, None if it begins a new one.

        Servers repeat names, leave out ids or indices, use one index for all calls, or make up a
        new id for every piece; only a piece with a name begins a call after the first.
        """
        call = self._calls.get(piece.index) if piece.index >= 0 else self._unnumbered(piece)
        if call is None or not piece.name or not call.name:
            return call
        if piece.id and call.id and piece.id != call.id:
            return None
        if piece.id == call.id and piece.id is not None:
            return call
        return None if call.scanner.done and piece.arguments else call

    def _unnumbered(self, piece: ToolCallDelta) -> OpenCall | None:
        for call in self._order:
            if piece.id and call.id == piece.id:
                return call
        last = self._order[-1] if self._order else None
        if last is not None and piece.name and (last.name != piece.name or last.scanner.done):
            return None
        return last

    def _begin(self, index: int) -> OpenCall:
        place = index if index >= 0 and index not in self._places else self._next_place
        call = OpenCall(place, self._to_user, self._speech)
        self._places.add(place)
        self._next_place = max(self._next_place, place + 1)
        self._order.append(call)
        self._calls[index if index >= 0 else place] = call
        return call

    def _try_hand_on(self) -> None:
        call = self._call
        if call.name and call.fault is None and not call.handed_on:
            call.read()
            if call.fault is None:
                call.id = self._own_id(call)
                self.hand_on(call)

    def hand_on(self, call: OpenCall) -> None:
        """Send a call whose arguments are whole and valid, or were repaired, to its branch."""
        call.handed_on = True
        self._branches.calls.put(call.for_tool())

    def _own_id(self, call: OpenCall) -> str:
        """Return the id it has, or one made for it, unique in the reply."""
        own = base = call.id or f"call_{call.index}"
        number = call.index
        while own in self._ids:
            own, number = f"{base}_{number}", number + 1
        self._ids.add(own)
        return own

    def end(self) -> Iterator[OpenCall]:
        """End a whole reply: hand on what is only now known to be whole; yield the faulty.

        For each of these, `hand_on` once it is repaired, or `refuse`.
        """
        stopped = self._finish_reason in _STOPPED
        self._flush(stopped=stopped)
        for call in sorted(self._order, key=_index):
            if not call.handed_on:
                call.read(truncated=stopped)
                call.id = self._own_id(call)
                if call.fault is None:
                    self.hand_on(call)
                else:
                    yield call

    def _flush(self, *, stopped: bool) -> None:
        if half := self._content_halves.end():
            self._take_content(half)
        if half := self._reasoning_halves.end():
            self.put("reasoning", half)
        if self._splitter is not None:
            self._splitter.end(stopped=stopped)
        self._speech.end()

    def refuse(self, call: OpenCall) -> None:
        """Put an error in the place of a call that is faulty and was not repaired."""
        self._branches.calls.put(call.error())

    def break_off(self) -> None:
        """End a reply that broke off: what was held back is shown, no call is handed on."""
        self._flush(stopped=True)

    def message(self) -> Message:
        """Return the assembled message of a whole reply."""
        refusal = "".join(self._refusal) or None
        content = join_surrogates("".join(self._content))
        return Message(
            role="assistant",
            content=content or (None if refusal or self._order else ""),
            tool_calls=[call.for_message() for call in sorted(self._order, key=_index)],
            reasoning="".join(self._reasoning) or None,
            refusal=refusal,
            usage=self._usage,
            finish_reason=self._finish_reason,
        )

    def partial(self) -> Message | None:
        """Return what the user was told so far, as a message; None if that is nothing.

        It has no tool calls, since nothing answers them, so any provider takes it back.
        """
        content = "".join(self._speech.said)
        if not content.strip():
            return None
        reasoning = "".join(self._reasoning) or None
        return Message(role="assistant", content=content, reasoning=reasoning, usage=self._usage)


def _index(call: OpenCall) -> int:
    return call.index
