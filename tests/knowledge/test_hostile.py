"""Hostile and broken files: each is one line of the report, and the other files are read."""

import io
import os
import re
import shutil
import subprocess
import sys
import textwrap
import zipfile
import zlib
from pathlib import Path

import pytest

from anabranch.commander.errors import AnabranchError
from anabranch.knowledge import Index, KnowledgeError
from anabranch.knowledge._folder import FolderReport

for library in ("docx", "pypdf", "trafilatura"):
    pytest.importorskip(library, reason=f"{library} is not installed: anabranch[knowledge]")


def bomb_docx():
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("word/document.xml", b" " * (300 * 2**20), compresslevel=1)
    return out.getvalue()


def entities_docx():
    """Make a Word document with an entity that grows tenfold at each of nine levels."""
    import docx

    out, made = io.BytesIO(), io.BytesIO()
    docx.Document().save(made)
    steps = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10 if n else "lol"}">' for n in range(10))
    text = (
        f'<?xml version="1.0"?><!DOCTYPE d [{steps}]><w:document xmlns:w='
        '"http://schemas.openxmlformats.org/wordprocessingml/2006/main"><w:body><w:p><w:r><w:t>'
        "&e9;</w:t></w:r></w:p></w:body></w:document>"
    )
    with zipfile.ZipFile(made) as old, zipfile.ZipFile(out, "w") as new:
        for each in old.namelist():
            new.writestr(each, text if each == "word/document.xml" else old.read(each))
    return out.getvalue()


def outside_docx(path):
    """Make a Word document that refers to a file of this machine."""
    data = entities_docx()
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for each in old.namelist():
            text = old.read(each)
            if each == "word/document.xml":
                text = re.sub(
                    rb"<!DOCTYPE.*]>", b'<!DOCTYPE d [<!ENTITY e9 SYSTEM "%s">]>' % path, text
                )
            new.writestr(each, text)
    return out.getvalue()


def pdf(*objects):
    """Make a PDF of objects, with its cross-reference table."""
    data, places = b"%PDF-1.7\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1)
    table += b"".join(b"%010d 00000 n \n" % place for place in places)
    trailer = b"trailer\n<< /Size %d /Root 1 0 R >>\n" % (len(objects) + 1)
    return data + table + trailer + b"startxref\n%d\n%%%%EOF" % len(data)


def stream(data, settings=b""):
    head = b"<< /Length %d %s >>" % (len(data), settings)
    return head + b"\nstream\n" + data + b"\nendstream"


CATALOG = b"<< /Type /Catalog /Pages 2 0 R >>"
PAGES = b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>"
PAGE = b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R >>"


def packed_many_times(times=3):
    data = b" " * 2**28
    for _ in range(times):
        data = zlib.compress(data, 9)
    return stream(data, b"/Filter [" + b"/FlateDecode " * times + b"]")


def objects_bomb():
    """Make a stream of objects that grows a thousandfold when unpacked."""
    data = zlib.compress(b"5 0 " + b"[" * 2**26, 9)
    settings = b"/Type /ObjStm /N 1 /First 4 /Filter /FlateDecode"
    return pdf(CATALOG, PAGES, PAGE.replace(b"4 0 R", b"5 0 R"), stream(data, settings))


HOSTILE = {
    "binary.md": bytes(range(256)) * 100,
    "elf.py": b"\x7fELF" + b"\0" * 3000,
    "bomb.docx": bomb_docx,
    "entities.docx": entities_docx,
    "no_zip.docx": b"this is no zip",
    "empty.docx": b"",
    "other_zip.docx": lambda: zipped("a.txt", b"text"),
    "cut.docx": lambda: entities_docx()[:2000],
    "empty.pdf": b"",
    "none.pdf": b"this is no PDF",
    "cut.pdf": pdf(CATALOG, PAGES)[:40],
    "loop.pdf": pdf(CATALOG, b"<< /Type /Pages /Kids [2 0 R] /Count 1 >>"),
    "packed.pdf": lambda: pdf(CATALOG, PAGES, PAGE, packed_many_times()),
    "objects.pdf": objects_bomb,
    "deep.pdf": pdf(CATALOG, b"[" * 100_000),
    "encrypted.pdf": pdf(CATALOG, PAGES, PAGE, stream(b"")).replace(
        b"/Root", b"/Encrypt << /Filter /None >> /Root"
    ),
}
TEXT = "The rest of the folder is read."


