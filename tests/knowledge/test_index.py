"""S23, S24 and folders: the index follows added, changed, moved and deleted files."""

import asyncio
import logging
import os
import sys
import threading
from contextlib import nullcontext

import pytest

from anabranch import Commander, Job, handler
from anabranch.commander.errors import ConfigurationError
from anabranch.knowledge import Index, KnowledgeError, estimate_tokens

pytest.importorskip("numpy")


class Scripted:
    """Makes vectors of `size` numbers, and counts the texts."""

    def __init__(self, size=2):
        self.size = size
        self.texts = []

    async def embed(self, texts):
        self.texts += texts
        return [[float("zebra" in text), 1.0, *[0.0] * (self.size - 2)] for text in texts]


def write(folder, **texts):
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text)
    return folder


def ends(names):
    return sorted(os.path.basename(name) for name in names)


# --- S23


async def test_without_embed_it_works_and_says_so_once(caplog):
    """S23: it searches words only, offline, and logs that once."""
    caplog.set_level(logging.INFO, "anabranch.knowledge")
    async with Index(":memory:") as index:
        await index.add("a", "put_job")
        assert caplog.messages == []
        for _ in range(3):
            assert await index.search("put_job")
    assert caplog.messages == ["the index ':memory:' is searched by words alone, without embed="]


async def test_with_embed_nothing_is_said(caplog):
    """S23: with vectors it logs nothing."""
    caplog.set_level(logging.INFO, "anabranch.knowledge")
    async with Index(":memory:", embed=Scripted().embed, embedder="own") as index:
        await index.add("a", "put_job")
        await index.search("put_job")
    assert caplog.messages == []


# --- S24


@pytest.mark.parametrize(
    ("other", "size", "why"),
    [
        (
            "other",
            2,
            "has vectors of 2 by own, but the given model makes 2 by other: give the same embed=",
        ),
        (
            "own",
            3,
            "has vectors of 2 by own, but the given model makes 3 by own: give the same embed=",
        ),
    ],
)
async def test_another_embedder_is_refused(tmp_path, other, size, why):
    """S24: when adding and when searching; the documents stay and are found."""
    async with Index(tmp_path / "a.db", embed=Scripted().embed, embedder="own") as index:
        await index.add("a", "about zebra")
    docs = write(tmp_path / "docs", b="new")
    async with Index(tmp_path / "a.db", embed=Scripted(size).embed, embedder=other) as index:
        for call in (
            lambda: index.add("a", "changed"),
            lambda: index.add_file(docs / "b.md"),
            lambda: index.add_folder(docs),
            lambda: index.search("zebra"),
        ):
            with pytest.raises(KnowledgeError, match=why):
                await call()
        assert [each.name for each in await index.sources()] == ["a"]
    async with Index(tmp_path / "a.db", embed=Scripted().embed, embedder="own") as index:
        assert [hit.text for hit in await index.search("zebra")] == ["about zebra"]


async def test_without_embed_vectors_are_kept_and_not_put_beside(tmp_path):
    """S24: an index with vectors refuses documents without; it can be searched by words."""
    async with Index(tmp_path / "a.db", embed=Scripted().embed, embedder="own") as index:
        await index.add("a", "about zebra")
    async with Index(tmp_path / "a.db") as index:
        assert await index.search("zebra")
        with pytest.raises(
            KnowledgeError, match="but no embedding model is given: give the same embed="
        ):
            await index.add("b", "text")
        assert [each.name for each in await index.sources()] == ["a"]


@pytest.mark.parametrize("kind", ["md", "Markdown", "pdf", "", None])
async def test_a_kind_that_is_none_is_refused(kind):
    """Not read as plain text; a file extension is not a kind."""
    async with Index(":memory:") as index:
        with pytest.raises(ValueError, match="kind must be one of markdown, html, code, text"):
            await index.add("a", "# Heading", kind)
        assert await index.sources() == []


