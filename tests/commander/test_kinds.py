"""Arguments of the wrong type are refused when they are passed (commander/kinds.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from anabranch import ConfigurationError
from anabranch.agents import (
    Agent,
    ConversableAgent,
    Directory,
    FewShotAggregator,
    GroupChat,
    GroupTalk,
    Memory,
    Orchestrator,
    PromptedAgent,
    Sequential,
    State,
    StepAgent,
    SummaryMemory,
    ToolExecutor,
    ToolParser,
)
from anabranch.backends import Limits, Price
from anabranch.commander import Restart, Retry, quorum
from anabranch.commander.kinds import checked, passes_with
from anabranch.handlers import handler
from anabranch.jobs import Graph, ResponseJob, add_conditional_edge, add_edge
from anabranch.messages import Conversation
from anabranch.testing import ScriptedBackend
from anabranch.tools import PythonKernel, Tool


@handler
async def work(node: Any) -> None:
    """Do nothing."""


def look(place: str) -> str:
    """Look around."""
    return place


AGENT, BACKEND = Agent(name="one"), ScriptedBackend()


def transition(obs: str | None, state: State) -> None:
    """Return no agent."""


MADE: dict[str, tuple[Callable[..., Any], Mapping[str, Any]]] = {
    "Agent": (
        Agent,
        {"backend": None, "name": None, "memory": None, "aggregator": None, "output_format": None}
        | {"formats": None, "view": None, "approve": None, "tools": (), "hooks": ()}
        | {"max_rounds": 3},
    ),
    "StepAgent": (StepAgent, {"backend": BACKEND, "formats": None, "max_rounds": 4}),
    "ConversableAgent": (
        ConversableAgent,
        {"name": "one", "backend": None, "directory": None, "human_input": print},
    ),
    "Memory": (Memory, {"recent_n": None, "max_tokens": None, "filter": None, "count": len}),
    "SummaryMemory": (SummaryMemory, {"backend": BACKEND, "max_tokens": 9}),
    "Sequential": (lambda agent: Sequential(AGENT, agent), {"agent": AGENT}),
    "a named Sequential": (lambda agent: Sequential({"a": agent}), {"agent": AGENT}),
    "FewShotAggregator": (lambda one: FewShotAggregator([one]), {"one": None}),
    "ToolParser": (ToolParser, {}),
    "ToolExecutor": (ToolExecutor, {"tools": []}),
    "Directory": (lambda one: Directory(one), {"one": ConversableAgent("one")}),
    "GroupChat": (GroupChat, {"name": "all", "members": ["one"], "directory": None}),
    "members": (lambda one: GroupTalk("all", [one]), {"one": "one"}),
    "Orchestrator": (
        Orchestrator,
        {"agents": [AGENT], "transition": transition, "state": State(), "timeout": None},
    ),
    "agents": (lambda one: Orchestrator([one], transition, State()), {"one": AGENT}),
    "PromptedAgent": (
        lambda prompt_engineer: PromptedAgent("one", prompt_engineer, BACKEND),
        {"prompt_engineer": None},
    ),
    "Limits": (
        Limits,
        {"requests_per_minute": 1, "tokens_per_minute": 1, "concurrency": 1}
        | {"budget": 1, "prices": None},
    ),
    "Limits of prices": (lambda one: Limits(prices={"tiny": one}), {"one": Price(1, 2)}),
    "Price": (Price, {"input": 1, "output": 2, "cached_input": None}),
    "Retry": (
        Retry,
        {"attempts": 3, "on": OSError, "backoff": 0, "factor": 2, "jitter": 1, "within": None},
    ),
    "Retry on several": (lambda one: Retry(on=(OSError, one)), {"one": KeyError}),
    "Restart": (Restart, {"max": 3, "within": 60, "backoff": 0}),
    "quorum": (quorum, {"n": 1}),
    "Graph": (lambda one: Graph(work(), one), {"one": None}),
    "add_edge": (
        lambda source, target: add_edge(source or work(), target or work()),
        {"source": None, "target": None},
    ),
    "add_edge of several": (lambda one: add_edge((work(), one or work()), work()), {"one": None}),
    "add_conditional_edge": (
        lambda source, targets, target: add_conditional_edge(
            source or work(), targets or {1: target or work()}
        ),
        {"source": None, "targets": None, "target": None},
    ),
    "Tool": (lambda **options: Tool(look, **options), {"timeout": None, "retry": None}),
    "PythonKernel": (
        PythonKernel,
        {"timeout": 1, "grace": 1, "start_timeout": 1, "idle": None, "max_kernels": None},
    ),
    "ResponseJob": (ResponseJob, {"backend": BACKEND, "conversation": Conversation()}),
}


class Odd:
    """A type that no parameter accepts."""


WRONG = st.sampled_from([Odd(), b"bytes", (Odd(), 2), {"key": Odd()}, [Odd()], 1j, Odd])


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind, (_, names) in MADE.items() for name in names]
)
@given(wrong=WRONG)
def test_an_argument_of_the_wrong_kind_is_refused_where_it_is_given(
    kind: str, name: str, wrong: Any
) -> None:
    """The error names the expected and the actual type at the call, not at a later use."""
    make, options = MADE[kind]
    assume(wrong is not Odd or name not in FUNCTIONS.get(kind, ()))  # a class can be called
    assume(name not in LISTS or not isinstance(wrong, bytes | dict))  # these can be iterated
    with pytest.raises((TypeError, ValueError, ConfigurationError), match=REFUSED) as refused:
        make(**{**options, name: wrong})
    assert any(part in str(refused.value) for part in ("Odd", "bytes", "1j"))


REFUSED = r"must be|is not a tool|has none of|must have a 'role'"
LISTS = ("agents", "formats", "hooks", "members", "tools")
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "Agent": ("approve",),
    "ConversableAgent": ("human_input",),
    "Memory": ("filter", "count"),
    "Orchestrator": ("transition",),
    "Retry": ("on",),
    "Retry on several": ("one",),
    "add_edge": ("target",),
    "add_conditional_edge": ("target",),
}


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: Orchestrator({"one": AGENT}, transition, State()),
            "a list, each item an Agent, not 'one'",
        ),  # type: ignore[dict-item]
        (lambda: Orchestrator([AGENT], transition, State), r"create one, State\(\.\.\.\)$"),  # type: ignore[type-var]
        (lambda: FewShotAggregator([("user", "Hi")]), "'role' and 'content'.*'Hi'"),  # type: ignore[list-item]
        (lambda: Agent(view=print), "a View or None, not <built-in function print>"),  # type: ignore[arg-type]
        (lambda: add_edge([work(), work()], work()), r"several in a tuple, \(a, b\), not \["),  # type: ignore[call-overload]
        (lambda: Graph(work), "must begin at a node, not <handler work>"),  # type: ignore[arg-type]
        (lambda: add_conditional_edge((work(), work()), {}), r"must be a single node, not \("),  # type: ignore[type-var]
        (lambda: Limits(budget="5"), "budget must be a number or None, not '5'"),  # type: ignore[arg-type]
    ],
)
def test_what_is_said_of_an_argument_names_the_remedy(make: Callable[[], Any], said: str) -> None:
    """The messages for commonly confused arguments say how to correct them."""
    with pytest.raises(TypeError, match=said):
        make()


async def test_an_object_that_does_what_is_needed_passes_for_one() -> None:
    """A user's object passes without being a subclass. A class or a file does not."""

    class Parrot:
        default_options: Mapping[str, Any] = {}
        formats = ()
        model = "grey"
        stream = ScriptedBackend(otherwise="Hello").stream

    parrot: Any = Parrot()
    assert (await Agent(parrot)("Hi")).content == "Hello"
    for wrong in (Parrot, open):
        with pytest.raises(TypeError, match="backend must be"):
            Agent(wrong)


