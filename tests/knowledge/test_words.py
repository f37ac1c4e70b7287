"""Search by words: any text is a question, in any script, and names are found."""

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.index_file import has_current_words
from support.seeds import example_count

from anabranch.knowledge import Index
from anabranch.knowledge._store import MAX_QUESTION_WORDS, extract_words

PAGES = {
    "put": "Use put_job to hand a job to a node. The other way is put_nowait.",
    "cancel": "Call node.cancel() and all that is below it ends; `JobCancelled` is raised.",
    "money": "Invoices are paid within thirty days, or earlier.",
    "zh": "\u53d6\u6d88\u4efb\u52a1\u4f1a\u7ed3\u675f\u5b83\u7684\u5b50\u4efb\u52a1\u3002",
    "ja": "\u30bf\u30b9\u30af\u3092\u53d6\u308a\u6d88\u3059\u65b9\u6cd5\u3002",
    "th": "\u0e22\u0e01\u0e40\u0e25\u0e34\u0e01\u0e07\u0e32\u0e19\u0e17\u0e31\u0e49\u0e07",
    "ko": "\uc791\uc5c5\uc744 \ucde8\uc18c\ud558\ub294 \ubc29\ubc95",
    "ru": "\u041e\u0442\u043c\u0435\u043d\u0430 \u0437\u0430\u0434\u0430\u0447\u0438",
    "hi": "\u0915\u093e\u0930\u094d\u092f \u0930\u0926\u094d\u0926 \u0915\u0930\u0928\u093e",
    "de": "Die Gr\u00f6\u00dfe der B\u00e4ume",
    "pdf": "Open the \ufb01le.",
    "tr": "\u0130zmir",
    "ja2": "\u30d6\u30e9\u30a6\u30b6",
    "ext": "\U00020000\U00020001\U00020002 is rare",
}


@pytest.fixture
async def pages():
    async with Index(":memory:") as index:
        for name, text in PAGES.items():
            await index.add(name, text)
        yield index


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("put_job", "put"),
        ("How does put_job() work?", "put"),
        ("put job", "put"),
        ("PUT_NOWAIT", "put"),
        ("node.cancel()", "cancel"),
        ("what of `node.cancel`, if anything?", "cancel"),
        ("cancelling", "cancel"),
        ("cancels and ending", "cancel"),
        ("jobcancelled", "cancel"),
        ("paying an invoice", "money"),
        ("\u53d6\u6d88\u4efb\u52a1", "zh"),
        ("\u5b50\u4efb\u52a1\u600e\u4e48\u7ed3\u675f\uff1f", "zh"),
        ("\u30bf\u30b9\u30af", "ja"),
        ("\u0e22\u0e01\u0e40\u0e25\u0e34\u0e01", "th"),
        ("\ucde8\uc18c\ud558\ub294", "ko"),
        ("\u043e\u0442\u043c\u0435\u043d\u0430", "ru"),
        ("\u0930\u0926\u094d\u0926", "hi"),
        ("baume", "de"),
        ("GR\u00d6\u00dfE", "de"),
        ("B\u0061\u0308ume", "de"),
        ("the \ufb01le", "pdf"),
        ("file", "pdf"),
        ("\uff8c\uff9e", "ja2"),
        ("\U00020001", "ext"),
        ("\u0130zmir", "tr"),
        ("i\u0307zmir", "tr"),
    ],
)
async def test_what_is_asked_for_is_found_first(pages, question, name):
    """Names with dots and underscores, inflected words, scripts without spaces."""
    assert [hit.source for hit in await pages.search(question)][:1] == [name]


QUESTIONS = [
    *('"', "'", '"a', 'a"b"c', "*", "a*", "^a", "a NEAR b", "NEAR(a b, 2)", "a AND", "OR", "NOT a"),
    *("heading:a", "{heading text}: a", "- a", "+ a", "(a", "a)", "a + b", "\\", ";", "--", "/*"),
    *("\0", "a\0b", "\0put_job", "\ud800", "a\udfffb", "_", "__", "._-", "a._-b", "a__b", "-", ""),
    *("\u0300", "\u200d", "\ufeff", "\U000e0001", "\U0010ffff", "\u2028", "\u0e34", "\u3000"),
    *(
        "i",
        "is it",
        "\u0130\u0131",
        "\ufb01",
        "\u01c5",
        "\u00df",
        "\u1e9e",
        "1",
        "\u00b2",
        "\u2167",
    ),
]


@pytest.mark.parametrize("question", QUESTIONS)
async def test_any_question_is_one(pages, question):
    """Operators of FTS5 are plain characters."""
    await pages.search(question)
    assert await pages.search(f"{question} put_job")


@settings(max_examples=example_count(150, 5000))
@given(st.text(st.characters(), max_size=60))
async def test_no_text_makes_a_search_fail(question):
    """As a question and as a document, which can be removed without a trace."""
    async with Index(":memory:") as index:
        await index.add("kept", "put_job stays")
        await index.add(question, question, "text")
        await index.search(question)
        await index.remove(question)
        assert [each.name for each in await index.sources()] == ["kept"]
        assert {hit.source for hit in await index.search(f"{question} put_job")} == {"kept"}


@settings(max_examples=example_count(150, 5000))
@given(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=12))
async def test_a_word_is_found_by_itself(word):
    """In any script: documents and questions are treated alike."""
    word = unicodedata.normalize("NFC", word)
    async with Index(":memory:") as index:
        await index.add("a", f"{word} and more", "text")
        held = await index._store._call(  # type: ignore[attr-defined]
            lambda sql: sql.execute(
                "select count(*) from words where words match '\"more\"'"
            ).fetchone()
        )
        assert held == (1,)
        assert [hit.source for hit in await index.search(word)] == ["a"]


@pytest.mark.parametrize(
    "sign", ["a", " ", "a ", "\u4e2d", "_", '"', ".", "a.", "\0", "\U0001f600"]
)
async def test_a_question_of_a_megabyte_is_cut(pages, sign):
    """Its first words are searched."""
    await pages.search(sign * (1_000_000 // len(sign)))
    words = extract_words("put_job " + sign * (1_000_000 // len(sign)))
    assert words[:1] == ["put_job"]
    assert len(words) <= MAX_QUESTION_WORDS


def test_the_commonest_words_say_nothing_beside_others():
    """They are searched if the question has no other words."""
    assert extract_words("What is the matter with it?") == ["matter"]
    assert extract_words("to be or not to be") == ["to", "be", "or", "not"]


async def test_words_and_pieces_agree_whatever_was_put_in(tmp_path):
    """After many changes the index of words equals that of a new index."""
    async with Index(tmp_path / "a.db") as index:
        for turn in range(3):
            for name, text in PAGES.items():
                await index.add(name, f"{text} turn{turn}\0 \ud800 {text[::-1]}")
        for name in list(PAGES)[::2]:
            await index.remove(name)
    assert has_current_words(tmp_path / "a.db")