@pytest.mark.parametrize("number", [10**400, -(10**400)])
async def test_a_number_that_no_float_holds_is_an_error_of_the_index(number):
    """As other invalid vectors."""

    async def embed(texts):
        return [[1.0, number] for _ in texts]

    async with Index(":memory:", embed=embed, embedder="own") as index:
        with pytest.raises(KnowledgeError, match="cannot use what own gave"):
            await index.add("a", "about zebra")


async def test_an_embedder_that_comes_later_adds_its_vectors(tmp_path):
    """S24: to all files of a folder, which are read again once."""
    docs = write(tmp_path / "docs", a="about zebra", b="about horses")
    async with Index(tmp_path / "a.db") as index:
        await index.add_folder(docs)
    vector_space = Scripted()
    async with Index(tmp_path / "a.db", embed=vector_space.embed, embedder="own") as index:
        assert len(await index.search("zebra")) == 1
        assert vector_space.texts == []
        assert ends((await index.add_folder(docs)).changed) == ["a.md", "b.md"]
        assert len(vector_space.texts) == 2
        assert len((await index.add_folder(docs)).unchanged) == 2
        assert len(vector_space.texts) == 2
        assert len(await index.search("zebra")) == 2


@pytest.mark.parametrize(
    "vectors", [[], [[1.0]] * 3, [[1.0, 2.0], [1.0]], [[0.0]] * 2, [["a"]] * 2, [None] * 2]
)
async def test_what_is_no_vector_is_one_error(vectors):
    """S24: the error names the embedder, and nothing is added."""

    async def embed(texts):
        return vectors

    async with Index(":memory:", embed=embed, embedder="own") as index:
        with pytest.raises(KnowledgeError, match="cannot use what own gave"):
            await index.add("a", "# One\n\none\n\n# Two\n\ntwo")
        assert await index.sources() == []


async def test_an_embedder_without_a_name_is_refused():
    """S24: its vectors could not be recognized later."""

    def embedder():
        async def embed(texts):
            return []

        return embed

    with pytest.raises(ConfigurationError, match="give embedder="):
        Index(":memory:", embed=embedder())


# --- folders


async def test_a_folder_again_and_again_reads_what_has_changed(tmp_path):
    """The index has the current pieces of added, changed, deleted and moved files."""
    docs = write(tmp_path / "docs", a="about apples", b="about pears", c="about plums")
    vector_space = Scripted()
    async with Index(":memory:", embed=vector_space.embed, embedder="own") as index:
        first = await index.add_folder(docs)
        assert (len(first.added), first.pieces) == (3, 3)
        assert len((await index.add_folder(docs)).unchanged) == 3
        assert len(vector_space.texts) == 3
        (docs / "a.md").write_text("about cherries")
        (docs / "b.md").unlink()
        (docs / "sub").mkdir()
        (docs / "c.md").rename(docs / "sub" / "d.md")
        (docs / "e.md").write_text("")
        report = await index.add_folder(docs)
        assert ends(report.changed) == ["a.md"]
        assert ends(report.removed) == ["b.md", "c.md"]
        assert ends(report.added) == ["d.md", "e.md"]
        assert report.pieces == 2
        assert sorted(vector_space.texts[3:]) == ["about cherries", "about plums"]
        found = {hit.text for hit in await index.search("apples pears", 9)}
        assert found == {"about cherries", "about plums"}
        assert ends(each.name for each in await index.sources()) == ["a.md", "d.md", "e.md"]


async def test_pieces_of_files_that_are_put_in_at_once_are_all_counted(tmp_path, monkeypatch):
    """Several files are read and embedded at the same time."""
    monkeypatch.setattr("anabranch.knowledge._folder.READERS", 2)
    both = asyncio.Barrier(2)

    async def embed(texts):
        await both.wait()
        return [[1.0]] * len(texts)

    docs = write(tmp_path / "docs", a="about apples", b="about pears")
    async with Index(":memory:", embed=embed, embedder="own") as index:
        assert (await index.add_folder(docs)).pieces == 2