# --- annotations


if TYPE_CHECKING:
    Hidden: TypeAlias = Any


class Door(Protocol):
    def knock(self) -> None: ...


@passes_with("sing", "one that sings")
class Bird:
    def sing(self) -> str:
        """Sing."""
        return "peep"


@checked
def visit_bird(
    bird: Bird | None,
    mode: Literal["day", "night"] = "day",
    *more: Bird,
    seconds: float = 1,
    door: Door | None = None,
    unknown: Hidden = None,
    **options: int,
) -> str:
    """Visit a bird."""
    return f"{mode} {seconds}"


visit: Callable[..., str] = visit_bird


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (("bird",), {}, r"^bird must be one that sings or None, not 'bird'$"),
        ((Bird,), {}, r"create one, Bird\(\.\.\.\)$"),
        ((None, 3), {}, r"^mode must be 'day' or 'night', not 3$"),
        ((None,), {"mode": "noon"}, r"^mode must be 'day' or 'night', not 'noon'$"),
        ((None,), {"seconds": "1"}, r"^seconds must be a number, not '1'$"),
    ],
)
def test_a_checked_function_refuses_what_its_annotations_do_not_say(
    arguments: Any, options: Any, said: str
) -> None:
    """The error uses the words of `require`, for positional and keyword arguments."""
    with pytest.raises((TypeError, ValueError), match=said):
        visit(*arguments, **options)


def test_a_checked_function_takes_all_else_as_before() -> None:
    """Duck-typed objects and unchecked annotations pass, and the signature is unchanged."""

    class Parrot:
        sing = Bird.sing

    parrot: Any = Parrot()
    assert visit(parrot, "night", seconds=2, door=3, unknown=Odd(), other=4) == "night 2"
    assert visit(Bird()) == "day 1"
    assert [*signature(visit).parameters][:3] == ["bird", "mode", "more"]
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'bird'"):
        visit()
