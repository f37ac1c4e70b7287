"""From a name to a backend, and the errors if there is none."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.backends import Fallback, connect
from anabranch.backends._http import HttpBackend
from anabranch.backends._openai import OpenAIBackend
from anabranch.backends._weights import cache_folder
from anabranch.commander import ConfigurationError, MissingExtra
from anabranch.messages import Message, Request

pytestmark = pytest.mark.contract("B1")


@pytest.fixture(autouse=True)
def _no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL", "MISTRAL_API_KEY", "GROQ_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("opnai:gpt-5-mini", "did you mean 'openai:gpt-5-mini'"),
        ("localhost:8801/v1", "did you mean 'http://localhost:8801/v1'"),
        ("localhost", "did you mean 'http://localhost/v1'"),
        ("127.0.0.1:8801", "did you mean 'http://127.0.0.1:8801/v1'"),
        ("[::1]:8801/v1/", "did you mean 'http://[::1]:8801/v1'"),
        ("ollama:11434", "did you mean 'http://ollama:11434/v1'"),
        ("//models.example/v1?key=sk-0123456789", "did you mean 'https://models.example/v1'"),
        ("gpt-5", "unknown model 'gpt-5': put the provider before it, such as 'openai:gpt-5'."),
        (
            "openai/gpt-5-mini",
            "unknown model 'openai/gpt-5-mini': did you mean 'openai:gpt-5-mini'?",
        ),
        ("groq/llama/3", "did you mean 'groq:llama/3'?"),
        ("nobody/large", "unknown model 'nobody/large': use PROVIDER:MODEL."),
        ("model.gguf", "such as 'local:model.gguf'."),
        ("gpt-5-mini", "local, openai, mistral, groq, vllm"),
        ("", "Known are"),
        ("openai", "'openai:MODEL'"),
        ("openai:gpt-5-mini", "OPENAI_API_KEY"),
        ("mistral:small", "MISTRAL_API_KEY"),
        ("groq:llama", "GROQ_API_KEY"),
        ("http://localhost:8000/v1", "model="),
        ("https://", "model="),
        ("openai:https://u:p@h/v1?key=k", "'https://h/v1' is an address, not a model"),
        ("vllm:http://h/v1", "is an address, not a model"),
        ("local:" + "a" * 300, "no local model"),
        ("local:~nosuchuser/x", "no local model '~nosuchuser/x'"),
        ("local:~\0", "no local model"),
    ],
)
def test_what_cannot_be_connected_says_what_to_do(spec: str, said: str) -> None:
    """The error has one line."""
    with pytest.raises(ConfigurationError) as caught:
        connect(spec)

    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_address_must_be_one() -> None:
    """A wrong address is refused, and two addresses are."""
    with pytest.raises(ConfigurationError, match="localhost:8000"):
        connect("openai:x", base_url="localhost:8000/v1", api_key="k")
    with pytest.raises(ConfigurationError, match="once"):
        connect("http://localhost/v1", base_url="http://localhost/v1", model="x")
    with pytest.raises(ConfigurationError, match="is not the address"):
        connect("http://", model="x")


@pytest.mark.contract("B3")
@pytest.mark.parametrize(
    ("provider", "variable", "address"),
    [
        ("openai", "OPENAI_API_KEY", "https://api.openai.com/v1"),
        ("mistral", "MISTRAL_API_KEY", "https://api.mistral.ai/v1"),
        ("groq", "GROQ_API_KEY", "https://api.groq.com/openai/v1"),
    ],
)
def test_keys_and_addresses_come_from_the_environment(
    provider: str, variable: str, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No repr shows the key."""
    monkeypatch.setenv(variable, "sk-from-the-environment")

    backend = connect(f"{provider}:some/model:free")

    assert isinstance(backend, OpenAIBackend)
    assert (backend.provider, backend.model, backend.base_url) == (
        provider,
        "some/model:free",
        address,
    )
    assert "sk-from" not in repr(vars(backend))


def test_openai_base_url_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only for openai; an argument replaces it."""
    monkeypatch.setenv("OPENAI_BASE_URL", "http://localhost:1/v1/")

    one = connect("openai:x", api_key="k")
    other = connect("openai:x", api_key="k", base_url="http://localhost:2/chat/completions")

    assert isinstance(one, OpenAIBackend)
    assert isinstance(other, OpenAIBackend)
    assert (one.base_url, other.base_url) == ("http://localhost:1/v1", "http://localhost:2")


@pytest.mark.contract("B3")
def test_a_password_in_an_address_is_not_shown() -> None:
    """Neither is a query, which may contain a key."""
    backend = connect("http://me:pass@localhost:8000/v1?api-key=hidden", model="x")

    assert isinstance(backend, HttpBackend)
    assert repr(backend) == "HttpBackend('x', base_url='http://localhost:8000/v1')"


@pytest.mark.parametrize(("spec", "extra"), [("openai:x", "openai"), ("http://localhost", "http")])
def test_a_missing_package_names_its_extra(
    spec: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the backend is made, not when it is first used."""
    monkeypatch.setitem(__import__("sys").modules, "aiohttp", None)

    with pytest.raises(MissingExtra, match=rf"anabranch\[{extra}\]"):
        connect(spec, model="x", api_key="k")