def zipped(name, data):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr(name, data)
    return out.getvalue()


def one_line(report, name):
    """Return the reason of a refused file; require that the report has it in one line."""
    (path,) = [each for each in report.refused if Path(each).name == name]
    why = report.refused[path]
    assert str(report).split("\n").count(f"{path} {why}") == 1
    assert 0 < len(why) < 300
    assert "\n" not in why
    return why


async def test_each_hostile_file_is_one_line_and_the_rest_is_read(tmp_path):
    """None takes all memory or time, and the index has nothing of them."""
    for name, made in HOSTILE.items():
        (tmp_path / name).write_bytes(made() if callable(made) else made)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "z.txt").write_text(TEXT)
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path, timeout=60)
        assert {Path(each).name for each in report.refused} == {*HOSTILE}
        assert all(one_line(report, name) for name in HOSTILE)
        assert [Path(each).name for each in sorted(report.added)] == ["a.txt", "z.txt"]
        assert len(await index.sources()) == 2


async def test_a_document_does_not_read_other_files(tmp_path):
    """A reference to a local file is not replaced by the file."""
    secret = tmp_path / "secret"
    secret.write_text("the password")
    (tmp_path / "a.docx").write_bytes(outside_docx(secret.as_uri().encode()))
    async with Index(":memory:") as index:
        await index.add_folder(tmp_path)
        assert await index.search("password") == []


async def test_a_file_of_two_gigabytes_is_refused_by_its_size(tmp_path):
    """It is not read."""
    (tmp_path / "large.txt").touch()
    os.truncate(tmp_path / "large.txt", 2 << 30)
    (tmp_path / "small.txt").write_text(TEXT)
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path)
        assert one_line(report, "large.txt").startswith(
            "is too large: 2,147.5 MB, and the limit is 50.0 MB"
        )
        assert len(report.added) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="no files whose size is said to be 0")
async def test_a_file_that_is_larger_than_its_size_says_is_refused():
    """Such as a growing file, or a kernel file, whose size is 0."""
    async with Index(":memory:") as index:
        with pytest.raises(KnowledgeError, match="which is too large"):
            await index.add_file("/proc/self/status", max_bytes=100)
        assert await index.add_file("/proc/self/status", max_bytes=100_000)


async def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path):
    """A pipe without a writer, a folder named like a file, broken and circular links."""
    os.mkfifo(tmp_path / "pipe.md")
    (tmp_path / "folder.md").mkdir()
    (tmp_path / "folder.md" / "in.md").write_text(TEXT)
    (tmp_path / "circle.md").symlink_to("circle.md")
    (tmp_path / "nothing.md").symlink_to("not_there.md")
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path)
        assert one_line(report, "pipe.md") == "is no file"
        assert one_line(report, "circle.md").startswith("cannot be read (Too many levels")
        assert one_line(report, "nothing.md").startswith("cannot be read (No such file")
        assert [Path(each).name for each in report.added] == ["in.md"]
        for name in ("folder.md", "pipe.md"):
            with pytest.raises(KnowledgeError, match="which is no file: add another"):
                await index.add_file(tmp_path / name)


async def test_names_of_any_bytes_are_taken(tmp_path):
    """Invalid text and line ends too; the report has one printable line for each."""
    names = [b"line\nend.md", b"no\xfftext.md", b"no\xfetext.md", b"tab\t.md", b"[bold].md"]
    names += [b"quote'\".md", " \u2028.md".encode(), b"-rf.md", b"%s.md"]
    for name in map(os.fsdecode, names):
        (tmp_path / name).write_text(f"about {len(name)}")
        (tmp_path / name.replace(".md", ".pdf")).write_text("no PDF")
    async with Index(":memory:") as index:
        told = []
        report = await index.add_folder(tmp_path, progress=told.append)
        assert len(report.added) == len(names)
        assert len(report.refused) == len(names)
        assert len(str(report).encode().decode().splitlines()) == 1 + len(names)
        assert len((await index.add_folder(tmp_path)).unchanged) == len(names)
        assert "".join(state.name for state in told).encode()
        for each in await index.sources():
            assert await index.remove(each.name) == 1


