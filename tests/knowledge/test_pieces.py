"""Cutting loses no text, makes no piece too long, and gives each its position."""

import json
import sys
import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.seeds import example_count

from anabranch.commander.errors import ConfigurationError, MissingExtra
from anabranch.knowledge import estimate_tokens, token_counter
from anabranch.knowledge._pieces import cut_pieces
from anabranch.knowledge._read_main import read_text


def words(text):
    return len(text.split())


def signs(text):
    return len(text)


def octets(text):
    return len(text.encode("utf-8", "replace"))


def erratic(text):
    """Counts more in a text than in its parts, and less in some longer texts."""
    return len(text) // 3 + (len(text) % 7) + 2 * text.count("\n\n")


COUNTERS = [estimate_tokens, words, signs, octets, erratic]

lines = st.one_of(
    st.text(st.characters(exclude_characters="\r\0", exclude_categories=["Cs"]), max_size=40),
    st.sampled_from(["", "", "  ", "# One", "## Two", "#### Four", "Set\n===", "Next\n---", "```"]),
    st.sampled_from(["- a\n  - b\n    - c", "| a | b |\n|---|---|\n| c | d |", "[x]: http://y"]),
    st.sampled_from(["<div>\n# no heading\n</div>", "> quote", "---", "\tcode", "word " * 60]),
    st.integers(1, 300).map(lambda number: "x" * number),
    st.integers(1, 40).map(lambda number: "One sentence. " * number),
)
texts = st.lists(lines, max_size=30).map("\n".join)
kinds = st.sampled_from(["markdown", "text", "code"])
sizes = st.integers(16, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n // 2)))


def held_in(signs, pieces):
    """Return whether pieces have all characters in order, ignoring overlaps."""
    rest = iter(signs)
    wanted = next(rest, None)
    for sign in "".join(pieces):
        if sign == wanted:
            wanted = next(rest, None)
    return wanted is None


def dense(text):
    return "".join(text.split())


@settings(max_examples=example_count(150, 2000))
@given(texts, kinds, sizes, st.sampled_from(COUNTERS))
def test_no_piece_is_too_long_and_nothing_is_lost(text, kind, size, counter):
    """Each character of each block is in a piece, in order; none has more than `size` tokens."""
    size, overlap = size
    blocks = read_text(text, kind)
    pieces = cut_pieces(blocks, size, overlap, counter)
    assert all(counter(piece.text) <= size for piece in pieces if len(piece.text) > 1)
    said = [dense(block[1]) for block in blocks if block[0] != "heading"]
    assert held_in("".join(said), [dense(piece.text) for piece in pieces])
    above = "\n".join(piece.heading for piece in pieces)
    assert all(block[1] in above for block in blocks if block[0] == "heading" and block[1])


@settings(max_examples=example_count(100, 2000))
@given(texts, kinds)
def test_reading_loses_nothing_of_a_text(text, kind):
    """Everything except marks of headings is in a block, in order."""
    blocks = read_text(text, kind)
    signs = dense(text)
    if kind == "markdown":
        marks = str.maketrans("", "", "#=-\\&")
        signs = signs.translate(marks)
        blocks = [(*block[:1], block[1].translate(marks)) for block in blocks]
    assert held_in(signs, [dense(block[1]) for block in blocks])


@settings(max_examples=example_count(100, 2000))
@given(texts, kinds, sizes, st.sampled_from(COUNTERS))
def test_each_piece_stands_where_it_says(text, kind, size, counter):
    """Its text begins at its line, also for an overlap."""
    rows = text.split("\n")
    for piece in cut_pieces(read_text(text, kind), *size, counter):
        first = next(line for line in piece.text.split("\n") if line)
        if dense(piece.text) in dense(
            piece.heading
        ):  # a heading alone, which may have several lines
            assert dense(first) in dense("".join(rows[piece.line - 1 :]))
        else:
            assert first.strip() in "\n".join(rows[piece.line - 1 :][:2])


once = st.lists(st.lists(st.sampled_from(["", " ", "\n", ". ", "\n\n"]), max_size=60), max_size=8)


@settings(max_examples=example_count(100, 1000))
@given(once, sizes, st.sampled_from(COUNTERS[:-1]))
def test_an_overlap_is_no_longer_than_asked(gaps, size, counter):
    """A piece repeats at most `overlap` tokens of the one before; with 0 nothing."""
    size, overlap = size
    letters = map(chr, range(0x4E00, 0x9FFF))  # each occurs once
    texts = ["".join(next(letters) + gap for gap in each) for each in gaps]
    blocks = [("text", text, 0, number, 0) for number, text in enumerate(texts, 1)]
    plain = cut_pieces(blocks, size, 0, counter)
    assert dense("".join(piece.text for piece in plain)) == dense("".join(texts))
    for one, two in pairwise(cut_pieces(blocks, size, overlap, counter)):
        before = {letter for letter in one.text if letter.isalpha()}
        again = [number for number, letter in enumerate(two.text, 1) if letter in before]
        assert not again or counter(two.text[: again[-1]]) <= overlap


def test_an_overlap_is_the_whole_lines_before():
    """The piece begins with complete lines, and has their line number."""
    rows = [f"This is the sentence of number {number}." for number in range(1, 30)]
    pieces = cut_pieces([("text", "\n".join(rows), 0, 7, 0)], 60, 12)
    for one, two in pairwise(pieces):
        first = two.text.split("\n")[0]
        assert one.text.split("\n")[-1] == first
        assert two.line == 7 + rows.index(first)


def test_short_blocks_overlap_too():
    """The last paragraphs shorter than the overlap begin the next piece."""
    blocks = [("text", f"Paragraph {number}.", 0, number, 0) for number in range(1, 60)]
    pieces = cut_pieces(blocks, 40, 10)
    assert len(pieces) > 2
    for one, two in pairwise(pieces):
        shared = two.text.split("\n\n")[0]
        assert shared in one.text
        assert two.line == int(shared.removeprefix("Paragraph ").removesuffix("."))


def test_pieces_never_reach_over_a_heading():
    """Each is called after the headings above it, the outermost first."""
    text = "# A\n\none\n\n## B\n\ntwo\n\n### C\n\nthree\n\n## D\n\nfour\n\n# E\n\nfive"
    assert [
        (piece.heading, piece.text, piece.line)
        for piece in cut_pieces(read_text(text, "markdown"), 300, 30)
    ] == [
        ("A", "one", 3),
        ("A > B", "two", 7),
        ("A > B > C", "three", 11),
        ("A > D", "four", 15),
        ("E", "five", 19),
    ]


def test_a_heading_with_nothing_below_it_is_found():
    """It is a separate piece; otherwise no search would find it."""
    text = "# Alone\n\n# Above\n\n## Below\n\n## Last"
    pieces = cut_pieces(read_text(text, "markdown"), 300, 30)
    assert [(piece.heading, piece.text, piece.line) for piece in pieces] == [
        ("Alone", "Alone", 1),
        ("Above > Below", "Below", 5),
        ("Above > Last", "Last", 7),
    ]


def test_parts_that_read_alike_have_their_own_lines():
    """Each of a thousand equal lines has its own line number."""
    pieces = cut_pieces(read_text("\n".join(["again and again"] * 1000), "text"), 40, 0)
    assert all(two.line == one.line + one.text.count("\n") + 1 for one, two in pairwise(pieces))


N = example_count(1, 10)
HOSTILE = {
    "one line": "x" * 1_000_000,
    "one line of words": "word " * (N * 20_000),
    "empty lines": "a" + "\n" * 100_000 + "b",
    "spaces": "a\n" + " " * 1_000_000 + "b",
    "blank lines of spaces": "a\n" + "  \n" * 100_000 + "b",
    "headings": "# h\n\n" * (N * 10_000),
    "deep headings": "".join(f"{'#' * (n % 6 + 1)} h{n}\n" for n in range(N * 10_000)),
    "rules": "---\n" * (N * 10_000),
    "quotes": "> " * 50_000 + "x",
    "brackets": "[" * 100_000,
    "stars": "*a **" * 50_000,
    "ticks": "".join("`" * (n % 300) + " " for n in range(N * 300)),
    "lists": "".join("  " * (n % 300) + "- x\n" for n in range(N * 300)),
    "references": "[a]: b\n" * (N * 2_000),
    "open references": "[a]: <" * (N * 2_000),
    "pipes": "|" * 50_000 + "\n" + "|-" * 50_000 + "\n",
    "entities": "&" * 200_000,
    "open comments": "<!-- " * 50_000,
    "dots": "." * 1_000_000,
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("kind", ["markdown", "text", "code"])
def test_hostile_texts_are_cut_as_soon_as_others(name, kind):
    """Work grows linearly with the length, and the counter is called rarely."""
    asked = 0

    def counter(text):
        nonlocal asked
        asked += len(text)
        return words(text)

    text = HOSTILE[name]
    pieces = cut_pieces(read_text(text, kind), 300, 30, counter)
    assert dense(text) == "" or pieces
    assert asked < 60 * len(text) + 100_000
    assert sum(len(piece.text) for piece in pieces) < 2 * len(text) + 1000


def test_a_word_of_a_megabyte_is_no_piece_by_itself():
    """Whatever the counter returns: 32 characters count as one token at least."""
    pieces = cut_pieces([("text", "x" * 1_000_000, 0, 1, 0)], 300, 0, words)
    assert max(len(piece.text) for piece in pieces) <= 32 * 301


def test_cutting_keeps_little_beside_the_pieces():
    """A long text is not copied once for each piece."""
    blocks = [("text", "word " * 60_000, 0, 1, 0)]
    tracemalloc.start()
    cut_pieces(blocks, 300, 30)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 12 * len(blocks[0][1])


# --- tokens of a model


@pytest.fixture(scope="module")
def tokenizer_json(tmp_path_factory):
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=400, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["One sentence. word code and words"] * 20, trainer)
    tokenizer.enable_truncation(16)
    tokenizer.enable_padding(length=16)
    path = tmp_path_factory.mktemp("model") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@settings(max_examples=example_count(30, 500))
@given(text=texts, size=sizes)
def test_pieces_have_at_most_so_many_tokens_of_a_model(tokenizer_json, text, size):
    """A tokenizer of a model counts, without the truncation and padding that its file has."""
    count = token_counter(tokenizer_json)
    assert count("x" * 100) > 16
    pieces = cut_pieces(read_text(text, "markdown"), *size, count)
    assert all(count(piece.text) <= size[0] for piece in pieces)


def test_a_counter_has_a_name_by_which_an_index_knows_it(tokenizer_json):
    """The same counter has the same name in another process."""
    assert token_counter(tokenizer_json).__qualname__ == f"token_counter({str(tokenizer_json)!r})"


@pytest.mark.parametrize(
    ("name", "library"),
    [("a/tokenizer.json", "tokenizers"), ("org/model", "tokenizers"), ("gpt-4o", "tiktoken")],
)
def test_without_the_library_it_says_what_to_install(monkeypatch, name, library):
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra, match=r"anabranch\[tokens\]") as caught:
        token_counter(name)
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", json.dumps({"model": {"type": "none"}}), None])
def test_a_file_that_is_no_tokenizer_is_one_clear_error(tmp_path, text):
    """The error names the file and an alternative."""
    pytest.importorskip("tokenizers")
    path = tmp_path / "tokenizer.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"cannot count tokens as .*tokenizer\.json"):
        token_counter(path)


def test_a_model_of_openai_that_is_not_known_is_one_clear_error():
    """Nothing is downloaded."""
    pytest.importorskip("tiktoken")
    with pytest.raises(ConfigurationError, match="cannot count tokens as 'no-such-model' does"):
        token_counter("openai:no-such-model")
