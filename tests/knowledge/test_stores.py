"""The promises of an index in both stores: SQLite and PostgreSQL."""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.paths import TESTS
from support.seeds import SEED, example_count

from anabranch.knowledge import Index, KnowledgeError

pytest.importorskip("numpy")

IN_POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(scope="module", params=["sqlite", IN_POSTGRES])
def place(request, tmp_path_factory):
    """Give a function that returns the name of a new index."""
    if request.param == "postgres":
        return request.getfixturevalue("postgres").address
    return lambda: str(tmp_path_factory.mktemp("index") / "a.db")


@pytest.fixture(scope="module")
def words_place(place):
    """One index for all examples of a random test."""
    return place()


async def embed(texts):
    return [[1.0, 0.0] if "zebra" in text else [0.5, 1.0] for text in texts]


async def longer(texts):
    return [[1.0, 0.0, 0.0] for _ in texts]


def start(program):
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=TESTS,
    )


def ended(life):
    said, wrong = life.communicate(timeout=120)
    assert life.returncode == 0, wrong
    return said


async def held(name):
    """Return the texts of each document of an index, found by a word that all have."""
    async with Index(name) as index:
        found: dict[str, list[str]] = {each.name: [] for each in await index.sources()}
        counts = {each.name: each.pieces for each in await index.sources()}
        for hit in sorted(await index.search("stays", k=10_000), key=lambda hit: hit.number):
            found[hit.source].append(hit.text)
    assert {name: len(texts) for name, texts in found.items()} == counts
    return found


# --- what is in it


async def test_a_document_takes_the_place_of_what_was_called_so(place):
    """All its pieces are new; the old ones are not found."""
    async with Index(place()) as index:
        assert await index.add("a", "# One\n\nold horse\n\n# Two\n\nold cow") == 2
        assert await index.add("a", "# One\n\nnew horse") == 1
        assert [(each.name, each.pieces) for each in await index.sources()] == [("a", 1)]
        assert [hit.text for hit in await index.search("horse")] == ["new horse"]
        assert await index.search("cow") == []
        assert await index.add("a", "") == 0
        assert await index.search("horse") == []
        assert await index.remove("a") == 1
        assert await index.remove("a") == 0
        assert await index.sources() == []


async def test_a_piece_says_where_it_is_from(place):
    """Source, heading, text, line and page return unchanged."""
    async with Index(place()) as index:
        await index.add("b.md", "# Animals\n\n## Cows\n\nThe cow moos.")
        (hit,) = await index.search("cow")
        assert hit[1:-1] == ("b.md", "Animals > Cows", "The cow moos.", 5, 0)
        await index._store.rename("b.md", "c.md")
        (hit,) = await index.search("cow")
        assert hit.place == "c.md:5"


async def test_sources_are_in_the_order_of_their_names(place):
    """By their code points, whatever the language of the machine."""
    names = ["b", "B", "a", "_", "\u00e9", "z", "\U0001f600", "a b", "a-b"]
    async with Index(place()) as index:
        for name in names:
            await index.add(name, "text")
        assert [each.name for each in await index.sources()] == sorted(names)


async def test_a_folder_is_followed(place, tmp_path):
    """Unchanged files are not read again, and deleted files are removed."""
    (tmp_path / "a.md").write_text("# A\n\nhorse stays")
    (tmp_path / "b.md").write_text("# B\n\ncow stays")
    async with Index(place()) as index:
        assert len((await index.add_folder(tmp_path)).added) == 2
        (tmp_path / "a.md").write_text("# A\n\nzebra stays")
        (tmp_path / "b.md").unlink()
        report = await index.add_folder(tmp_path)
        assert (len(report.changed), len(report.removed), report.unchanged) == (1, 1, [])
        assert [hit.text for hit in await index.search("stays")] == ["zebra stays"]
        assert len((await index.add_folder(tmp_path)).unchanged) == 1


async def test_numbers_are_never_used_again(place):
    """A citation of a removed piece does not refer to another one."""
    name = place()
    async with Index(name) as index:
        await index.add("a", "one put_job")
        (old,) = await index.search("put_job")
        await index.remove("a")
    async with Index(name) as index:
        await index.add("b", "two put_job")
        (new,) = await index.search("put_job")
        assert new.number > old.number
        assert await index._store.read([old.number, new.number, 10**12]) == (
            await index._store.read([new.number])
        )


