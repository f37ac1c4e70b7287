"""The text of the status line during an answer, and of the summary after it.

This module neither draws nor reads a clock. The same events, time and width give the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from rich.cells import cell_len, set_cell_size

from ...backends import Price
from ...commander import Commander, Event, EventKind
from ...commander.tap import Tap
from ...handlers.legible import legible
from ...messages import ProgressEvent, ReplyEvent, RequestEvent, ToolCall, Usage
from ...messages.mask import mask
from ...messages.tokens import RunningEstimate
from .._tree_view import format_cost, format_tokens

__all__ = ["Status", "TurnFigures"]

STATUS_EVENTS: Final[tuple[EventKind, ...]] = (
    "request", "working", "first_chunk", "reply", "called", "answered", "text", "charged",
    "charged_again", "retried", "waiting", "completed", "failed", "cancelled",
)  # fmt: skip
# Events are buffered until the line is drawn. A full buffer is processed at once.
MAX_BUFFERED_EVENTS: Final = 4096
MAX_NAME_CHARS, MAX_VALUE_CHARS, MAX_CALL_CHARS, MAX_TEXT_CHARS = 30, 24, 60, 200
MIN_SPEED_SECONDS: Final = 0.05  # a shorter time, such as for a reply in one piece, gives no speed
_STAGES = {
    "waiting": "waiting for another process to fetch the model",
    "fetching": "fetching the model",
    "verifying": "checking the model",
    "loading": "loading the model",
    "reading": "reading the prompt",
}


@dataclass(frozen=True, slots=True)
class TurnFigures:
    """The time, tokens and cost of a turn or of all turns; the cost of models with known prices.

    `reading` and `writing` are tokens per second, None if unknown. `reading` counts uncached tokens
    of prompts, from the start of reading (or the request) to the first piece of the reply.
    `writing` counts tokens of replies, from their first piece to their end.
    """

    seconds: float = 0.0
    usage: Usage = field(default_factory=Usage)
    cost: float | None = None
    all_priced: bool = True
    reading: float | None = None
    writing: float | None = None

    def words(self) -> list[str]:
        """Return the parts of a summary, most important first."""
        used = self.usage
        parts = [_length(self.seconds, fine=True)]
        if used.total_tokens:
            cached = format_tokens(used.cached_input_tokens)
            tokens_in, tokens_out = (
                format_tokens(used.input_tokens),
                format_tokens(used.output_tokens),
            )
            counts = f"{tokens_in or 0} + {tokens_out or 0} tokens"
            parts.append(counts + (f" ({cached} cached)" if cached else ""))
        if self.writing is not None:
            parts.append(f"{_rate(self.writing)} tokens/s")
        return parts + ([f"cost {self.money}"] if self.money else [])

    @property
    def money(self) -> str:
        """The cost as text, "" if no price is known."""
        least = "" if self.all_priced or self.cost is None else "at least "
        return least + format_cost(self.cost)


@dataclass(slots=True)
class _OpenRequest:
    """A request that has no complete reply yet."""

    node: int
    agent: str | None
    asked: float
    stage: ProgressEvent | None = None
    reads: float | None = None  # the time at which the model began to read
    first_piece: float | None = None
    written: RunningEstimate = field(default_factory=RunningEstimate)
    is_rate_limited: bool = False  # waits for its turn within rate limits


@dataclass(slots=True)
class _RunningCall:
    """A running tool call."""

    words: str
    agent: str | None
    began: float


class _Sums:
    """The totals of a turn or of a session."""

    def __init__(self) -> None:
        self.usage: dict[str, Usage] = {}
        self.seconds = self.read = self.wrote = self.reading = self.writing = 0.0

    def figures(self, running: float, prices: Mapping[str, Price]) -> TurnFigures:
        """Return the figures; `running` are the seconds of a turn that has not ended."""
        known = [prices[model].of(used) for model, used in self.usage.items() if model in prices]
        return TurnFigures(
            self.seconds + running,
            sum(self.usage.values(), Usage()),
            sum(known) if known else None,
            len(known) == len(self.usage),
            self.read / self.reading if self.reading >= MIN_SPEED_SECONDS and self.read else None,
            self.wrote / self.writing if self.writing >= MIN_SPEED_SECONDS and self.wrote else None,
        )


class Status:
    """Describes the activity of a chat. Agents other than `name` are named.

        status = Status()
        status.follow(commander, on_change)  # receive the events of this tree
        status.begin(now)                    # a turn begins; `end` ends it
        status.line(now, 80)                 # "get_weather(city=Oslo) 2 s · 3 s · 812 in, 14 out"

    Times are seconds of the commander's clock (`now()`). Set `asks` while a question is visible.
    No method raises, whatever events contain, since their data come from models, tools and servers.
    """

    def __init__(self, name: str | None = None, prices: Mapping[str, Price] | None = None) -> None:
        self.asks = False
        self._name = name
        self._prices = dict(prices or {})
        self._tap: Tap | None = None
        self._requests: dict[int, _OpenRequest] = {}
        self._calls: dict[int, _RunningCall] = {}
        self._warming: ProgressEvent | None = None
        self._began: float | None = None  # the start of the running turn
        self._turn, self._session = _Sums(), _Sums()

    # --- events

    def follow(self, commander: Commander, on_change: Callable[[], None] = lambda: None) -> None:
        """Receive the events of an entered commander's tree.

        `on_change` is called in its event loop at the first event after each `line`. It must not
        raise.
        """
        self.close()

        def notify() -> None:
            if tap.full:
                self.process_waiting()
            on_change()

        tap = self._tap = Tap(commander, MAX_BUFFERED_EVENTS, notify, STATUS_EVENTS)

    def now(self) -> float:
        """Return the time of the events' clock; 0 before `follow`."""
        return 0.0 if self._tap is None else self._tap.now()

    def process_waiting(self) -> None:
        """Process the buffered events. `line`, `summary` and `figures` do this first."""
        if self._tap is not None:
            for event in self._tap.take():
                self.process(event)

    def close(self) -> None:
        """Stop receiving events. Safe to call twice."""
        self.process_waiting()
        tap, self._tap = self._tap, None
        if tap is not None:
            tap.close()

    def begin(self, now: float) -> None:
        """Begin a turn."""
        self.end(now)
        self._began, self._turn = now, _Sums()

    def end(self, now: float) -> None:
        """End the turn. `figures` and `summary` describe it until the next one begins."""
        self.process_waiting()
        if self._began is not None:
            self._turn.seconds = self._elapsed(now)
            self._session.seconds += self._turn.seconds
            self._began, self.asks = None, False
            self._requests.clear()
            self._calls.clear()

    def _elapsed(self, now: float) -> float:
        return 0.0 if self._began is None else max(now - self._began, 0.0)

    def process(self, event: Event) -> None:
        """Process an event; ignore other kinds."""
        kind, node, clock, data = event.kind, event.node_id, event.clock, event.data
        match kind, data:
            case "request", RequestEvent(replayed=False):
                self._warming = None
                self._requests[data.number] = _OpenRequest(node, event.agent, clock)
            case "working", ProgressEvent():
                self._note_work(data, clock)
            case "first_chunk", int() if data in self._requests:
                self._requests[data].first_piece = clock
            case "reply", ReplyEvent():
                if (request := self._requests.pop(data.number, None)) is not None:
                    self._count_speed(request, data, clock)
            case "called", ToolCall():
                self._calls[node] = _RunningCall(_words_of(data), event.agent, clock)
            case ("answered", _) | ("completed" | "failed" | "cancelled" | "retried", _):
                self._calls.pop(node, None)
                self._requests = {n: r for n, r in self._requests.items() if r.node != node}
            case "text", str():
                for request in self._requests_of(node):
                    request.written.add(data)
            case ("charged" | "charged_again", Mapping()):
                self._charge(cast("Mapping[Any, Any]", data), again=kind == "charged_again")
            case "waiting", _:
                for request in self._requests_of(node):
                    # `at` is the line that waits: `backends/_turn.py` waits for rate limits.
                    request.is_rate_limited = "_turn.py" in str(getattr(data, "at", ""))
            case _:
                pass

    def _note_work(self, work: ProgressEvent, clock: float) -> None:
        if work.number is None:
            self._warming = work if work.done < work.total or not work.total else None
        elif (request := self._requests.get(work.number)) is not None:
            # Progress without a total must not replace progress with a total.
            if work.total or request.stage is None or request.stage.stage != work.stage:
                request.stage = work
            if work.stage == "reading" and request.reads is None:
                request.reads = clock

    def _requests_of(self, node: int) -> list[_OpenRequest]:
        return [each for each in self._requests.values() if each.node == node]

    def _count_speed(self, request: _OpenRequest, replied: ReplyEvent, clock: float) -> None:
        if request.first_piece is None:
            return
        used = sum((each for each in replied.usage.values() if _is_usage(each)), Usage())
        since = request.asked if request.reads is None else request.reads
        for sums in (self._turn, self._session):
            sums.read += max(used.input_tokens - used.cached_input_tokens, 0)
            sums.reading += max(request.first_piece - since, 0.0)
            sums.wrote += used.output_tokens
            sums.writing += max(clock - request.first_piece, 0.0)

    def _charge(self, amounts: Mapping[Any, Any], *, again: bool) -> None:
        for model, used in amounts.items():
            if isinstance(model, str) and _is_usage(used):
                for sums in (self._session,) if again else (self._turn, self._session):
                    sums.usage[model] = sums.usage.get(model, Usage()) + used

    # --- text

    def figures(self, now: float) -> TurnFigures:
        """Return the figures of the running turn, or of the last one."""
        self.process_waiting()
        return self._turn.figures(self._elapsed(now), self._prices)

    def session(self, now: float) -> TurnFigures:
        """Return the figures of all turns."""
        self.process_waiting()
        return self._session.figures(self._elapsed(now), self._prices)

    def state(self, now: float) -> str:
        """Return the current activity, "" if there is none."""
        self.process_waiting()
        if self.asks:
            return "waiting for your answer"
        requests = sorted(self._requests.values(), key=lambda each: each.first_piece is None)
        activities = [
            *(
                (each.agent, f"{each.words} {_length(now - each.began)}")
                for each in self._calls.values()
            ),
            *((each.agent, _request_words(each, now)) for each in requests),
        ]
        match [self._named(agent, words) for agent, words in activities]:
            case [first]:
                return first
            case [first, second]:
                return f"{first}, {second}"
            case [first, *others]:
                return f"{first} and {len(others)} more"
            case _:
                pass
        if self._warming is not None:
            return _stage_words(self._warming)
        return "" if self._began is None else "thinking"

    def _named(self, agent: str | None, words: str) -> str:
        return (
            words
            if agent in (None, self._name)
            else f"{_short(str(agent), MAX_NAME_CHARS)}: {words}"
        )

    def line(self, now: float, width: int) -> str:
        """Return the status line in `width` cells; the least important parts are left out first."""
        state = self.state(now)
        turn, session = self.figures(now), self.session(now)
        parts = [state] if state else []
        if self._began is not None:
            parts.append(_length(turn.seconds))
        if turn.usage.total_tokens:
            tokens_in, tokens_out = (
                format_tokens(turn.usage.input_tokens),
                format_tokens(turn.usage.output_tokens),
            )
            parts.append(f"{tokens_in or 0} in, {tokens_out or 0} out")
        if session.money:
            parts.append(f"cost {session.money}")
        if session.usage.total_tokens > turn.usage.total_tokens:
            parts.append(f"session {format_tokens(session.usage.total_tokens)}")
        return _fit(parts, " · ", width)

    def summary(self, now: float, width: int) -> str:
        """Return the figures of the turn as text in at most `width` cells."""
        return _fit(self.figures(now).words(), ", ", width)