@pytest.mark.parametrize("settings", [{"size": 64}, {"overlap": 3}, {"count_tokens": len}])
async def test_with_other_settings_all_is_cut_anew(tmp_path, settings):
    """Another token counter is another setting."""
    docs = write(tmp_path / "docs", a="about apples")
    async with Index(tmp_path / "a.db", count_tokens=estimate_tokens) as index:
        await index.add_folder(docs)
    async with Index(tmp_path / "a.db", **settings) as index:
        assert len((await index.add_folder(docs)).changed) == 1
        assert len((await index.add_folder(docs)).unchanged) == 1


async def test_a_file_that_cannot_be_read_any_more_keeps_what_was_there(tmp_path):
    """Until it can be read, or is deleted."""
    docs = write(tmp_path / "docs", a="about apples")
    async with Index(":memory:") as index:
        await index.add_folder(docs)
        (docs / "a.md").write_bytes(b"\0" * 100)
        assert len((await index.add_folder(docs)).refused) == 1
        assert await index.search("apples")
        assert len((await index.add_folder(docs)).refused) == 1
        (docs / "a.md").write_text("about pears")
        assert len((await index.add_folder(docs)).changed) == 1
        assert not await index.search("apples")


async def test_a_folder_is_the_same_from_wherever_it_is_looked_at(tmp_path, monkeypatch):
    """By relative and absolute names and through `..`, each file is indexed once."""
    docs = write(tmp_path / "docs", a="about apples")
    monkeypatch.chdir(tmp_path)
    async with Index(":memory:") as index:
        await index.add_folder("docs")
        assert len((await index.add_folder(docs)).unchanged) == 1
        assert len((await index.add_folder("docs/../docs")).unchanged) == 1
        assert await index.add_file("docs/a.md") == 1
        assert [each.name for each in await index.sources()] == ["docs/a.md"]


async def test_only_what_is_gone_from_this_folder_is_forgotten(tmp_path):
    """Not texts, files of other folders, or files that were added individually and exist."""
    docs = write(tmp_path / "docs", a="about apples")
    write(tmp_path / "docs2", a="about plums")
    (docs / ".hidden.md").write_text("about pears")
    (docs / "notes.unknown").write_text("about cherries")
    async with Index(":memory:") as index:
        await index.add_folder(tmp_path / "docs2")
        await index.add_file(docs / ".hidden.md")
        await index.add_file(docs / "notes.unknown")
        await index.add("docs/text", "about figs")
        report = await index.add_folder(docs)
        assert report.removed == []
        assert len(report.added) == 1
        assert len(await index.sources()) == 5
        (docs / ".hidden.md").unlink()
        assert ends((await index.add_folder(docs)).removed) == [".hidden.md"]


async def test_a_folder_in_the_place_of_a_file_is_that_file_no_more(tmp_path):
    """The file's document is removed; files in the folder are read."""
    docs = write(tmp_path / "docs", a="about apples")
    async with Index(":memory:") as index:
        await index.add_folder(docs)
        (docs / "a.md").unlink()
        write(docs / "a.md", b="about pears")
        report = await index.add_folder(docs)
        assert (ends(report.removed), ends(report.added)) == (["a.md"], ["b.md"])
        assert await index.search("apples") == []


async def test_links_are_followed_within_the_folder_only(tmp_path):
    """Circular links end, and targets outside of the folder are not read."""
    docs = write(tmp_path / "docs", a="about apples")
    write(tmp_path / "outside", secret="about secrets")
    (docs / "out.md").symlink_to(tmp_path / "outside" / "secret.md")
    (docs / "out_folder").symlink_to(tmp_path / "outside")
    (docs / "circle").symlink_to(docs)
    (docs / "link.md").symlink_to("a.md")
    (tmp_path / "here").symlink_to(docs)
    async with Index(":memory:") as index:
        report = await index.add_folder(docs)
        assert ends(report.added) == ["a.md", "link.md"]
        assert not report.refused
        assert not await index.search("secrets")
        assert ends((await index.add_folder(tmp_path / "here")).added) == ["a.md", "link.md"]


