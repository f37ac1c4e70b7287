"""Texts for people: docstrings, comments, docs and messages."""

from __future__ import annotations

import pytest
from support.message_texts import SNAPSHOT, message_texts
from support.paths import ROOT
from support.prose import figures, files

pytestmark = pytest.mark.checkers  # reading all files takes six seconds

MAX_ODD_PER_1000 = 3
MAX_ODD_PER_1000_IN_FILE = 10
MAX_SENTENCE_WORDS = 18
MAX_LONG_SHARE = 0.05


def test_new_messages_are_reviewed() -> None:
    """A new or changed message fails this test until it is read and `make messages` is run."""
    stored = set(SNAPSHOT.read_text(encoding="utf-8").splitlines())
    new = sorted(set(message_texts()) - stored)
    assert not new, "read these messages, then run `make messages`:\n" + "\n".join(new)


@pytest.mark.parametrize("suffix", [".py", ".md"])
def test_texts_are_in_plain_words(suffix: str) -> None:
    """Few of the phrases that make a reader stop; short sentences. `make prose` has the figures."""
    paths = [path for path in files() if path.suffix == suffix]
    total = figures(paths)
    assert total.odd_per_1000 <= MAX_ODD_PER_1000
    assert total.mean <= MAX_SENTENCE_WORDS
    assert total.long_share <= MAX_LONG_SHARE


def test_no_file_has_many_phrases_that_make_a_reader_stop() -> None:
    """One phrase in a short file is no fault."""
    found = {path: figures([path]) for path in files()}
    odd = {
        str(path.relative_to(ROOT)): round(each.odd_per_1000, 1)
        for path, each in found.items()
        if each.odd > 1 and each.odd_per_1000 > MAX_ODD_PER_1000_IN_FILE
    }
    assert odd == {}