def _is_usage(used: object) -> bool:
    return isinstance(used, Usage)


def _request_words(request: _OpenRequest, now: float) -> str:
    if request.first_piece is not None:
        written = request.written.tokens
        passed = now - request.first_piece
        if not written:
            return f"writing {_length(passed)}"
        speed = f", {_rate(written / passed)}/s" if passed >= 1 else ""
        return f"writing about {format_tokens(written)} tokens{speed}"
    if request.is_rate_limited and request.stage is None:
        return f"waiting for the rate limit {_length(now - request.asked)}"
    stage = request.stage or ProgressEvent("reading")
    return f"{_stage_words(stage)} {_length(now - request.asked)}"


def _stage_words(work: ProgressEvent) -> str:
    if work.stage == "queued":
        return f"queued behind {work.total} request{'' if work.total == 1 else 's'}"
    words = _STAGES.get(work.stage, "working")
    if work.total <= 0:
        return words
    percent = f"{min(max(100 * work.done // work.total, 0), 100)} %"
    if work.stage != "reading":
        return f"{words} {percent}"
    return f"{words} ({format_tokens(work.total)} tokens{f', {percent}' if work.done > 0 else ''})"


def _words_of(call: ToolCall) -> str:
    arguments = ", ".join(
        f"{_short(name, MAX_NAME_CHARS)}={_value(each)}" for name, each in call.arguments.items()
    )
    return _short(f"{_short(call.name, MAX_NAME_CHARS)}({arguments})", MAX_CALL_CHARS)


def _value(value: object) -> str:
    try:
        return _short(value if isinstance(value, str) else repr(value), MAX_VALUE_CHARS)
    except Exception:  # noqa: BLE001 - a user's repr
        return "..."


def _short(text: str, most: int) -> str:
    """Return untrusted text as part of a line, without keys and control characters."""
    text = " ".join(legible(mask(text[: 20 * MAX_TEXT_CHARS])).split())
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"


def _length(seconds: float, *, fine: bool = False) -> str:
    seconds = max(seconds, 0.0)
    if fine and seconds < 99.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if not minutes:
        return f"{rest} s"
    return (
        f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
    )


def _rate(number: float) -> str:
    return f"{number:.1f}" if number < 10 else f"{number:,.0f}"


def _fit(parts: list[str], between: str, width: int) -> str:
    """Join as many parts as fit. If even the first does not fit, cut it."""
    line = ""
    for part in parts:
        longer = f"{line}{between}{part}" if line else part
        if cell_len(longer) > width:
            break
        line = longer
    if line or not parts or width <= 0:
        return line
    return set_cell_size(parts[0], width - 1).rstrip() + "…"