async def test_what_somebody_else_has_written_is_left_out(tmp_path):
    """Hidden folders and those of packages; unknown kinds of files are listed."""
    for name in (".git", "node_modules", "__pycache__", "src"):
        write(tmp_path / name, a="text")
    (tmp_path / "picture.png").write_bytes(b"png")
    (tmp_path / "LICENSE").write_text("free")
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path)
        assert ends(report.added) == ["LICENSE", "a.md"]
        assert ends(report.skipped) == ["picture.png"]


@pytest.mark.parametrize("name", ["none", "a.md"])
async def test_what_is_no_folder_is_one_error(tmp_path, name):
    """A file, or nothing."""
    write(tmp_path, a="text")
    async with Index(":memory:") as index:
        with pytest.raises(KnowledgeError, match="which is no folder: give an existing folder"):
            await index.add_folder(tmp_path / name)


async def test_progress_is_told_from_none_to_all(tmp_path, capsys):
    """To a function, or as a few lines without a terminal."""
    docs = write(tmp_path / "docs", **{f"n{number}": "text" for number in range(5)})
    told = []
    async with Index(":memory:") as index:
        await index.add_folder(docs, progress=told.append)
        assert [state.done for state in told] == [0, 1, 2, 3, 4, 5]
        assert {state.total for state in told} == {5}
        await index.add_folder(docs, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert (lines[0], lines[-1]) == ("read 0 of 5 files", "read 5 of 5 files")


@pytest.mark.parametrize("fails", [False, True])
async def test_on_a_terminal_a_bar_moves_and_goes(tmp_path, capsys, monkeypatch, fails):
    """Also after an error; a name that looks like markup is shown unchanged."""
    pytest.importorskip("rich")
    docs = write(tmp_path / "docs", **{"[bold]a": "text", "[ bold]": "text", "[red": "text"})
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")  # a dumb one shows no bar

    async def embed(texts):
        return [] if fails else [[1.0]] * len(texts)

    async with Index(":memory:", embed=embed, embedder="own") as index:
        with pytest.raises(KnowledgeError) if fails else nullcontext():
            await index.add_folder(docs, progress=True)
    for thread in threading.enumerate():
        if "Refresh" in type(thread).__name__:
            thread.join(10)  # it was signalled to end
            assert not thread.is_alive()
    shown = capsys.readouterr().err
    assert "/3" in shown or (fails and "/?" in shown)  # it may be over before it is drawn again


@pytest.mark.parametrize("settings", [{"size": 15}, {"overlap": -1}, {"size": 20, "overlap": 11}])
def test_sizes_that_make_no_sense_are_refused(settings):
    """Before anything is opened."""
    with pytest.raises(ValueError, match="size must be at least 16"):
        Index(":memory:", **settings)


@pytest.mark.parametrize("what", ["add", "add_folder", "search"])
async def test_a_job_keeps_its_slot_while_an_index_works(tmp_path, what):
    """T9: the thread of an index does not count as waiting, also in a commander's block."""
    docs = write(tmp_path / "docs", page="# A\n\nput_job\n" * 50)
    busy, most = 0, 0

    async with Index(str(tmp_path / "index.db")) as index, Commander(max_concurrency=1) as tree:

        @handler
        async def outer(node):
            jobs = [node.put_job(Uses(number)) for number in range(4)]
            await asyncio.gather(*jobs)

        class Uses(Job[None]):
            number: int

            async def task(self):
                nonlocal busy, most
                busy += 1
                most = max(most, busy)
                if what == "add":
                    await index.add(f"{self.number}", "# A\n\nput_job\n" * 500)
                elif what == "add_folder":
                    await index.add_folder(docs)
                else:
                    await index.search("put_job")
                busy -= 1

        await asyncio.gather(*(tree.put_job(Uses(number)) for number in range(4)))
        await outer()
    assert most == 1
