"""Names of other frameworks are refused with the names to write instead."""

from __future__ import annotations

import gc
import warnings
from importlib import import_module
from typing import Any

import pytest

import anabranch
import anabranch.tools
from anabranch import Agent, AgentMessage, ConfigurationError, Message
from anabranch.agents import (
    ConversableAgent,
    Orchestrator,
    PromptedAgent,
    PromptEngineer,
    ReplyResult,
    State,
    StepAgent,
    ToolExecutor,
    UserProxyAgent,
    reply,
)
from anabranch.backends import connect
from anabranch.commander.other_names import (
    CLASS_ADVICE,
    OPTION_ADVICE,
    OTHER_FIELDS,
    OTHER_OPTIONS,
    PLACE_ADVICE,
)
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend

MAKERS: dict[str, Any] = {
    "context": Agent().call,
    "finished": lambda **options: StepAgent(ScriptedBackend(), **options),
    "is_termination": lambda **options: ConversableAgent("ann", **options),
}


@pytest.mark.parametrize("name", sorted(OTHER_OPTIONS))
def test_an_option_of_another_framework_says_what_to_write(name: str) -> None:
    """Where the argument exists."""
    meant = OTHER_OPTIONS[name]
    with pytest.raises(ConfigurationError, match=rf"{name!r} \(did you mean '{meant}'\?\)"):
        MAKERS.get(meant, Agent)(**{name: None})


@pytest.mark.parametrize("name", sorted(OPTION_ADVICE))
def test_an_option_that_is_no_argument_says_what_to_do(name: str) -> None:
    for refuse in (
        lambda: Agent(**{name: None}),
        lambda: ConversableAgent("ann", **{name: None}),
        *(
            [lambda: Agent().call("Hello", **{name: None})]
            if name not in ("context", "history")
            else []
        ),
        lambda: Request((), options={name: None}),
    ):
        with pytest.raises(ConfigurationError) as refused:
            refuse()
        assert str(refused.value).endswith(f"has no option {name!r} ({OPTION_ADVICE[name]})")


def test_an_option_of_another_framework_says_where_its_argument_is() -> None:
    """Where the argument belongs to the call."""
    with pytest.raises(ConfigurationError, match=r"'deps' \(each call takes context="):
        Agent(ScriptedBackend(), deps=None)


@pytest.mark.parametrize("name", sorted(PLACE_ADVICE))
def test_an_option_of_another_class_or_of_a_call_says_where_it_belongs(name: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        Agent(**{name: None})
    assert str(refused.value).endswith(f"has no option {name!r} ({PLACE_ADVICE[name]})")


@pytest.mark.parametrize("name", sorted(OTHER_FIELDS))
def test_a_field_of_another_frameworks_message_says_what_to_write(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"no field {name!r}.*mean {OTHER_FIELDS[name]!r}"):
        AgentMessage(content="Hi", **{name: {}})


def test_a_misspelt_field_of_a_message_is_refused_with_the_nearest() -> None:
    """Stored data with unknown fields is still read."""
    with pytest.raises(ConfigurationError, match=r"no field 'recevier' \(did you mean 'receiver'"):
        AgentMessage(content="Hi", recevier="bob")
    with pytest.raises(ConfigurationError, match="no field 'xyzzy'"):
        AgentMessage(content="Hi", xyzzy=1)
    read = AgentMessage.model_validate({"content": "Hi", "colour": "red"})
    assert read.content == "Hi"
    assert AgentMessage(content="Hi", formatted=1).output == 1

    class Longer(AgentMessage):
        colour: str = ""

    assert Longer(content="Hi", colour="red").colour == "red"


@pytest.mark.parametrize("name", ["api_key", "openai_api_key", "api_base", "base_url", "history"])
@pytest.mark.parametrize("other", [{}, {"frobnicate": 1}])
def test_a_key_or_an_address_is_never_advised_to_go_into_the_body(
    name: str, other: dict[str, Any]
) -> None:
    with pytest.raises(ConfigurationError, match=f"'{name}' \\(.*=") as caught:
        Agent("openai:gpt-5-mini", **{name: "sk-1234", **other})
    assert "extra" not in str(caught.value)
    assert "sk-1234" not in str(caught.value)
    assert ("connect('openai:MODEL', " in str(caught.value)) == (name != "history")


def test_white_space_around_the_name_of_a_model_is_dropped() -> None:
    assert repr(Agent(" openai:gpt-5-mini\n").backend) == "NamedBackend('openai:gpt-5-mini')"
    assert connect(" openai:m ", api_key="k").model == "m"


def test_an_unknown_option_beside_one_with_advice_has_the_usual_advice_too() -> None:
    with pytest.raises(ConfigurationError, match=r"'foo_bar', 'timeout' \(the time .*extra="):
        Agent(ScriptedBackend(), timeout=None, foo_bar=1)


@pytest.mark.parametrize("name", sorted(CLASS_ADVICE))
def test_an_import_of_another_framework_says_what_to_import(name: str) -> None:
    """The named object exists, and no package has the refused name."""
    home, _, meant = CLASS_ADVICE[name].rpartition(".")
    assert hasattr(import_module(home), meant)
    for package in (anabranch, anabranch.tools):
        assert name not in dir(package)
        use = "" if name == meant else f"Use {meant}: "
        with pytest.raises(ImportError, match=f"has no {name}. {use}from {home} import {meant}"):
            exec(f"from {package.__name__} import {name}")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from anabranch.tools import Nothing")


@pytest.mark.parametrize("pair", [(True, {"content": "Hi"}), (True, None), (False, None)])
async def test_a_reply_function_that_returns_a_pair_is_told_what_to_return(pair: Any) -> None:
    class Bob(ConversableAgent):
        @reply
        async def speak(self, message: Any) -> ReplyResult:
            return pair

    with pytest.raises(TypeError, match=r"Return the answer alone instead of \(True, answer\)"):
        await UserProxyAgent("user").initiate_chat(Bob("bob"), "Hello")


async def test_a_prompt_engineer_that_returns_nothing_is_told_what_to_return() -> None:
    class Poet(PromptEngineer[State]):
        def render_prompt(self, obs: str | None, history: list[Message], state: State) -> None:
            history[:] = [Message(role="user", content="Write.")]

        def process_response(self, *_: Any) -> Any:
            return None

    agent = PromptedAgent("poet", Poet(), ScriptedBackend("A poem."))
    orchestrator = Orchestrator([agent], lambda obs, state: "poet", State())
    with pytest.raises(TypeError, match=r"a text, not None\. Return the agent's answer"):
        await orchestrator.forward("Begin.")


# --- calls that nobody awaits


@pytest.mark.parametrize(
    ("call", "advice"),
    [
        (lambda: Agent(ScriptedBackend())("Hello"), "use agent.run_sync(...)"),
        (lambda: ToolExecutor([])(Message(role="user")), "use executor.run_sync(...)"),
        (
            lambda: ConversableAgent("ann").initiate_chat("bob", "Hello"),
            "use Chat(agent, recipient, message).run_sync()",
        ),
    ],
)
def test_a_call_that_is_never_awaited_warns_with_the_sync_form(call: Any, advice: str) -> None:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
        gc.collect()
    (text,) = [str(each.message) for each in found if "never awaited" in str(each.message)]
    assert f"in a program without a loop {advice})' was never awaited" in text