@pytest.mark.parametrize(
    ("provider", "said"),
    [
        ("openai", None),
        ("mistral", {"role": "assistant", "content": "Once ", "prefix": True}),
        ("groq", {"role": "assistant", "content": "Once "}),
    ],
)
def test_a_provider_is_asked_to_go_on_as_it_wants_it(
    provider: str, said: dict[str, object] | None
) -> None:
    """Only at its own address; OpenAI cannot continue."""
    backend = connect(f"{provider}:m", api_key="k")
    assert isinstance(backend, OpenAIBackend)
    request = Request([Message(role="user", content="Tell me.")])

    asked = backend.continuation(request, Message(role="assistant", content="Once "))

    assert (asked and backend.fields(asked)["messages"][-1]) == said
    assert asked is None or not {"continue_final_message", "add_generation_prompt"} & set(
        backend.fields(asked)
    )


@pytest.mark.parametrize(
    ("provider", "named"),
    [
        ("openai", {"max_completion_tokens": 9, "seed": 3}),
        ("mistral", {"max_tokens": 9, "random_seed": 3}),
        ("groq", {"max_tokens": 9, "seed": 3}),
    ],
)
def test_options_have_the_providers_names_at_its_own_address(
    provider: str, named: dict[str, object]
) -> None:
    """At other addresses they are sent unchanged."""
    request = Request([Message(role="user", content="Hi")], options={"max_tokens": 9, "seed": 3})
    hosted, elsewhere = (
        connect(f"{provider}:m", api_key="k", base_url=base_url)
        for base_url in (None, "http://localhost:1/v1")
    )
    assert isinstance(hosted, OpenAIBackend)
    assert isinstance(elsewhere, OpenAIBackend)
    own = {"model", "messages", "stream", "stream_options"}

    bodies = [backend.fields(request) for backend in (hosted, elsewhere)]

    assert [{k: v for k, v in body.items() if k not in own} for body in bodies] == [
        named,
        {"max_tokens": 9, "seed": 3},
    ]


@pytest.mark.parametrize("name", ["timeouts", "retries", "limits", "breaker", "resume"])
@pytest.mark.parametrize("wrong", [7, "x", [3], {"attempts": 3}, 10**5000], ids=type)
def test_a_setting_of_the_wrong_kind_is_refused_at_once(name: str, wrong: Any) -> None:
    """Before the first request, by an error that names it."""
    with pytest.raises(ConfigurationError, match=f"^{name}="):
        connect("http://h/v1", model="m", **{name: wrong})


def test_a_fallback_takes_backends_alone() -> None:
    """An address is refused, and not shown because it may contain a key."""
    for wrong in ["http://u:password@h/v1"], "http://u:password@h/v1", [None]:
        with pytest.raises(ConfigurationError, match="connect") as caught:
            Fallback(wrong)  # type: ignore[arg-type]
        assert "password" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("stop", 3),
        ("stop", ["a", None]),
        ("tool_choice", 10**5000),
        ("response_format", 10**5000),
        ("response_format", {"type": "json_schema", "json_schema": {"schema": object()}}),
    ],
    ids=[*"abcde"],
)
def test_an_option_that_the_local_model_cannot_read_is_refused_by_name(
    name: str, wrong: Any
) -> None:
    """For any value."""
    with pytest.raises(ConfigurationError, match=name):
        connect("local", **{name: wrong})


_ODD = ["~", "~nosuchuser", "/", "a" * 300, "\0", "\ud800", "..", ".gguf", "http://", "@", ":", " "]
_NAMES = st.lists(st.sampled_from(_ODD) | st.text(max_size=3), max_size=4).map("".join)


@given(st.sampled_from(["local", "openai", "vllm", "cassette", "http", "opnai", ""]), _NAMES)
def test_any_spec_is_connected_or_refused(provider: str, name: str) -> None:
    """An impossible file name is refused with our error, not the system's."""
    with suppress(ConfigurationError, MissingExtra):
        assert connect(f"{provider}:{name}").model


def test_a_cache_of_an_unknown_user_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable."""
    monkeypatch.setenv("ANABRANCH_CACHE", "~nosuchuser/cache")
    with pytest.raises(
        ConfigurationError, match="ANABRANCH_CACHE=~nosuchuser/cache: this user does not"
    ):
        cache_folder()


def test_a_backend_whose_key_is_missing_can_be_shown() -> None:
    """Debuggers and rich tracebacks show the object whose `__init__` failed."""
    with pytest.raises(ConfigurationError, match="no key") as caught:
        connect("openai:gpt-5-mini")
    shown = [
        repr(each.frame.f_locals["self"])
        for each in caught.traceback
        if "self" in each.frame.f_locals
    ]
    assert [text for text in shown if "OpenAIBackend object at" in text]