# --- S24, S25


async def test_another_embedder_or_size_is_refused(place):
    """So is none if there are vectors; the documents stay and are found."""
    name = place()
    async with Index(name, embed=embed, embedder="own") as index:
        await index.add("a", "about zebra")
    for other in (
        Index(name, embed=embed, embedder="another"),
        Index(name, embed=longer, embedder="own"),
        Index(name),
    ):
        with pytest.raises(KnowledgeError, match="has vectors of 2 by own"):
            await other.add("b", "about zebra")
        if other._embed is not None:
            with pytest.raises(KnowledgeError, match="has vectors of 2 by own"):
                await other.search("zebra")
        await other.aclose()
    async with Index(name, embed=embed, embedder="own") as index:
        assert [hit.source for hit in await index.search("zebra")] == ["a"]


async def test_a_document_of_no_pieces_fits_beside_any_vectors(place):
    """It has no vectors, also while others add the first ones."""
    name = place()
    async with Index(name, embed=embed, embedder="own") as index, Index(name) as plain:
        for number in range(20):
            first = index.add("a", "about zebra") if number == 10 else index.add(f"b{number}", "")
            await asyncio.gather(first, plain.add(f"c{number}", ""))
        assert len(await index.sources()) == 40
        assert [hit.source for hit in await index.search("zebra")] == ["a"]


async def test_as_many_passages_as_a_number_can_say(place):
    """The limit stays within the store's integers; all passages are found."""
    async with Index(place(), embed=embed, embedder="own") as index:
        await index.add("a", "about zebra")
        for k in (2**31, 2**63, 10**30):
            assert len(await index.search("zebra", k)) == 1


async def test_of_two_embedders_at_once_one_is_refused(place):
    """An index never has vectors of both."""
    name = place()
    indexes = [Index(name, embed=embed, embedder=f"own{number}") for number in range(4)]
    done = await asyncio.gather(
        *(index.add(str(number), "text") for number, index in enumerate(indexes)),
        return_exceptions=True,
    )
    assert sorted(map(str, map(type, done))) == sorted([str(int), *[str(KnowledgeError)] * 3])
    for index in indexes:
        await index.aclose()


async def test_vectors_are_searched_exactly(place):
    """The result equals that of a loop over all vectors."""
    np = pytest.importorskip("numpy")
    rng = np.random.default_rng(SEED)
    texts = {f"text {number}": rng.normal(size=48) for number in range(120)}

    async def known(asked):
        return [texts[text.rpartition("\n")[2]] for text in asked]

    async with Index(place(), embed=known, embedder="known") as index:
        for name, _ in zip(texts, range(100), strict=False):
            await index.add(name, name)
        kept = list(texts.items())[:100]
        for name, vector in list(texts.items())[100:]:
            ((packed, _),) = await index._vectors([name])
            numbers = await index._store.search_vectors(packed, 10)
            found = [each.piece.text for each in await index._store.read(numbers)]
            near = sorted(kept, key=lambda each: -(each[1] @ vector) / np.linalg.norm(each[1]))
            assert found == [text for text, _ in near[:10]]


# --- words

