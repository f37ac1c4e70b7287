"""Turn deltas into branches and a message: the synchronous core of a fork.

The pump feeds an `Assembly` while a reply arrives. `assemble` and `assemble_partial` make the
message from a complete list of deltas.
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
"""Finish reasons of a model that was stopped from outside: unclosed calls and bodies broke off."""


def _drop(_: object) -> None:
    """Ignore a part of a branch without readers."""


@dataclass(slots=True)
class Branches:
    """The functions that take the next part of each branch; `pieces` takes several parts."""

    text: Callable[[str], object] = _drop
    reasoning: Callable[[str], object] = _drop
    calls: Callable[[ToolCall | ToolCallError], object] = _drop
    pieces: Callable[[Iterable[ToolCallDelta]], object] = _drop
    others: Mapping[str, Callable[[str], object]] = field(
        default_factory=dict[str, Callable[[str], object]]
    )


class Assembly:
    """Sends each part of a reply's deltas to its branch, and assembles the message.

    Call `feed` with all deltas, then iterate `end` once, then call `message`: it equals the message
    of a request without streaming. After an interruption call `break_off`, then `partial`.
    `to_user` and `exempt` are as in `OpenCall`.
    """

    # Slots also for speed: there are more attributes than CPython's key-sharing dictionaries allow.
    __slots__ = (
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
        # The calls that the server sent as such: the last one with an index, the first one with an
        # id, and the last one of all.
        self._calls: dict[int, OpenCall] = {}
        self._by_id: dict[str, OpenCall] = {}
        self._latest: OpenCall | None = None
        # The call of the last piece, and its wire index if the next piece with that index and
        # without name and id must belong to it: `feed` then skips the search for the call.
        self._call: OpenCall
        self._at: int | None = None
        self._written: dict[int, OpenCall] = {}  # the calls in the text, by their index
        self._writing: OpenCall | None = None  # the last of these, until text follows it
        self._places: set[int] = set()  # the indices in use
        self._next_place = 0  # above all of them
        self._ids: set[str] = set()  # of the calls that were handed on or found faulty
        # The last number appended to an id, so that many calls with one id take linear time.
        self._tried: dict[str, int] = {}
        self._usage: Usage | None = None
        self._finish_reason: str | None = None
        # The provider's items in the order of arrival, each with its call, if any.
        self._items: list[tuple[ProviderItem, OpenCall | None]] = []
        # The number of content pieces that have been measured, and their length.
        self._measured = self._content_size = 0
        self._texts = UserText(branches.text)
        self._content_origin = TextOrigin()
        self._refusal_origin = TextOrigin()
        self._content_joiner = SurrogateJoiner()
        self._reasoning_joiner = SurrogateJoiner()
        self._refusal_joiner = SurrogateJoiner()
        self._joining = False  # some arguments have contained half a surrogate pair
        self._splitter = TextSplitter(formats, self) if formats else None
        self._take_content = self.show if self._splitter is None else self._splitter.feed
        self.whole: bool = False  # a finish_reason or the end mark has come

    def feed(self, deltas: Iterable[Delta]) -> None:
        """Take the next deltas; adjacent pieces of one call are read together, which is faster."""
        run: list[ToolCallDelta] = []  # pieces of the call with wire index `at`, not yet read
        at = self._at
        for delta in deltas:
            if text := delta.text:
                # Before the text, or the user would see it before the text in these arguments.
                if run:
                    self._scan(run)
                if self._content_joiner.half or not text.isascii():
                    text = self._content_joiner.feed(text)
                if text:
                    self._take_content(text)
                at = self._at  # a call in the text, or a settled repetition, resets it
            if delta.items:
                self._place_items(delta.items)
            for piece in delta.tool_calls:
                if piece.index != at or piece.name is not None or piece.id is not None:
                    if run:  # the run belongs to the old call: `_take_head` replaces `_call`
                        self._scan(run)
                    piece = self._take_head(piece)
                    at = self._at
                if piece.item is not None:
                    self._place_call_item(piece)
                run.append(piece)
            # One test for all rare fields of a delta.
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

    # Rare pieces are handled in separate methods. In the loop of `feed`, their code would cost each
    # other delta 2 %, because CPython's jumps get longer (benchmarks/fork.py).

    def _take_head(self, piece: ToolCallDelta) -> ToolCallDelta:
        """Find or begin the call of `piece`; return the piece with an encodable name and id."""
        if half := self._content_joiner.end():
            self._take_content(half)  # before the call's own text for the user
        if not ((piece.id or "").isascii() and (piece.name or "").isascii()):
            name = piece.name and encodable(piece.name)
            piece = replace(piece, id=piece.id and encodable(piece.id), name=name)
        self._turn_to(piece)
        return piece

    def _place_call_item(self, piece: ToolCallDelta) -> None:
        # A repeated head may begin another call: `_turn_to` adds its item then.
        if piece.item is not None and self._call.again is not piece:
            self._items.append((piece.item, self._call))

    def _take_rest(self, delta: Delta) -> None:
        """Take the rare fields of a delta: all but its text, calls and items."""
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
        """Place items without a call after the text and the calls that have arrived."""
        # Measure only the new pieces: measuring all of them each time would be quadratic.
        self._content_size += sum(map(len, self._content[self._measured :]))
        self._measured = len(self._content)
        place = {"after_text": self._content_size, "after_calls": len(self._order)}
        for item in items:
            self._items.append((item.model_copy(update={**place, "call": None}), None))

    def _scan(self, run: list[ToolCallDelta]) -> None:
        """Read the pieces of the current call, and empty the list."""
        arguments = "".join([piece.arguments for piece in run])
        # `encodable` returns the same object unless the text contains half a surrogate pair.
        if self._joining or not (arguments.isascii() or encodable(arguments) is arguments):
            self._joining = True
            joiner = self._call.joiner = self._call.joiner or SurrogateJoiner()
            run[:] = [replace(each, arguments=joiner.feed(each.arguments)) for each in run]
            arguments = "".join([piece.arguments for piece in run])
        call = self._call
        if call.repeats is None:
            self._branches.pieces(run)
        else:  # perhaps a copy of another call, which must not show
            call.held_pieces += run
        run.clear()  # both have copied the pieces; and the reading below may raise
        if arguments and call.feed(arguments):
            self._try_hand_on()

    def _turn_to(self, piece: ToolCallDelta) -> None:
        """Make the call of `piece`, perhaps a new one, the current call.

        Servers repeat names, omit ids or indices, use one index or one id for all calls, or send a
        new id with every piece. After the first call, only a piece with a name begins another one.
        """
        # The index counts first. Without one (negative), the id counts, then the last call.
        if piece.index >= 0:
            call = self._calls.get(piece.index)
        elif (call := self._by_id.get(piece.id or "")) is None:
            call = self._latest
            if call is not None and piece.name and call.name not in ("", piece.name):
                call = None
        elif self._latest is not None and self._latest.id == piece.id:
            call = self._latest  # several calls have this id: the last one is still arriving
        # A head with another id begins another call, though the server uses the same index.
        if call is not None and piece.name and call.name and piece.id:
            call = call if call.id in (None, piece.id) else None
        repeats: OpenCall | None = None
        again: ToolCallDelta | None = None
        if call is not None and call.name and call.scanner.done:
            # A piece after complete arguments begins another call, or is dropped. For a repeated
            # head, the text after it decides.
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
        if piece.id and not call.id:  # the first id counts: some servers change it per piece
            call.id = piece.id
            self._by_id.setdefault(piece.id, call)
        call.take_name(piece.name)
        self._at = None if call.again else piece.index  # after a repeated head, look again
        self._call = call
        if piece.name and call.scanner.done:  # the name came after the arguments
            self._try_hand_on()

    def _begin(self, index: int, repeats: OpenCall | None = None) -> OpenCall:
        place = index if index >= 0 and index not in self._places else self._next_place
        call = OpenCall(place, self._to_user, self._texts, self._exempt, repeats)
        self._places.add(place)
        self._next_place = max(self._next_place, place + 1)
        self._order.append(call)
        return call

    def _settle_repeat(self, call: OpenCall, *, truncated: bool = False) -> None:
        """Drop a call that the server sent twice, or accept it as a separate call."""
        before = call.repeats
        if before is not None and call.is_repeated(truncated=truncated):
            self._order.remove(call)
            self._items = [each for each in self._items if each[1] is not call]
            self._places.discard(call.index)
            self._next_place = max(self._places) + 1
            self._calls = {at: before if each is call else each for at, each in self._calls.items()}
            self._latest = self._call = before  # later pieces belong to the original
        else:
            call.repeats = None  # first: `settle_name` keeps the text back while it is set
            call.settle_name()
            self._branches.pieces(call.held_pieces)
        self._at = None  # the current call may have changed

    def _try_hand_on(self) -> None:
        call = self._call
        if call.repeats is not None:
            self._settle_repeat(call)
            call = self._call  # the original, if this was a copy
        if call.name and call.fault is None and not call.handed_on:
            call.read()
            if call.fault is None:
                call.id = self._own_id(call)
                self.hand_on(call)

    def _own_id(self, call: OpenCall) -> str:
        """Return the call's id, changed if another call has it, or a new one."""
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
        if self._writing is not None:  # the call's own text ends before this text
            self._end_written()
        self._content.append(text)
        self._texts.add(self._content_origin, text)

    def put(self, branch: str, text: str) -> None:
        """Take text of the content that is for a branch; the message has only the reasoning."""
        if branch == "reasoning":
            self._reasoning.append(text)
            self._branches.reasoning(text)
        else:
            self._branches.others[branch](text)

    def new_call(self) -> int:
        """Begin a call that the model wrote into the content; return its index."""
        self._end_written()
        call = self._writing = self._begin(self._next_place)
        self._written[call.index] = call
        return call.index

    def _end_written(self) -> None:
        """End the user's text of the last call in the content: the call is over."""
        call, self._writing = self._writing, None
        if call is not None:
            call.end_text()

    def write(self, index: int, arguments: str = "", name: str | None = None) -> None:
        """Take a piece of a call that the model wrote into the content."""
        name = name and encodable(name)
        call = self._call = self._written[index]
        self._at = None  # the current call is not one of the wire: `feed` must search for it
        call.take_name(name)
        self._scan([ToolCallDelta(index, None, name, encodable(arguments))])
        if name and call.scanner.done:
            self._try_hand_on()

    # --- the end

    def end(self) -> Iterator[OpenCall]:
        """End a complete reply: hand on the remaining calls, and yield the faulty ones.

        The caller repairs each of these and calls `hand_on`, or calls `refuse`.
        """
        stopped = self._finish_reason in STOPPED
        self._flush(stopped=stopped)  # first: it may still complete calls or find new ones
        for call in sorted(self._order, key=attrgetter("index")):
            if not call.handed_on:
                call.read(truncated=stopped)
                call.id = self._own_id(call)
                if call.fault is None:
                    self.hand_on(call)
                else:
                    yield call

    def hand_on(self, call: OpenCall) -> None:
        """Send a call with valid or repaired arguments to its branch."""
        call.handed_on = True
        self._branches.calls(call.for_tool())

    def refuse(self, call: OpenCall) -> None:
        """Send an error to the branch in place of a faulty call."""
        self._branches.calls(call.error())

    def break_off(self) -> None:
        """End an interrupted reply: show the text that was held back; hand on no more calls."""
        self._flush(stopped=True)

    def _flush(self, *, stopped: bool) -> None:
        # Before the splitter's end: this text may complete or refute a marker.
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
        # A copied list: dropping a copy removes it from `_order`.
        for call in [call for call in self._order if call.repeats is not None]:
            self._settle_repeat(call, truncated=True)
        # After the repeats: the end may write new calls, which become the current call.
        if self._splitter is not None:
            self._splitter.end(stopped=stopped)
        for call in self._order if self._exempt else ():
            call.settle_name()  # it may still wait for the rest of its name
        self._texts.end_all()  # last: every origin has all its text

    def message(self) -> Message:
        """Return the assembled message of a complete reply."""
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

        It has no tool calls, since these would need results. So every provider accepts it in a
        conversation, unless its `content` is None: the reply broke off while the model reasoned.
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
    """Return the message of a complete list of deltas, as a request without streaming returns it.

    Raises `BadResponse` if the deltas are not a valid reply.
    """
    message = _assembled(deltas, formats, broken=False)
    assert message is not None, "only one that broke off may be nothing"
    return message


def assemble_partial(deltas: Iterable[Delta]) -> Message | None:
    """Return the text and the reasoning of an interrupted reply; None without either.

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
    except Exception as error:  # noqa: BLE001 - servers send anything
        kind = type(error).__name__
    # Outside of the handler and without the error's text: it may quote the server's secrets.
    raise BadResponse(f"the deltas are not a valid reply ({kind})")
