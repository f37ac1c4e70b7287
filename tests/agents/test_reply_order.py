"""Reply functions keep their order of definition on the way to another machine."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import cloudpickle
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.agents import AgentMessage, ConversableAgent, reply
from anabranch.agents.conversation._reply import NOT_MINE, reply_rules

names = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)


def agent_class(*written: str, base: type[ConversableAgent] = ConversableAgent) -> type[Any]:
    """Make a class with reply functions defined in this order."""

    def function(name: str) -> Callable[..., Any]:
        def answers(self: Any, message: AgentMessage) -> Any:
            return NOT_MINE

        answers.__name__ = name
        return reply(answers)

    return type("Own", (base,), {name: function(name) for name in written})


def order(cls: type[Any]) -> list[str]:
    return [rule.function.__name__ for rule in reply_rules(cls)]


@given(names, names)
def test_the_order_is_the_one_of_writing(first: list[str], second: list[str]) -> None:
    """For any order of the class's dictionary; those of a subclass come before its bases'.

    One that a subclass overrides keeps its place.
    """
    base = agent_class(*first)
    derived = agent_class(*second, base=base)
    assert order(derived) == [*(name for name in second if name not in first), *first]

    sorted_base = type("Own", (ConversableAgent,), dict(sorted(vars(base).items())))
    assert order(sorted_base) == first


@given(names, names, st.lists(st.sampled_from("abcdefgh"), unique=True))
def test_an_override_changes_no_order(
    first: list[str], second: list[str], third: list[str]
) -> None:
    """Over three classes, marked again or not, and back."""
    base = agent_class(*first)

    def unmarked(self: Any, message: AgentMessage) -> None:
        return None

    plain: type[Any] = type("Own", (base,), dict.fromkeys(second, unmarked))
    assert order(plain) == [name for name in first if name not in second]
    again = agent_class(*third, base=plain)
    kept = [name for name in first if name not in second or name in third]
    assert order(again) == [*(name for name in third if name not in first), *kept]
    overridden = {rule.function for rule in reply_rules(again)} & {*vars(again).values()}
    assert {function.__name__ for function in overridden} == {*third}


async def test_a_general_function_that_is_overridden_stays_behind_the_special_ones() -> None:
    """A message of bob goes to the function for bob."""

    class Base(ConversableAgent):
        @reply(sender="bob")
        def of_bob(self, message: AgentMessage) -> str:
            return "of bob"

        @reply
        def of_others(self, message: AgentMessage) -> str:
            return "of others"

    class Derived(Base):
        @reply
        def of_others(self, message: AgentMessage) -> str:
            return "of others, derived"

    answers: list[str] = []
    for name in ("bob", "ann"):
        chat = await ConversableAgent(name).send("Hello.", Derived("carol"), max_turns=1)
        answers.append(chat.text)
    assert answers == ["of bob", "of others, derived"]


@pytest.mark.parametrize("written", ["cab", "zyx", "bca"])
def test_a_class_that_travels_by_value_keeps_the_order(written: str) -> None:
    """Another process makes the class from its pickle."""
    cls = agent_class(*written)
    sent = cloudpickle.dumps((cls, order))
    code = (
        "import pickle, sys; cls, order = pickle.loads(sys.stdin.buffer.read());"
        "print(''.join(order(cls)))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert done.stdout.decode().strip() == written
    assert "".join(order(pickle.loads(sent)[0])) == written
