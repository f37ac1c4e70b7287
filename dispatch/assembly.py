"""From deltas to branches and to the finished message: the core of a fork, with no waiting.

The pump feeds an `Assembly` while a reply arrives; `assemble` and `assemble_partial` make the
message of deltas that are all there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

from ..commander.errors import BackendError, BadResponse
from ..messages import (
    Delta,
    Message,
    ProviderItem,
    ToolCall,
    ToolCallDelta,
    ToolCallError,
    Usage,
)
from ..messages.text import RefusalText, SurrogateJoiner, encodable
from ._call import OpenCall
from ._format import Format
from ._splitter import TextSplitter
from ._user_text import TextOrigin, UserText

__all__ = ["STOPPED", "Assembly", "Branches", "assemble", "assemble_partial"]

STOPPED = ("length", "content_filter")
"""Finish reasons of a model that was stopped and did not stop: what is not closed broke off."""


def _drop(_: object) -> None:
    """Take a part of a reply of which only the finished message is wanted."""


@dataclass(slots=True)
class Branches:
    """Where the parts of a reply go: functions that take the next part; `pieces` takes several."""

    text: Callable[[str], object] = _drop
    reasoning: Callable[[str], object] = _drop
    calls: Callable[[ToolCall | ToolCallError], object] = _drop
    pieces: Callable[[Iterable[ToolCallDelta]], object] = _drop
    others: Mapping[str, Callable[[str], object]] = field(
        default_factory=dict[str, Callable[[str], object]]
    )


class Assembly:
    """Takes the deltas of one reply; sends each part to its branch and keeps what it adds up to.

    `feed` every delta, then take `end` once. `message` is what the endpoint would have given
    without streaming, `partial` what can be kept of a reply that broke off. `to_user` and `exempt`
    are as in `OpenCall`.
    """

    __slots__ = (  # more than CPython's dictionaries of attributes share
        *("_at", "_branches", "_by_id", "_call", "_calls", "_content", "_content_joiner"),
        *("_content_origin", "_content_size", "_exempt", "_finish_reason", "_ids", "_items"),
        *("_joining", "_latest", "_measured", "_next_place", "_order", "_places", "_reasoning"),
        *("_reasoning_joiner", "_refusal", "_refusal_joiner", "_refusal_origin", "_splitter"),
        *("_take_content", "_texts", "_to_user", "_tried", "_usage", "_writing", "_written"),
        "whole",
    )

    def __init__(
        self,
        branches: Branches,
        to_user: str | None = None,
        formats: Sequence[Format] = (),
        exempt: Container[str] = (),
    ) -> None:
        self._branches = branches
        self._to_user = to_user
        self._exempt = exempt
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
        # The provider's items as they came, each with the call that it belongs to, if any.
        self._items: list[tuple[ProviderItem, OpenCall | None]] = []
        self._measured = self._content_size = 0  # pieces of the content, and their length
        self._texts = UserText(branches.text)
        self._content_origin = TextOrigin()
        self._refusal_origin = TextOrigin()
        self._content_joiner = SurrogateJoiner()
        self._reasoning_joiner = SurrogateJoiner()
        self._refusal_joiner = SurrogateJoiner()
        self._joining = False  # a piece of arguments had half a surrogate pair
        self._splitter = TextSplitter(formats, self) if formats else None
        self._take_content = self.show if self._splitter is None else self._splitter.feed
        self.whole = False  # a finish_reason or the end mark has come

    def feed(self, deltas: Iterable[Delta]) -> None:
        """Take the next deltas; of several, the pieces of one call are read together."""
        run: list[ToolCallDelta] = []  # pieces of the call at `at`
        at = self._at
        for delta in deltas:
            if text := delta.text:
                if run:
                    self._scan(run)
                if self._content_joiner.half or not text.isascii():
                    text = self._content_joiner.feed(text)
                if text:
                    self._take_content(text)
                at = self._at
            if delta.items:
                self._place_items(delta.items)
            for piece in delta.tool_calls:
                if piece.index != at or piece.name is not None or piece.id is not None:
                    if run:
                        self._scan(run)
                    piece = self._take_head(piece)
                    at = self._at
                if piece.item is not None:
                    self._place_call_item(piece)
                run.append(piece)
            if (
                delta.finish_reason is not None
                or delta.usage is not None
                or delta.done
                or delta.reasoning
                or delta.refusal
            ):
                if run:
                    self._scan(run)
                self._take_rest(delta)
        if run:
            self._scan(run)

    # Rare pieces have methods of their own: a longer loop costs each delta of the others 2 %, as
    # CPython jumps farther (benchmarks/fork.py).

    def _take_head(self, piece: ToolCallDelta) -> ToolCallDelta:
        """Turn to the call of `piece`; return the piece as it can be encoded."""
        if half := self._content_joiner.end():
            self._take_content(half)  # or it would come after what the call says
        if not ((piece.id or "").isascii() and (piece.name or "").isascii()):
            name = piece.name and encodable(piece.name)
            piece = replace(piece, id=piece.id and encodable(piece.id), name=name)
        self._turn_to(piece)
        return piece

    def _place_call_item(self, piece: ToolCallDelta) -> None:
        # The item of a head that is repeated goes with what follows it.
        if piece.item is not None and self._call.again is not piece:
            self._items.append((piece.item, self._call))

    def _take_rest(self, delta: Delta) -> None:
        """Take all of a delta but its text, its calls and its items."""
        if delta.reasoning and (text := self._reasoning_joiner.feed(delta.reasoning)):
            self.put("reasoning", text)
        if delta.refusal and (text := self._refusal_joiner.feed(delta.refusal)):
            self._refuse(text)
        if delta.usage is not None:
            self._usage = delta.usage
        if delta.finish_reason:
            self._finish_reason = encodable(delta.finish_reason)
        self.whole = self.whole or delta.done or bool(delta.finish_reason)

    def _place_items(self, items: Iterable[ProviderItem]) -> None:
        """Take items that stand by themselves, behind the text and the calls that have come."""
        self._content_size += sum(map(len, self._content[self._measured :]))
        self._measured = len(self._content)
        place = {"after_text": self._content_size, "after_calls": len(self._order)}
        for item in items:
            self._items.append((item.model_copy(update={**place, "call": None}), None))

    def _scan(self, run: list[ToolCallDelta]) -> None:
        """Read the pieces of one call, and empty the list."""
        arguments = "".join([piece.arguments for piece in run])
        # `encodable` returns the text itself unless there is half a surrogate pair in it.
        if self._joining or not (arguments.isascii() or encodable(arguments) is arguments):
            self._joining = True
            joiner = self._call.joiner = self._call.joiner or SurrogateJoiner()
            run[:] = [replace(each, arguments=joiner.feed(each.arguments)) for each in run]
            arguments = "".join([piece.arguments for piece in run])
        call = self._call
        if call.repeats is None:
            self._branches.pieces(run)
        else:
            call.held += run
        run.clear()
        if arguments and call.feed(arguments):
            self._try_hand_on()

    def _turn_to(self, piece: ToolCallDelta) -> None:
        """Make the call that `piece` belongs to, perhaps a new one, that whose pieces are taken.

        Servers repeat names, leave out ids or indices, use one index or one id for all calls, or
        make up a new id for every piece; only a piece with a name begins a call after the first.
        """
        if piece.index >= 0:
            call = self._calls.get(piece.index)
        elif (call := self._by_id.get(piece.id or "")) is None:
            call = self._latest
            if call is not None and piece.name and call.name not in ("", piece.name):
                call = None
        elif self._latest is not None and self._latest.id == piece.id:
            call = self._latest  # another one with this id
        if call is not None and piece.name and call.name and piece.id:
            call = call if call.id in (None, piece.id) else None
        repeats: OpenCall | None = None
        again: ToolCallDelta | None = None
        if call is not None and call.name and call.scanner.done:
            # What comes after whole arguments begins another call, or is dropped. A head that is
            # merely repeated may do either: what follows it decides.
            begins = piece.arguments.lstrip().startswith("{")
            if piece.name == call.name and not begins:
                call.again = piece
            elif piece.name or (begins and call.again is not None):
                again, head = call.again, call.again or piece
                piece = replace(piece, id=piece.id or head.id, name=piece.name or head.name)
                repeats = call if (call.id, call.name) == (piece.id, piece.name) else None
                call = None
        if call is None:
            call = self._latest = self._begin(piece.index, repeats if piece.id else None)
            self._calls[piece.index if piece.index >= 0 else call.index] = call
            if again is not None and again.item is not None:
                self._items.append((again.item, call))
        if piece.id and not call.id:
            call.id = piece.id
            self._by_id.setdefault(piece.id, call)
        call.take_name(piece.name)
        self._at = None if call.again else piece.index
        self._call = call
        if piece.name and call.scanner.done:
            self._try_hand_on()

    def _begin(self, index: int, repeats: OpenCall | None = None) -> OpenCall:
        place = index if index >= 0 and index not in self._places else self._next_place
        call = OpenCall(place, self._to_user, self._texts, self._exempt, repeats)
        self._places.add(place)
        self._next_place = max(self._next_place, place + 1)
        self._order.append(call)
        return call

    def _settle_repeat(self, call: OpenCall, *, truncated: bool = False) -> None:
        """Drop a call that was sent again, or take it as one of its own."""
        before = call.repeats
        if before is not None and call.is_repeated(truncated=truncated):
            self._order.remove(call)
            self._items = [each for each in self._items if each[1] is not call]
            self._places.discard(call.index)
            self._next_place = max(self._places) + 1
            self._calls = {at: before if each is call else each for at, each in self._calls.items()}
            self._latest = self._call = before
        else:
            call.repeats = None
            call.settle_name()
            self._branches.pieces(call.held)
        self._at = None

    def _try_hand_on(self) -> None:
        call = self._call
        if call.repeats is not None:
            self._settle_repeat(call)
            call = self._call
        if call.name and call.fault is None and not call.handed_on:
            call.read()
            if call.fault is None:
                call.id = self._own_id(call)
                self.hand_on(call)

    def _own_id(self, call: OpenCall) -> str:
        """Return the id it has, or one made for it, unique in the reply."""
        own = base = call.id or f"call_{call.index}"
        number = max(call.index, self._tried.get(base, 0))
        while own in self._ids:
            own, number = f"{base}_{number}", number + 1
            self._tried[base] = number
        self._ids.add(own)
        return own

    def _refuse(self, text: str) -> None:
        self._refusal.append(text)
        self._texts.add(self._refusal_origin, RefusalText(text))

    # --- the output of formats

    def show(self, text: str) -> None:
        """Take text of the content that is for the user."""
        if self._writing is not None:
            self._end_written()
        self._content.append(text)
        self._texts.add(self._content_origin, text)

    def put(self, branch: str, text: str) -> None:
        """Take text of the content that is for a branch; only reasoning has a field of its own."""
        if branch == "reasoning":
            self._reasoning.append(text)
            self._branches.reasoning(text)
        else:
            self._branches.others[branch](text)

    def new_call(self) -> int:
        """Begin a call that is written in the content; return its index."""
        self._end_written()
        call = self._writing = self._begin(self._next_place)
        self._written[call.index] = call
        return call.index

    def _end_written(self) -> None:
        """End the text of the last call in the content: what follows the call has come."""
        call, self._writing = self._writing, None
        if call is not None:
            call.end_text()

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Take more of a call that is written in the content."""
        name = name and encodable(name)
        call = self._call = self._written[index]
        self._at = None
        call.take_name(name)
        self._scan([ToolCallDelta(index, None, name, encodable(arguments))])
        if name and call.scanner.done:
            self._try_hand_on()

    # --- the end

    def end(self) -> Iterator[OpenCall]:
        """End a whole reply: hand on what is only now known to be whole; yield the faulty.

        For each of these, `hand_on` once it is repaired, or `refuse`.
        """
        stopped = self._finish_reason in STOPPED
        self._flush(stopped=stopped)
        for call in sorted(self._order, key=attrgetter("index")):
            if not call.handed_on:
                call.read(truncated=stopped)
                call.id = self._own_id(call)
                if call.fault is None:
                    self.hand_on(call)
                else:
                    yield call

    def hand_on(self, call: OpenCall) -> None:
        """Send a call whose arguments are whole and valid, or were repaired, to its branch."""
        call.handed_on = True
        self._branches.calls(call.for_tool())

    def refuse(self, call: OpenCall) -> None:
        """Put an error in the place of a call that is faulty and was not repaired."""
        self._branches.calls(call.error())

    def break_off(self) -> None:
        """End a reply that broke off: what was held back is shown, no call is handed on."""
        self._flush(stopped=True)

    def _flush(self, *, stopped: bool) -> None:
        if half := self._content_joiner.end():
            self._take_content(half)
        if half := self._reasoning_joiner.end():
            self.put("reasoning", half)
        if half := self._refusal_joiner.end():
            self._refuse(half)
        for call in self._order if self._joining else ():
            if call.joiner and (half := call.joiner.end()):
                self._branches.pieces([ToolCallDelta(call.index, arguments=half)])
                call.feed(half)
        for call in [call for call in self._order if call.repeats is not None]:
            self._settle_repeat(call, truncated=True)
        if self._splitter is not None:
            self._splitter.end(stopped=stopped)
        for call in self._order if self._exempt else ():
            call.settle_name()  # more of it has not come, and will not
        self._texts.end_all()

    def message(self) -> Message:
        """Return the assembled message of a whole reply."""
        refusal = "".join(self._refusal) or None
        content = "".join(self._content)
        calls = sorted(self._order, key=attrgetter("index"))
        message = Message(
            role="assistant",
            content=content or (None if refusal or calls else ""),
            tool_calls=[call.for_message() for call in calls],
            reasoning="".join(self._reasoning) or None,
            refusal=refusal,
            usage=self._usage,
            finish_reason=self._finish_reason,
        )
        if self._items:
            message.provider_items = [
                item if call is None else item.model_copy(update={"call": call.id})
                for item, call in self._items
            ]
            ordered = (each for each in message.in_order() if isinstance(each, ProviderItem))
            message.provider_items = [*ordered]
        return message

    def partial(self) -> Message | None:
        """Return the text and the reasoning so far, as a message; None without either.

        It has no tool calls, since nothing answers them. So any provider takes it back, unless
        its `content` is None: then the reply broke off while the model reasoned.
        """
        content = "".join(self._texts.parts)
        reasoning = "".join(self._reasoning)
        if not (content.strip() or reasoning.strip()):
            return None
        return Message(
            role="assistant",
            content=content if content.strip() else None,
            reasoning=reasoning or None,
            usage=self._usage,
        )


def assemble(deltas: Iterable[Delta], formats: Sequence[Format] = ()) -> Message:
    """Return the message that the endpoint would have given without streaming.

    Raises `BadResponse` for deltas that make none.
    """
    message = _assembled(deltas, formats, broken=False)
    assert message is not None, "only one that broke off may be nothing"
    return message


def assemble_partial(deltas: Iterable[Delta]) -> Message | None:
    """Return the text and the reasoning that came before the reply broke off, None without either.

    Raises as `assemble` does.
    """
    return _assembled(deltas, (), broken=True)


def _assembled(
    deltas: Iterable[Delta], formats: Sequence[Format], *, broken: bool
) -> Message | None:
    ignored = {each.branch: _drop for each in formats if each.branch is not None}
    try:
        assembly = Assembly(Branches(others=ignored), formats=formats)
        assembly.feed(deltas)
        if broken:
            assembly.break_off()
            return assembly.partial()
        for call in assembly.end():
            assembly.refuse(call)
        return assembly.message()
    except BackendError:
        raise
    except Exception as error:  # noqa: BLE001 - a server may say anything
        kind = type(error).__name__
    raise BadResponse(f"what came makes no message ({kind})")  # and no word of the server's
