"""From deltas to branches and to the finished message: the core of a fork, with no waiting."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ..messages import Delta, Message, ToolCall, ToolCallDelta, ToolCallError, Usage
from ..messages.text import encodable
from ._call import OpenCall
from ._format import Format
from ._scan import HalfKeeper
from ._speech import Sink, Speech
from ._splitter import TextSplitter

__all__ = ["Assembly", "Branches"]

_LONGEST_NAME = 1024  # of a tool; more of it is dropped, or each piece would copy all that came

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
        self,
        branches: Branches,
        to_user: str | None = None,
        formats: Sequence[Format] = (),
        keepers: Container[str] = (),
    ) -> None:
        self._branches = branches
        self._pieces = branches.pieces
        self._to_user = to_user
        self._keepers = keepers  # the tools for which `to_user` is an argument like others
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._order: list[OpenCall] = []
        # Calls of the wire: by its index (the last one there), by its id (the first), the last.
        self._calls: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}
        self._latest: OpenCall | None = None
        # The call that the last piece belonged to; its wire index, if the next piece there can
        # belong to no other.
        self._call: OpenCall
        self._at: int | None = None
        self._written: dict[int, OpenCall] = {}  # calls in the text, by their own index
        self._writing: OpenCall | None = None  # the last of these, if no text has come after it
        self._places: set[int] = set()  # the indices given to calls, and the next free one
        self._next_place = 0
        self._ids: set[str] = set()  # of the calls that were handed on or found faulty
        self._tried: dict[str, int] = {}  # numbers behind an id that are taken, up to here
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        self._speech = Speech(branches.text)
        self._content_voice = self._speech.standing()
        self._refusal_voice = self._speech.standing()
        self._content_halves = HalfKeeper()
        self._reasoning_halves = HalfKeeper()
        self._refusal_halves = HalfKeeper()
        self._joining = False  # a piece of arguments had half a surrogate pair
        self._splitter = TextSplitter(formats, self) if formats else None
        self._take_content = self.show if self._splitter is None else self._splitter.feed
        self.whole = False  # a finish_reason or the end mark has come

    def feed(self, deltas: Iterable[Delta]) -> None:
        """Take the next deltas; of several, the pieces of one call are read together."""
        run: list[ToolCallDelta] = []  # pieces of the call at `at`
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
                    piece = _with_clean_head(piece)
                    self._turn_to(piece)
                    at = self._at
                run.append(piece)
            if delta.reasoning or delta.finish_reason or delta.done or delta.refusal or delta.usage:
                self._scan(run)
                self._take_rest(delta)
        self._scan(run)

    def _scan(self, run: list[ToolCallDelta]) -> None:
        if run:
            arguments = "".join([piece.arguments for piece in run])
            if self._joining or not (arguments.isascii() or _is_whole(arguments)):
                run[:] = map(self._joined, run)
                arguments = "".join([piece.arguments for piece in run])
            self._pieces.put_all(run)
            run.clear()
            if arguments and self._call.feed(arguments):
                self._try_hand_on()

    def _joined(self, piece: ToolCallDelta) -> ToolCallDelta:
        """Return a piece whose arguments are encodable, for the call that it belongs to."""
        self._joining = True
        halves = self._call.halves = self._call.halves or HalfKeeper()
        return replace(piece, arguments=halves.feed(piece.arguments))

    def _take_rest(self, delta: Delta) -> None:
        if delta.reasoning and (text := self._reasoning_halves.feed(delta.reasoning)):
            self.put("reasoning", text)
        if delta.refusal and (text := self._refusal_halves.feed(delta.refusal)):
            self._refuse(text)
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.finish_reason is not None:
            self._finish_reason = encodable(delta.finish_reason)
        self.whole = self.whole or delta.done or delta.finish_reason is not None

    def _take_text(self, text: str) -> None:
        if self._content_halves.half or not text.isascii():
            text = self._content_halves.feed(text)
        if text:
            self._take_content(text)

    def _refuse(self, text: str) -> None:
        self._refusal.append(text)
        self._refusal_voice.say(text)

    def show(self, text: str) -> None:
        """Take text of the content that is for the user."""
        if self._writing is not None:
            self._end_written()
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
        self._end_written()
        call = self._writing = self._begin(self._next_place)
        self._written[call.index] = call
        return call.index

    def _end_written(self) -> None:
        """Let the last call in the content say no more: what follows it has come."""
        call, self._writing = self._writing, None
        if call is not None:
            call.hush()

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Take more of a call that is written in the content."""
        piece = ToolCallDelta(index, None, name and encodable(name), encodable(arguments))
        call = self._call = self._written[index]
        self._at = None
        _name(call, piece)
        self._scan([piece])
        if name and call.scanner.done:
            self._try_hand_on()

    def _turn_to(self, piece: ToolCallDelta) -> None:
        """Make the call that `piece` belongs to the one whose pieces are taken."""
        call = self._find(piece)
        if call is not None and _begins_another(call, piece):
            head = call.again or piece
            piece = replace(piece, id=piece.id or head.id, name=piece.name or head.name)
            call = None
        if call is None:
            call = self._latest = self._begin(piece.index)
            self._calls[piece.index if piece.index >= 0 else call.index] = call
        if piece.id and not call.id:
            call.id = piece.id
            self._by_id.setdefault(piece.id, call)
        _name(call, piece)
        self._at = None if call.again else piece.index
        self._call = call
        if piece.name and call.scanner.done:
            self._try_hand_on()

    def _find(self, piece: ToolCallDelta) -> OpenCall | None:
        """Return the call that a piece belongs to, or seems to; None if it begins a new one.

        Servers repeat names, leave out ids or indices, use one index or one id for all calls, or
        make up a new id for every piece; only a piece with a name begins a call after the first.
        """
        if piece.index >= 0:
            call = self._calls.get(piece.index)
        elif (call := self._by_id.get(piece.id or "")) is None:
            call = self._latest
            if call is not None and piece.name and call.name not in ("", piece.name):
                return None
        if call is not None and piece.name and call.name and _differ(call.id, piece.id):
            return None
        return call

    def _begin(self, index: int) -> OpenCall:
        place = index if index >= 0 and index not in self._places else self._next_place
        call = OpenCall(place, self._to_user, self._speech, self._keepers)
        self._places.add(place)
        self._next_place = max(self._next_place, place + 1)
        self._order.append(call)
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
        number = max(call.index, self._tried.get(base, 0))
        while own in self._ids:
            own, number = f"{base}_{number}", number + 1
            self._tried[base] = number
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
        if half := self._refusal_halves.end():
            self._refuse(half)
        for call in self._order if self._joining else ():
            if call.halves and (half := call.halves.end()):
                self._pieces.put(ToolCallDelta(call.index, arguments=half))
                call.feed(half)
        if self._splitter is not None:
            self._splitter.end(stopped=stopped)
        for call in self._order if self._keepers else ():
            call.tell()  # its name has not come, and will not
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
        content = "".join(self._content)
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


