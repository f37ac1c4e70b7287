"""Texts that look like keys are masked, and all other texts stay unchanged."""

from __future__ import annotations

import random
import string

import pytest
from support.seeds import SEED, example_count

from anabranch.messages.mask import mask

KEYS = [
    "sk-{}",
    "sk-proj-{}",
    "gsk_{}",
    "hf_{}",
    "ghp_{}",
    "github_pat_{}",
    "xoxb-1-{}",
    "AIza{}",
    "glpat-{}",
    "Bearer {}",
    "https://ann:{}@example.org/x",
    "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----",
]
PLAIN = ["sk-learn", "task-force-of-twelve", "https://example.org/a@b", "bearer of news", "a" * 64]


@pytest.mark.parametrize("form", KEYS)
def test_keys_are_masked_wherever_they_stand(form: str) -> None:
    """In the middle of a text, in lists, in fields and in their names."""
    chance = random.Random(SEED)
    for _ in range(example_count(50, 1000)):
        secret = "".join(chance.choices(string.ascii_letters + string.digits, k=32)) + "7"
        key = form.format(secret)
        value = {"said": [f"it is {key} you see"], key: 1, "n": 2}
        assert secret not in str(mask(value))
        assert mask({"n": 2, "said": "nothing"}) == {"n": 2, "said": "nothing"}


@pytest.mark.parametrize("name", ["api_key", "API-KEY", "client_secret", "password", "token"])
def test_what_stands_in_a_field_for_secrets_is_masked(name: str) -> None:
    """Every value is masked.

    An empty value stays visible, because it shows that the secret is missing.
    """
    assert mask({name: "x"}) == {name: "***"}
    assert mask([{name: ["x"]}]) == [{name: "***"}]
    assert mask({name: None}) == {name: None}
    assert mask({"max_tokens": 5, "tokens": 7}) == {"max_tokens": 5, "tokens": 7}


def test_what_the_environment_has_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values of variables with names of keys, unless they are too short for a key."""
    monkeypatch.setenv("MY_OWN_TOKEN", "open sesame")
    monkeypatch.setenv("MY_SHORT_TOKEN", "the")
    assert mask("say open sesame at the door") == "say *** at the door"


@pytest.mark.parametrize("text", PLAIN)
def test_what_is_no_key_is_left(text: str) -> None:
    """Words, addresses, digests."""
    assert mask(text) == text
