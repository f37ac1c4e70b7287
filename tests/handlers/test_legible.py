"""Text of others reaches a terminal as text, and as nothing else."""

from __future__ import annotations

import io
import json
import re
import sys
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.paths import DATA

from anabranch.agents import AgentMessage
from anabranch.agents.conversation import Transcript
from anabranch.cli._call_layout import escape_unclear, replace_unfit
from anabranch.handlers import ConsoleView
from anabranch.handlers.legible import legible

# Deceptive characters, more often than a random choice would have them.
ODD = (
    "\x00\x07\x08\t\n\x0b\x0c\r\x1b\x7f\x85\x9b\xa0\xad\u034f\u061c\u115f\u1160\u180e\u2028\u2029"
    "\u200b\u200c\u200d\u200e\u200f\u202a\u202e\u2060\u2066\u2069\u2800\u3000\u3164\ufe0f\ufeff"
    "\uffa0\ufffc\u0301\u0489\u20dd\ufdfd\u2e3b\U0001242b\U000e0001\U000e0041\U000e007f\ud800\udfff"
    "\\ |:u{}1bae\"'"
)
# Texts that have fooled a person or a terminal, and such as try to look like the program's own.
HOSTILE: list[str] = [
    text
    for texts in json.loads((DATA / "hostile_terminal.json").read_text()).values()
    for text in texts
]
TEXTS = st.text(st.one_of(st.sampled_from(ODD), st.characters(), st.sampled_from("abc é東👩")))


def read_back(shown: str) -> str:
    """Return the text that `escape_unclear` has written."""
    return re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: chr(int(found[1], 16)), shown)


@given(TEXTS)
def test_the_exact_form_tells_any_two_texts_apart(text: str) -> None:
    """It can be read back, so different texts look different."""
    assert read_back(escape_unclear(text)) == text


@given(TEXTS)
def test_the_exact_form_is_printable_and_of_normal_width(text: str) -> None:
    """Nothing controls, hides, reorders or overflows; each character has its own cells."""
    shown = escape_unclear(text)
    assert {unicodedata.category(each)[0] for each in shown if each != " "} <= set("LMNPS")
    assert not set(shown) & set(ODD[: ODD.index("\\")]) - {"\u0301", "\u0489", "\u20dd"}
    assert longest_run_of_marks(shown) <= 2
    assert not shown.endswith(" ")


def longest_run_of_marks(text: str) -> int:
    runs = "".join("m" if unicodedata.category(each)[0] == "M" else " " for each in text).split()
    return max(map(len, runs), default=0)


@pytest.mark.parametrize(
    "text", ["rm -rf /", "C:\\users\\x", r"\d+\n", "Zoë 東京 हिन्दी Việt é", "🎉"]
)
def test_text_that_people_write_stays_as_it_is(text: str) -> None:
    """Other scripts, marks, emoji, and backslashes that do not begin an escape."""
    assert escape_unclear(text) == text


@given(TEXTS, st.sampled_from(["ascii", "latin-1", "cp1252", "utf-8"]))
def test_what_the_terminal_cannot_encode_is_spelled(text: str, encoding: str) -> None:
    """So a question mark always means a question mark."""
    shown = escape_unclear(text, encoding)

    assert shown.encode(encoding).decode(encoding) == shown
    assert read_back(shown) == text


@pytest.mark.parametrize("text", HOSTILE)
def test_none_of_the_texts_that_have_fooled_somebody_does(text: str) -> None:
    """The exact form can be read back, the legible form controls nothing."""
    assert read_back(escape_unclear(text)) == text
    for shown in escape_unclear(text), legible(text):
        hidden = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
        assert hidden <= set("\n\t")


@given(TEXTS)
def test_spelling_leaves_out_nothing(text: str) -> None:
    """Each character appears once."""
    assert replace_unfit(text, lambda character: character) == text


@given(TEXTS, st.integers(0, 20))
def test_text_to_read_cannot_steer_however_it_is_cut(text: str, cut: int) -> None:
    """Of invisible characters, only line ends, tabs and joiners remain."""
    shown = legible(text)

    assert legible(text[:cut]) + legible(text[cut:]) == shown
    steering = {c for c in shown if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")}
    assert steering <= set("\n\t\u200c\u200d")
    assert legible(shown) == shown


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_plain_view_shows_whatever_a_model_says(
    encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also text that the stream cannot encode, and errors."""
    out, err = io.BytesIO(), io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(out, encoding))
    monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(err, encoding))
    view = ConsoleView()
    view.write("a\x1b[2J\ud800é")
    view.ended()
    view.failed(ValueError("\x1b]0;x\x07\ud800"))

    assert b"\x1b" not in out.getvalue() + err.getvalue()
    assert out.getvalue().decode(encoding) in ("a\ufffd[2J\ufffdé\n", "a?[2J??\n")
    assert err.getvalue().endswith(b"\n")


def test_a_program_without_a_console_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a standard output, a reply continues."""
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    view = ConsoleView()
    view.write("a")
    view.ended()
    view.failed(ValueError("b"))


def test_a_transcript_shows_no_control_characters() -> None:
    """Neither in agents' texts nor in their names."""
    file = io.StringIO()
    Transcript(file)(
        AgentMessage(content="a\x1b[2J\u202e", sender="x\x1b", receiver="y", stream_state="end")
    )

    assert "\x1b" not in file.getvalue()
    assert "\u202e" not in file.getvalue()