async def test_a_file_that_vanishes_is_one_line(tmp_path, monkeypatch):
    """It existed when the folder was listed."""
    from anabranch.knowledge import _index

    for name in ("a.md", "b.md"):
        (tmp_path / name).write_text(TEXT)
    walk = _index.list_files

    def vanish(root, report):
        files = walk(root, report)
        (tmp_path / "a.md").unlink()
        return files

    async with Index(":memory:") as index:
        monkeypatch.setattr(_index, "list_files", vanish)
        report = await index.add_folder(tmp_path)
        assert one_line(report, "a.md").startswith("cannot be read (No such file")
        assert len(report.added) == 1


@pytest.mark.skipif(not shutil.which("setpriv"), reason="setpriv takes the rights of root away")
def test_what_may_not_be_read_is_one_line_and_what_was_there_stays(tmp_path):
    """For a file and for a folder without read permission."""
    (tmp_path / "docs" / "in").mkdir(parents=True)
    for name in ("a.md", "b.md", "in/c.md"):
        (tmp_path / "docs" / name).write_text(TEXT)
    program = f"""
        import asyncio, os
        from anabranch.knowledge import Index
        async def main():
            async with Index({str(tmp_path / "a.db")!r}) as index:
                print(len((await index.add_folder({str(tmp_path / "docs")!r})).added))
                os.chmod({str(tmp_path / "docs" / "a.md")!r}, 0)
                os.chmod({str(tmp_path / "docs" / "in")!r}, 0)
                print(await index.add_folder({str(tmp_path / "docs")!r}))
                print(len(await index.sources()))
        asyncio.run(main())
    """
    rights = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] * (os.geteuid() == 0)
    command = [*rights, sys.executable, "-c", textwrap.dedent(program)]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    finally:
        os.chmod(tmp_path / "docs" / "in", 0o700)
    lines = ended.stdout.split("\n")
    assert lines[:2] == ["3", "1 unchanged, 2 refused"], ended
    assert lines[2] == f"{tmp_path}/docs/in cannot be read (Permission denied)"
    assert lines[3] == f"{tmp_path}/docs/a.md cannot be read (Permission denied)"
    assert lines[4] == "3"


TEXTS = {
    "deep.html": "<div>" * 200_000,
    "tables.html": "<table><tr><td>" * 10_000,
    "attributes.html": f"<p {'a ' * 200_000}>text",
    "entities.html": "&#x41;" * 100_000,
    "broken.html": "<" * 100_000,
    "comments.html": "<!--" * 100_000,
    "long.md": "[" * 200_000,
    "json.json": "[" * 500_000,
    "line.txt": "x" * 1_000_000,
    "empty.txt": "\n" * 1_000_000,
}


async def test_hostile_texts_end_soon_and_the_rest_is_read(tmp_path):
    """They are read or refused in one line."""
    for name, text in TEXTS.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "z.txt").write_text(TEXT)
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path)
        assert len(report.added) + len(report.refused) == 1 + len(TEXTS)
        assert any(each.endswith("z.txt") for each in report.added)
        assert "takes" not in str(report)


async def test_without_a_library_the_others_are_read(tmp_path, monkeypatch):
    """The line names the package to install, and so does the error for a single file."""
    (tmp_path / "block").mkdir()
    (tmp_path / "block" / "pypdf.py").write_text("raise ImportError('not here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "block"))
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.pdf").write_bytes(b"%PDF-1.7")
    (tmp_path / "docs" / "b.txt").write_text(TEXT)
    async with Index(":memory:") as index:
        report = await index.add_folder(tmp_path / "docs")
        assert "pip install 'anabranch[knowledge]'" in one_line(report, "a.pdf")
        assert len(report.added) == 1
        with pytest.raises(AnabranchError, match=r"anabranch\[knowledge\]"):
            await index.add_file(tmp_path / "docs" / "a.pdf")


def test_a_report_is_short_and_a_line_for_each_that_was_refused():
    """Counts first; unprintable names are quoted."""
    report = FolderReport(added=["a", "b"], refused={"x\ny.md": "is no file", "z.md": "is no file"})
    report.pieces = 3
    assert str(report).split("\n") == [
        "2 added, 2 refused; 3 pieces",
        "'x\\ny.md' is no file",
        "z.md is no file",
    ]
    assert str(FolderReport()) == "no files"
