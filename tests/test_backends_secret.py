"""Keys stay out of text."""

from __future__ import annotations

import json
from urllib.parse import quote

from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from anabranch.backends._secret import Redactor, as_secret


@given(key=st.text(min_size=4).filter(lambda key: "*" not in key), around=st.text())
def test_a_key_is_found_however_it_is_written(key: str, around: str) -> None:
    """As it is, in JSON, in a URL."""
    redactor = Redactor(SecretStr(key))
    for form in (
        key,
        json.dumps(key)[1:-1],
        json.dumps(key, ensure_ascii=False)[1:-1],
        json.dumps(key)[1:-1].replace("/", "\\/"),
        quote(key),
        quote(key, safe=""),
    ):
        assert form not in redactor.text(around + form + around)


def test_blanks_around_a_key_are_dropped_and_nothing_shows_it() -> None:
    """A newline from a file is no part of it."""
    secret = as_secret(" sk-1234\n")

    assert secret is not None
    assert secret.get_secret_value() == "sk-1234"
    assert "sk" not in repr(secret) + str(secret) + repr(Redactor(secret))
