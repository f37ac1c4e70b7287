"""`@prompt`: the docstring is the template."""

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import ConfigurationError, Message, ToolCall
from anabranch.agents import prompt
from anabranch.agents.layers import Prompt
from anabranch.testing import ScriptedBackend


@prompt
def greeting(name: str, language: str = "English", *others: str) -> str:
    """Greet {name} in {language}.

    Use {{braces}} and {name!r:>8}, and do not forget {others[0]}.
    """


@dataclass
class Agent:
    name: str

    @prompt
    def introduction(self, mood: str) -> str:
        """You are {self.name} and {mood}."""


@prompt
def counted(items: list[str]) -> Any:
    """There are {count}:
    {listed}
    """
    return {"count": len(items), "listed": "\n".join(f"- {item}" for item in items)}


def test_arguments_fill_the_docstring():
    """With defaults, conversions, attributes and items; indentation is removed."""
    assert greeting("Ada", "French", "Bob") == (
        "Greet Ada in French.\n\nUse {braces} and    'Ada', and do not forget Bob."
    )
    assert Agent("Ada").introduction(mood="glad") == "You are Ada and glad."
    assert counted(["a", "b"]) == "There are 2:\n- a\n- b"


@given(st.text(), st.text())
def test_what_is_filled_in_is_never_read_as_a_template(name: str, mood: str):
    """With any braces in it."""
    assert Agent(name).introduction(mood) == f"You are {name} and {mood}."


def test_a_prompt_that_cannot_be_is_refused():
    """Without a docstring, with an invalid template, with a name without a value."""
    with pytest.raises(TypeError, match="needs a docstring"):
        prompt(lambda: None)

    def broken() -> None:
        """Answer as {"json": 1."""

    with pytest.raises(ValueError, match="Write a brace itself twice"):
        prompt(broken)

    @prompt
    def unknown(name: str) -> None:
        """{name} lives in {town}."""

    @prompt
    def returns_text() -> str:
        """Hello."""
        return "Hello"

    with pytest.raises(LookupError, match="has no value for 'town': it has name"):
        unknown("Ada")
    with pytest.raises(TypeError, match="missing a required argument: 'name'"):
        unknown()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="must return None or a mapping"):
        returns_text()


def test_a_prompt_keeps_its_function_s_name():
    """Its repr shows the name."""
    assert greeting.__name__ == "greeting"
    assert repr(greeting) == "<prompt greeting>"
    assert isinstance(Agent.introduction, Prompt)


async def test_a_prompt_may_be_put_to_a_model():
    """With options by the wire's names."""
    backend = ScriptedBackend("Bonjour, Ada.", "I am glad.")
    ask = greeting.with_backend(backend, temperature=0)
    assert await ask("Ada", "French", "") == "Bonjour, Ada."
    assert backend.requests[0].options == {"temperature": 0}
    assert await Agent("Ada").introduction.with_backend(backend)("glad") == "I am glad."
    assert backend.requests[1].messages[0].content == "You are Ada and glad."


@pytest.mark.parametrize("mode", ["text", "tool"])
async def test_a_prompt_may_ask_for_typed_output(mode: Any):
    """It is asked again after an answer that does not fit."""
    arguments = [{"response": "many"}, {"response": 3}]
    calls = [ToolCall(id="c", name="final_answer", arguments=each) for each in arguments]
    replies = [Message(role="assistant", tool_calls=[each]) for each in calls]
    backend = ScriptedBackend(*(replies if mode == "tool" else ("many", "3")))
    ask = greeting.with_backend(backend, output_type=int, output_mode=mode, temperature=0)
    assert await ask("Ada", "French", "") == 3
    assert backend.requests[0].options["temperature"] == 0
    with pytest.raises(ConfigurationError, match="must be a type"):
        greeting.with_backend(backend, output_type=lambda: 1)