def _differ(one: str | None, other: str | None) -> bool:
    return bool(one and other and one != other)


def _begins_another(call: OpenCall, piece: ToolCallDelta) -> bool:
    """Whether a piece for a call whose arguments are whole begins another with its id and index.

    A head that is merely repeated, with or without white space for arguments, does not; then the
    arguments that follow it decide. What is no object is text after the call's own, and dropped.
    """
    if not (call.scanner.done and call.name):
        return False
    begins = piece.arguments.lstrip().startswith("{")
    if piece.name and (piece.name != call.name or begins):
        return True
    if piece.name:
        call.again = piece
        return False
    return begins and call.again is not None


def _name(call: OpenCall, piece: ToolCallDelta) -> None:
    """Take the name, which may be cut into pieces, all before the arguments.

    One that is repeated adds nothing.
    """
    name = piece.name
    if name and call.name != name and not (call.name and call.scanner.parts):
        call.name = (call.name + name)[:_LONGEST_NAME]
        if call.scanner.parts:
            call.tell()


def _is_whole(text: str) -> bool:
    """Whether there is no half of a surrogate pair in a text."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _with_clean_head(piece: ToolCallDelta) -> ToolCallDelta:
    if (piece.id or "").isascii() and (piece.name or "").isascii():
        return piece
    return replace(
        piece, id=piece.id and encodable(piece.id), name=piece.name and encodable(piece.name)
    )


def _index(call: OpenCall) -> int:
    return call.index