PAGES = {
    "put": "Use put_job to hand a job to a node. The other way is put_nowait.",
    "cancel": "Call node.cancel() and all that is below it ends; `JobCancelled` is raised.",
    "money": "Invoices are paid within thirty days, or earlier.",
    "zh": "\u53d6\u6d88\u4efb\u52a1\u4f1a\u7ed3\u675f\u5b83\u7684\u5b50\u4efb\u52a1\u3002",
    "ja": "\u30bf\u30b9\u30af\u3092\u53d6\u308a\u6d88\u3059\u65b9\u6cd5\u3002",
    "th": "\u0e22\u0e01\u0e40\u0e25\u0e34\u0e01\u0e07\u0e32\u0e19\u0e17\u0e31\u0e49\u0e07",
    "ko": "\uc791\uc5c5\uc744 \ucde8\uc18c\ud558\ub294 \ubc29\ubc95",
    "ru": "\u041e\u0442\u043c\u0435\u043d\u0430 \u0437\u0430\u0434\u0430\u0447\u0438",
    "de": "Die Gr\u00f6\u00dfe der B\u00e4ume",
}


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("put_job", "put"),
        ("How does put_job() work?", "put"),
        ("PUT_NOWAIT", "put"),
        ("what of `node.cancel`, if anything?", "cancel"),
        ("cancelling", "cancel"),
        ("jobcancelled", "cancel"),
        ("paying an invoice", "money"),
        ("\u53d6\u6d88\u4efb\u52a1", "zh"),
        ("\u5b50\u4efb\u52a1\u600e\u4e48\u7ed3\u675f\uff1f", "zh"),
        ("\u30bf\u30b9\u30af", "ja"),
        ("\u0e22\u0e01\u0e40\u0e25\u0e34\u0e01", "th"),
        ("\ucde8\uc18c\ud558\ub294", "ko"),
        ("\u043e\u0442\u043c\u0435\u043d\u0430", "ru"),
        ("\u041e\u0422\u041c\u0415\u041d\u0410", "ru"),
        ("baume", "de"),
        ("GR\u00d6\u00dfE", "de"),
    ],
)
async def test_what_is_asked_for_is_found_first(words_place, question, name):
    """Names with dots and underscores, inflected words, scripts without spaces."""
    async with Index(words_place) as index:
        if len(await index.sources()) < len(PAGES):
            for page, text in PAGES.items():
                await index.add(page, text)
        assert [hit.source for hit in await index.search(question)][:1] == [name]


async def test_the_parts_of_a_name_stand_side_by_side(place):
    """A page with separated parts does not match the name."""
    async with Index(place()) as index:
        await index.add("apart", "a job that is put aside")
        await index.add("name", "call put_job")
        assert [hit.source for hit in await index.search("put_job")] == ["name"]


HOSTILE = [
    *('"', "'", "''", "\\", "\\'", "a'", "'a", ":*", "a:*", "!a", "&", "a & ", "|", "(a", "<->"),
    *("a <-> b", "'; drop table piece; --", "$1", "%s", "%", "{0}", "a*", "NEAR(a b)", "-a", "/*"),
    *("\0", "a\0b", "_", "._-", "a__b", "", " ", "\u0300", "\u200d", "\ufeff", "\U0010ffff"),
    *("\u2028", "\u3000", "\u00b2", "\u2167", "\u0130", "1e5", "0x1f", "-1.5", "a@b.org", "</p>"),
    *("http://a.b/c?d=e", "x" * 5000, "\u53d6" * 3000, "a." * 3000, "a\nb", "\U0001f600"),
]


@pytest.mark.parametrize("text", HOSTILE)
async def test_any_text_is_a_question_and_a_document(words_place, text):
    """Operators of a store's query language are plain characters."""
    async with Index(words_place) as index:
        await index.add("kept", "put_horse stays")
        await index.add(text, f"{text} put_donkey", "text")
        await index.search(text)
        assert await index.search(f"{text} put_horse")
        (hit,) = await index.search("put_donkey")
        assert text.replace("\0", "") in hit.text.replace("\0", "").replace("\ufffd", "") or (
            len(text) > 1000
        )
        assert await index.remove(hit.source) == 1
        assert await index.search("put_donkey") == []


letters = st.characters(exclude_categories=["Cs"])


@settings(max_examples=example_count(60, 1000))
@given(question=st.text(letters, max_size=60))
async def test_no_text_makes_a_search_fail(words_place, question):
    """As a question and as a document, which can be removed without a trace."""
    async with Index(words_place) as index:
        await index.add("kept", "put_horse stays")
        await index.add("new", question, "text")
        await index.search(question)
        assert "kept" in {hit.source for hit in await index.search(f"{question} put_horse", k=50)}
        await index.remove("new")
        assert "new" not in {hit.source for hit in await index.search(question, k=50)}


# --- S26


def test_killed_while_it_adds_each_document_is_whole(place):
    """At any moment all old pieces stay and are found, and no new ones."""
    name = place()
    rng = random.Random(SEED)
    moments = [
        199,
        401,
        *(rng.randrange(450) for _ in range(example_count(0, 20))),
    ]  # of 500 pieces
    asyncio.run(_add_old(Index(name, embed=embed, embedder="own")))
    program = """
        import asyncio, os, signal, anabranch.knowledge._{0} as store
        from anabranch.knowledge import Index
        import sys; sys.path.append("knowledge")
        from test_stores import embed
        left = {1}
        def die(text):
            global left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return words(text)
        words, store.{2} = store.{2}, die
        text = "\\n\\n".join(f"# {{n}}\\n\\nnew{{n}} stays" for n in range(500))
        asyncio.run(Index({3!r}, embed=embed, embedder="own").add("a", text))
    """
    module, words = ("postgres", "_words") if "://" in name else ("sqlite", "separate_words")
    for at in range(0, len(moments), 2):
        some = moments[at : at + 2]
        lives = [start(program.format(module, 2 * each, words, name)) for each in some]
        for life in lives:
            _, wrong = life.communicate(timeout=120)
            assert life.returncode == -signal.SIGKILL, wrong
    assert asyncio.run(held(name)) == {"a": [f"old{n} stays" for n in range(9)]}


