"""Options are checked by name: misspelt options and arguments of other objects are not sent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, Commander, ConfigurationError, Conversation, connect
from anabranch.agents import (
    AgentMessage,
    ConversableAgent,
    Sequential,
    StepAgent,
    UserProxyAgent,
    prompt,
)
from anabranch.backends._local_options import _OPTION_NAMES
from anabranch.backends._vllm_reply import _OPTIONS
from anabranch.handlers import respond
from anabranch.jobs import ResponseJob
from anabranch.messages import Request
from anabranch.messages.options import WIRE_OPTIONS
from anabranch.testing import ScriptedBackend

Giver = Callable[..., Any]


@prompt
def question() -> None:
    """Why?"""


GIVERS: dict[str, Giver] = {
    "agent": lambda **options: Agent(ScriptedBackend(), **options),
    "step agent": lambda **options: StepAgent(ScriptedBackend(), **options),
    "conversable": lambda **options: ConversableAgent("a", ScriptedBackend(), **options),
    "person": lambda **options: UserProxyAgent("a", **options),
    "call": lambda **options: Agent(ScriptedBackend()).call("hi", **options),
    "stream": lambda **options: Agent(ScriptedBackend()).stream("hi", **options),
    "request": lambda **options: Conversation().request(**options),
    "bare request": lambda **options: Request((), options=options),
    "job": lambda **options: ResponseJob(ScriptedBackend(), Conversation(), options=options),
    "prompt": lambda **options: question.with_backend(ScriptedBackend(), **options),
    "backend": lambda **options: ScriptedBackend(**options),
    "http": lambda **options: connect("http://127.0.0.1:1/v1", model="m", **options),
    "openai": lambda **options: connect("openai:m", api_key="k", **options),
    "local": lambda **options: connect("local", **options),
}

names = st.from_regex(r"[a-z]{1,8}_[a-z]{1,8}_x", fullmatch=True)


@pytest.mark.parametrize("giver", GIVERS.values(), ids=GIVERS)
def test_a_misspelt_option_is_refused_where_it_is_given(giver: Giver) -> None:
    """The error names it and suggests the nearest option."""
    with pytest.raises(ConfigurationError, match=r"'temprature' \(did you mean 'temperature'"):
        giver(temprature=0)


@given(st.sampled_from([*GIVERS.values()]), st.sets(names, min_size=1, max_size=3))
def test_no_name_but_the_wires_is_an_option(giver: Giver, unknown: set[str]) -> None:
    """The error names all wrong options."""
    with pytest.raises(ConfigurationError) as refused:
        giver(temperature=0, **dict.fromkeys(unknown, 1))

    assert all(repr(name) in str(refused.value) for name in unknown)


@given(st.sampled_from([GIVERS["agent"], GIVERS["request"]]), st.sampled_from(sorted(WIRE_OPTIONS)))
def test_every_name_of_the_wire_is_an_option(giver: Giver, name: str) -> None:
    """Whichever server accepts it."""
    given = giver(**{name: None})

    assert name in given.options


@pytest.mark.parametrize(
    ("make", "written", "meant"),
    [
        ("agent", "max_turn", "max_rounds"),
        ("agent", "system_prompt", "instructions"),
        ("agent", "tool", "tools"),
        ("step agent", "plugin", "plugins"),
        ("conversable", "human_mode", "human_input_mode"),
        ("person", "max_consecutive_replies", "max_consecutive_auto_reply"),
        ("call", "session", "session_id"),
        ("http", "retry", "retries"),
    ],
)
def test_a_misspelt_argument_is_no_option(make: str, written: str, meant: str) -> None:
    """Arguments of the call and of subclasses are suggested too."""
    with pytest.raises(ConfigurationError, match=rf"{written!r} \(did you mean {meant!r}"):
        GIVERS[make](**{written: 3})


async def test_a_misspelt_option_of_respond_asks_no_model() -> None:
    """The error comes before any request."""
    backend = ScriptedBackend("hi")
    with pytest.raises(ConfigurationError, match="temprature"):
        await Agent(backend)("hi", temprature=1)

    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="temprature"):
            await commander.run(respond(backend, Conversation(), temprature=1))
    assert backend.requests == []


async def test_what_forward_names_is_an_argument_of_the_call() -> None:
    """The signature of a subclass declares its arguments. All others are refused."""

    class Careful(Agent[str]):
        async def forward(self, *messages: AgentMessage, depth: int = 1, **options: Any) -> str:
            return f"{depth} {sorted(options)}"

    agent = Careful()

    assert (await agent("hi", depth=3, temperature=0)).content == "3 ['session_id', 'temperature']"
    with pytest.raises(ConfigurationError, match=r"'dept' \(did you mean 'depth'"):
        await agent("hi", dept=3)
    pair = Sequential(agent, Careful())
    assert (await pair("hi", exit_at=0)).content == "1 ['session_id']"


def test_fields_of_a_server_go_into_extra() -> None:
    """Only the server knows them."""
    agent = Agent(ScriptedBackend(), extra={"cache_prompt": True})

    assert agent.options == {"extra": {"cache_prompt": True}}


def test_the_options_of_our_own_engines_are_among_the_wires() -> None:
    """So a request can set them."""
    assert _OPTIONS | _OPTION_NAMES <= WIRE_OPTIONS
