"""S19: the status line of a chat, computed from events alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len

from anabranch import Commander, Conversation, tool
from anabranch.backends import Price
from anabranch.cli.chat._status import STATUS_EVENTS, Status
from anabranch.commander import Event, Origin
from anabranch.commander._event import EventSource
from anabranch.commander._record import Actor
from anabranch.handlers import respond
from anabranch.messages import Message, ProgressEvent, ReplyEvent, RequestEvent, ToolCall, Usage
from anabranch.testing import ScriptedBackend
from tests.handlers.test_legible import TEXTS

WEATHER = ToolCall(id="1", name="get_weather", arguments={"city": "Oslo"})
WIDE = 200
STEERING = set("\x00\x07\x08\n\r\x1b\x7f\x85\x9b\u2028\u202e\u2066\ud800")


def event(
    kind: Any, at: float, data: Any = None, *, node: int = 1, agent: str | None = None
) -> Event:
    actor = None if agent is None else Actor(agent, None)
    return Event(kind, EventSource(node, 0, "node", Origin(0.0), "node", actor), at, data)


def asked(at: float, number: int = 1, **about: Any) -> Event:
    return event("request", at, RequestEvent(number, "local", "small", {}, 1, ()), **about)


def replied(at: float, number: int = 1, used: Usage | None = None, **about: Any) -> Event:
    usage = {} if used is None else {"small": used}
    return event("reply", at, ReplyEvent(number, 1.0, 3, usage, "stop"), **about)


def status(*events: Event, began: float = 0.0, **settings_: Any) -> Status:
    made = Status(**settings_)
    made.begin(began)
    for each in events:
        made.process(each)
    return made


def test_from_the_first_moment_of_a_turn_something_is_said() -> None:
    """The line has text from the start of a turn on, and none outside of turns."""
    made = Status()
    assert made.line(0.0, WIDE) == ""
    made.begin(1.0)
    assert made.line(1.0, WIDE) == "thinking · 0 s"
    made.end(3.0)
    assert made.line(4.0, WIDE) == ""


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (ProgressEvent("queued", 0, 1, 1), "queued behind 1 request 2 s"),
        (ProgressEvent("queued", 0, 3, 1), "queued behind 3 requests 2 s"),
        (ProgressEvent("fetching", 40, 100, 1), "fetching the model 40 % 2 s"),
        (ProgressEvent("loading", 0, 0, 1), "loading the model 2 s"),
        (ProgressEvent("reading", 0, 0, 1), "reading the prompt 2 s"),
        (ProgressEvent("reading", 0, 812, 1), "reading the prompt (812 tokens) 2 s"),
        (ProgressEvent("reading", 406, 812, 1), "reading the prompt (812 tokens, 50 %) 2 s"),
        (ProgressEvent("reading", 900, 812, 1), "reading the prompt (812 tokens, 100 %) 2 s"),
    ],
)
def test_what_the_model_is_busy_with_before_it_speaks(work: ProgressEvent, words: str) -> None:
    """Each stage has words and its progress."""
    assert status(asked(1.0), event("working", 1.5, work)).state(3.0) == words


def test_a_model_that_says_nothing_of_its_work_reads_the_prompt() -> None:
    """Without progress events, as from servers, the line says that the model reads the prompt."""
    assert status(asked(1.0)).state(4.0) == "reading the prompt 3 s"


def test_a_reply_is_counted_while_it_is_written() -> None:
    """Tokens and speed are estimated from the text; a reply without text has a line too."""
    made = status(asked(0.0), event("first_chunk", 1.0, 1))
    assert made.state(2.0) == "writing 1 s"
    for piece in "你好" * 15, *(["Some ", "wor", "ds, "] * 5):
        made.process(event("text", 2.0, piece))
    assert made.state(3.0) == "writing about 47 tokens, 24/s"
    made.process(replied(3.0))
    assert made.state(3.0) == "thinking"


def test_tools_are_shown_with_what_they_were_given() -> None:
    """One, two and several calls are shown until each has ended in any way."""
    made = status(event("called", 0.0, WEATHER, node=5))
    assert made.state(2.0) == "get_weather(city=Oslo) 2 s"
    made.process(event("called", 1.0, ToolCall(id="2", name="now", arguments={}), node=6))
    assert made.state(2.0) == "get_weather(city=Oslo) 2 s, now() 1 s"
    made.process(event("called", 1.0, WEATHER, node=7))
    assert made.state(2.0) == "get_weather(city=Oslo) 2 s and 2 more"
    made.process(event("answered", 2.0, None, node=5))
    made.process(event("failed", 2.0, ValueError(), node=6))
    made.process(event("cancelled", 2.0, "why", node=7))
    assert made.state(2.0) == "thinking"


def test_agents_below_are_named_and_the_one_that_answers_is_not() -> None:
    """The activity of a sub-agent has its name."""
    made = status(
        event(
            "called", 0.0, ToolCall(id="1", name="ask_writer", arguments={}), node=2, agent="ann"
        ),
        asked(1.0, node=3, agent="writer"),
        name="ann",
    )
    assert made.state(2.0) == "ask_writer() 2 s, writer: reading the prompt 1 s"


def test_a_person_who_is_asked_is_waited_for() -> None:
    """A visible question replaces other activity until the end of the turn."""
    made = status(asked(0.0))
    made.asks = True
    assert made.state(1.0) == "waiting for your answer"
    made.end(2.0)
    assert made.state(2.0) == ""


def test_a_model_that_gets_ready_is_shown_between_turns() -> None:
    """The progress is shown until it ends or a request begins."""
    made = Status()
    made.process(event("working", 0.0, ProgressEvent("loading")))
    assert made.line(1.0, WIDE) == "loading the model"
    made.process(event("working", 0.0, ProgressEvent("reading", 5, 10)))
    assert made.line(1.0, WIDE) == "reading the prompt (10 tokens, 50 %)"
    made.process(event("working", 0.0, ProgressEvent("reading", 10, 10)))
    assert made.line(1.0, WIDE) == ""


def test_a_replayed_request_is_none() -> None:
    """A request replayed from the journal is not shown."""
    old = event("request", 0.0, RequestEvent(1, "local", "small", {}, 1, (), replayed=True))
    assert status(old).state(1.0) == "thinking"


def test_the_summary_has_seconds_tokens_and_speed() -> None:
    """The summary covers one turn; the session covers all."""
    used = Usage(input_tokens=812, output_tokens=120, cached_input_tokens=600)
    prices = {"small": Price(1.0, 2.0)}
    made = status(prices=prices)
    for turn in (0.0, 100.0):
        made.begin(turn)
        made.process(asked(turn))
        made.process(event("working", turn + 0.5, ProgressEvent("reading", 0, 812, 1)))
        made.process(event("first_chunk", turn + 1.5, 1))
        made.process(event("charged", turn + 7.0, {"small": used}))
        made.process(replied(turn + 7.5, used=used))
        made.end(turn + 7.2)
    assert made.summary(300.0, WIDE) == (
        "7.2 s, 812 + 120 tokens (600 cached), 20 tokens/s, cost 0.0011"
    )
    figures = made.figures(300.0)
    assert (figures.reading, figures.writing) == (212.0, 20.0)
    assert made.session(300.0).usage == used + used
    assert made.session(300.0).seconds == pytest.approx(14.4)
    assert made.line(300.0, WIDE) == "812 in, 120 out · cost 0.0021 · session 1.9k"


def test_a_model_without_a_price_makes_the_cost_a_least() -> None:
    """With unknown prices the cost says "at least"; without any price there is no cost."""
    used = {"small": Usage(input_tokens=10**6), "other": Usage(input_tokens=5)}
    assert "cost" not in status(event("charged", 1.0, used)).summary(2.0, WIDE)
    made = status(event("charged", 1.0, used), prices={"small": Price(1.0, 1.0)})
    assert made.summary(2.0, WIDE).endswith("cost at least 1.0000")


def test_what_an_earlier_life_has_spent_is_of_the_session() -> None:
    """Usage from before a restart counts for the session and not for the turn."""
    made = status(event("charged_again", 0.0, {"small": Usage(input_tokens=7)}))
    assert made.figures(1.0).usage.total_tokens == 0
    assert made.session(1.0).usage.total_tokens == 7


def test_what_matters_least_is_left_out_first() -> None:
    """Session, cost, tokens and seconds are left out in this order; the activity is cut last."""
    used = {"small": Usage(input_tokens=800, output_tokens=40)}
    made = status(
        event("charged_again", 0.0, used),
        event("charged", 0.0, used),
        event("called", 0.0, WEATHER, node=2),
        prices={"small": Price(1.0, 1.0)},
    )
    whole = "get_weather(city=Oslo) 2 s · 2 s · 800 in, 40 out · cost 0.0017 · session 1.7k"
    seen = {made.line(2.0, width) for width in range(len(whole) + 5)}
    assert whole in seen
    cut = whole
    while " · " in cut:
        cut = cut.rpartition(" · ")[0]
        assert cut in seen
    assert made.line(2.0, 10) == "get_weath…"


def test_keys_and_control_characters_do_not_show() -> None:
    """Keys and control characters in names and arguments are not shown."""
    hostile = "a\x1b[2J\n\u202eb"
    call = ToolCall(
        id="1", name=hostile, arguments={hostile: hostile, "api_key": "sk-" + "a1" * 20}
    )
    line = status(event("called", 0.0, call, node=2, agent=hostile)).line(1.0, WIDE)
    assert not STEERING & set(line)
    assert "a1a1" not in line


NUMBERS = st.integers(0, 3)
USAGES = st.builds(Usage, input_tokens=st.integers(0, 10**15), output_tokens=st.integers(0, 10**9))


def a_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=arguments)


def a_question(number: int) -> RequestEvent:
    return RequestEvent(number, "p", "m", {}, 1, ())


def a_reply(number: int, used: Usage) -> ReplyEvent:
    return ReplyEvent(number, None, 0, {"m": used})


ODD_DATA = st.one_of(
    st.none(),
    st.integers(-1, 3),
    TEXTS,
    st.builds(
        a_call,
        TEXTS,
        st.dictionaries(TEXTS, st.one_of(TEXTS, st.integers(), st.lists(TEXTS, max_size=2))),
    ),
    st.builds(
        ProgressEvent,
        st.sampled_from(["queued", "waiting", "fetching", "verifying", "loading", "reading"]),
        st.integers(-5, 10**12),
        st.integers(-5, 10**12),
        st.one_of(st.none(), NUMBERS),
    ),
    st.builds(a_question, NUMBERS),
    st.builds(a_reply, NUMBERS, USAGES),
    st.dictionaries(st.one_of(TEXTS, st.integers()), st.one_of(USAGES, st.integers()), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(STATUS_EVENTS),
            st.floats(0, 1e9),
            ODD_DATA,
            st.integers(0, 3),
            st.one_of(st.none(), TEXTS),
        ),
        max_size=12,
    ),
    st.integers(-3, 120),
    st.floats(-10, 1e9),
)
def test_whatever_happens_the_line_fits_and_cannot_steer(
    events: list[tuple[Any, float, Any, int, str | None]], width: int, now: float
) -> None:
    """The line never raises, never exceeds the width, and has no control character."""
    made = Status("ann", {"m": Price(1.0, 2.0)})
    for number, (kind, at, data, node, agent) in enumerate(events):
        if number % 5 == 1:
            made.begin(at)
        made.process(event(kind, at, data, node=node, agent=agent))
        for line in (made.line(now, width), made.summary(now, width)):
            assert cell_len(line) <= max(width, 0)
            assert not STEERING & set(line)
    made.end(now)
    made.end(now)


async def test_a_turn_of_a_real_tree_is_followed() -> None:
    """The events of a real tree give the request, the tool, the second request and the totals."""
    runs, go_on = asyncio.Event(), asyncio.Event()

    @tool
    async def wait_here(city: str) -> str:
        """Wait."""
        runs.set()
        await go_on.wait()
        return city

    call = ToolCall(id="1", name="wait_here", arguments={"city": "Oslo"})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "Done.")
    changes = 0

    def changed() -> None:
        nonlocal changes
        changes += 1

    async with Commander() as commander:
        made = Status()
        made.follow(commander, changed)
        made.begin(made.now())
        conversation = Conversation()
        conversation.add("Wait.")
        answer = commander.call_handler(respond(backend, conversation, [wait_here]))
        await asyncio.wait_for(runs.wait(), 30)
        assert made.state(made.now()).startswith("wait_here(city=Oslo) 0 s")
        go_on.set()
        await answer
        made.end(made.now())
        assert made.figures(0.0).usage == sum(commander.usage().values(), Usage())
        assert made.state(made.now()) == ""
        made.close()
        made.close()
    assert changes