async def _add_old(index):
    async with index:
        await index.add("a", "\n\n".join(f"# {n}\n\nold{n} stays" for n in range(9)))


def test_two_processes_add_the_same_folder_at_once(place, tmp_path):
    """Both may create the index; each document is there once, and neither fails."""
    for number in range(6):
        text = "\n\n".join(f"# {part}\n\npage {number} part {part} stays" for part in range(5))
        (tmp_path / f"{number}.md").write_text(text)
    name = place()
    program = f"""
        import asyncio
        from anabranch.knowledge import Index
        async def main():
            async with Index({name!r}) as index:
                report = await index.add_folder({str(tmp_path)!r})
                assert not report.refused, report
                await index.remove("no such")
                for _ in range(5):
                    await index.add("both", "# 1\\n\\nstays\\n\\n# 2\\n\\nstays")
        asyncio.run(main())
    """
    for life in [start(program) for _ in range(2)]:
        ended(life)
    found = asyncio.run(held(name))
    assert sorted(map(len, found.values())) == [2, *[5] * 6]


async def test_what_one_puts_in_another_finds(place):
    """By words and by vectors, although it has cached all vectors."""
    name = place()
    async with (
        Index(name, embed=embed, embedder="own") as one,
        Index(name, embed=embed, embedder="own") as two,
    ):
        await one.add("a", "about horses")
        assert [hit.source for hit in await two.search("zebra")] == ["a"]
        await one.add("b", "about zebra")
        assert [hit.source for hit in await two.search("zebra")] == ["b", "a"]
        await one.remove("b")
        assert [hit.source for hit in await two.search("zebra")] == ["a"]


def test_an_index_is_used_from_one_loop_after_another_and_a_fork(place):
    """Without closing it in between; nothing stays open."""
    name = place()
    program = f"""
        import asyncio, os, threading
        from anabranch.knowledge import Index
        index = Index({name!r})
        asyncio.run(index.add("first", "stays"))
        if not (pid := os.fork()):
            asyncio.run(index.add("child", "stays"))
            os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        adds = [lambda n=n: asyncio.run(index.add(str(n), "stays")) for n in range(4)]
        threads = [threading.Thread(target=each) for each in adds]
        for each in threads: each.start()
        for each in threads: each.join()
        print([each.name for each in asyncio.run(index.sources())])
        asyncio.run(index.aclose())
        asyncio.run(index.aclose())
    """
    said = ended(
        start("import warnings; warnings.simplefilter('error')\n" + textwrap.dedent(program))
    )
    assert said.strip() == "['0', '1', '2', '3', 'child', 'first']"


async def test_many_at_once(place):
    """Concurrent adds, searches and removals in one loop."""
    async with Index(place()) as index:

        async def work(number):
            for _ in range(3):
                await index.add(f"{number}", f"page{number} stays")
                await index.search("stays")
            await index.remove(f"{(number * 7) % 30}") if number % 2 else None

        await asyncio.gather(*(work(number) for number in range(30)))
        names = {each.name for each in await index.sources()}
        assert names == {hit.source for hit in await index.search("stays", k=100)}


async def test_a_cancelled_call_leaves_the_index_usable(place):
    """Its document is there completely or not at all."""
    name = place()
    async with Index(name) as index:
        await index.add("a", "old stays")
        text = "\n\n".join(f"# {n}\n\nnew{n} stays" for n in range(300))
        for waits in range(example_count(6, 60)):
            adding = asyncio.create_task(index.add("a", text))
            for _ in range(waits * 3):
                await asyncio.sleep(0)
            adding.cancel()
            await asyncio.wait([adding])
            assert len(await index.sources()) == 1
    assert len((await held(name))["a"]) in {1, 300}
