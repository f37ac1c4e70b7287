"""`@name`, dropped pictures and pipes: only files that the person names are attached."""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from anabranch.cli.chat._attach import (
    MAX_FILE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_PIPE_BYTES,
    AttachError,
    attach,
    decode,
    find_mention,
    quote_name,
    read_piped,
    take_pasted,
    with_piped,
)
from anabranch.cli.chat._completer import _FileCompleter

PNG = b"\x89PNG\r\n\x1a\n" + bytes(20)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "main.py").write_text("print(1)")
    (tmp_path / "my notes.txt").write_text("notes\n")
    (tmp_path / 'it\'s "x".txt').write_text("odd")
    (tmp_path / "a.png").write_bytes(PNG)
    (tmp_path / "b c.png").write_bytes(PNG)
    (tmp_path / "doc.pdf").write_bytes(b"%PDF-1.7 text")
    (tmp_path / "tool.bin").write_bytes(b"\x7fELF\x00\x01")
    monkeypatch.chdir(tmp_path)
    return tmp_path


# --- @name


@pytest.mark.parametrize(
    "said",
    [
        "explain @src/main.py please",
        "@src/main.py",
        "is it (@src/main.py), @src/main.py?",
        'look at @"src/main.py".',
        "look at @'src/main.py'!",
        "look at @./src/../src/main.py...",
        "@src/main.py\n@nobody",
    ],
)
def test_the_text_of_a_file_stands_below_the_message(folder: Path, said: str) -> None:
    """The text is unchanged; each file follows once, in a fence with its name."""
    found = attach(said)
    name = found.names[0]
    assert found.text == f"{said}\n\n{name}:\n```\nprint(1)\n```"
    assert len(found.names) == 1


@pytest.mark.parametrize("said", ['@"my notes.txt"', "@'my notes.txt'", "@my\\ notes.txt"])
def test_names_with_blanks_are_quoted(folder: Path, said: str) -> None:
    """Each quotation of a shell works."""
    assert attach(said).names == ("my notes.txt",)


@pytest.mark.parametrize(
    "said",
    [
        "me@src/main.py",
        "@@src/main.py",
        "@someone, see @src and @src/",
        'me@example.com @ @. @"" @\'',
        "a@\x00 @~nobody/x @" + "x" * 5000,
        "@" + "\\" * 5000 + " x",
        "no file",
        "",
    ],
)
def test_what_names_no_file_stays_text(folder: Path, said: str) -> None:
    """Addresses, handles, folders and `@@` read no file."""
    found = attach(said)
    assert (found.text, found.names, found.parts) == (said, (), ())


def test_pictures_and_pdfs_are_for_the_parts_of_a_message(folder: Path) -> None:
    """Their content decides, not their name; other binary files are refused."""
    found = attach("@a.png and @doc.pdf")
    assert [(part.name, part.kind) for part in found.parts] == [
        ("a.png", "image"),
        ("doc.pdf", "file"),
    ]
    assert found.message.content == "@a.png and @doc.pdf"
    assert found.message.parts == [*found.parts]
    with pytest.raises(AttachError, match="no model takes"):
        attach("@tool.bin")
    (folder / "odd.txt").write_bytes(b"a\x01b")
    with pytest.raises(AttachError, match="is not text"):
        attach("@odd.txt")
    (folder / "huge.png").write_bytes(PNG + bytes(21 * 2**20))
    with pytest.raises(AttachError, match="larger than"):
        attach("@huge.png")


def test_sizes_are_bounded(folder: Path) -> None:
    """One file and all files together are limited, and the error names the limit."""
    (folder / "big").write_text("x" * (MAX_FILE_BYTES + 1))
    with pytest.raises(AttachError, match="400,000 bytes"):
        attach("@big")
    count = MAX_MESSAGE_BYTES // MAX_FILE_BYTES + 1
    for number in range(count):
        (folder / f"f{number}").write_text("x" * MAX_FILE_BYTES)
    with pytest.raises(AttachError, match="1,000,000 bytes"):
        attach(" ".join(f"@f{number}" for number in range(count)))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_pipe_and_a_device_are_no_files(folder: Path) -> None:
    """They are refused without waiting for a writer or reading endlessly."""
    os.mkfifo(folder / "pipe")
    for name in "pipe", "/dev/zero":
        with pytest.raises(AttachError, match="not a regular file"):
            attach(f"@{name}")


def test_a_fence_is_longer_than_any_in_the_text(folder: Path) -> None:
    """A file cannot end its own block."""
    (folder / "doc.md").write_text("````\ncode\n````\n")
    assert attach("@doc.md").text.endswith("doc.md:\n`````\n````\ncode\n````\n`````")


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root may read all")
def test_a_file_that_may_not_be_read_is_an_error(folder: Path) -> None:
    """A file without permission raises, so that the person knows that it is not attached."""
    (folder / "src" / "main.py").chmod(0)
    with pytest.raises(AttachError, match="cannot be read"):
        attach("@src/main.py")


@given(st.text(st.characters(exclude_characters="/\x00\n", exclude_categories=["Cs"]), min_size=1))
def test_a_quoted_name_is_read_again(name: str) -> None:
    """A quoted name attaches the same file."""
    from anabranch.cli.chat._attach import ESCAPED, MENTION

    found = MENTION.fullmatch(f"@{quote_name(name)}")
    assert found is not None
    double, single, bare = found.groups()
    assert (double or single or ESCAPED.sub(r"\1", bare)) == name


@given(st.text(st.sampled_from("@\"'\\ a/.(\n")))
def test_odd_text_is_passed_through(said: str) -> None:
    """Any text without a file name remains the start of the message."""
    assert attach(said, Path("/nowhere")).text == said
    find_mention(said)


# --- text


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("gr\u00fcn\r\nx\ry".encode(), "gr\u00fcn\nx\ny"),
        ("gr\u00fcn".encode("utf-8-sig"), "gr\u00fcn"),
        ("gr\u00fcn".encode("utf-16"), "gr\u00fcn"),
        ("gr\u00fcn".encode("utf-32"), "gr\u00fcn"),
        ("gr\u00fcn \u20ac".encode("cp1252"), "gr\u00fcn \u20ac"),
        (b"\x81\xfc", "\x81\u00fc"),
        (b"", ""),
        (b"\x1b[31mred", "\x1b[31mred"),
    ],
)
def test_text_is_read_by_its_mark_or_as_utf8_or_latin(data: bytes, text: str) -> None:
    """Files in old encodings are text too; all line ends become `\n`."""
    assert decode(data, "x") == text


@pytest.mark.parametrize("data", [b"a\x00b", b"\xff\xfe\x00", b"\xff\xfe\x00\xd8", b"\x7fELF\x02"])
def test_what_is_no_text_is_refused(data: bytes) -> None:
    """Binary data are not sent to a model."""
    with pytest.raises(AttachError, match="x is not text"):
        decode(data, "x")


# --- a pipe


def test_a_pipe_stands_below_the_question() -> None:
    """`cat file | anabranch chat "summarise"` sends both, or the one that is not empty."""
    piped = read_piped(io.BytesIO("gr\u00fcn\n".encode()))
    assert with_piped("summarise", piped) == "summarise\n\nstandard input:\n```\ngr\u00fcn\n```"
    assert with_piped("", piped) == piped
    assert with_piped("summarise", "\n") == "summarise"
    assert read_piped(None) == ""


def test_a_pipe_is_bounded_and_text() -> None:
    """A pipe that never ends is refused at the limit, and binary data are refused."""

    class Endless(io.RawIOBase):
        def read(self, size: int = -1) -> bytes:
            return b"x" * size

        def isatty(self) -> bool:
            return False

    with pytest.raises(AttachError, match=f"{MAX_PIPE_BYTES:,}"):
        read_piped(Endless())  # type: ignore[arg-type]
    with pytest.raises(AttachError, match="standard input is not text"):
        read_piped(io.BytesIO(b"\x00"))


# --- dropped files


def test_pictures_that_were_dropped_are_found(folder: Path) -> None:
    """Bare, quoted, with backslashes, as a URL, several at once: each picture is found once."""
    a, b = folder / "a.png", folder / "b c.png"
    escaped = str(b).replace(" ", "\\ ")
    for line, found in [
        (f"{a}", [a]),
        (f"  {b}  ", [b]),
        (f"'{b}'", [b]),
        (f'"{b}"', [b]),
        (escaped, [b]),
        (b.as_uri(), [b]),
        (f"{a} {escaped}", [a, b]),
        (f"{a}\n{a}\n'{b}'", [a, b]),
    ]:
        assert take_pasted(line)[1] == found, line
    assert take_pasted(f"what is it?\n{a}\n") == ("what is it?", [a])


@pytest.mark.parametrize(
    "line",
    [
        "a.png",
        "see {folder}/a.png",
        "{folder}/a.png is it",
        "{folder}/doc.pdf",
        "{folder}/src",
        "{folder}/none.png",
        "file://elsewhere{folder}/a.png",
        "//{folder}/a.png",
        "'{folder}/a.png",
        "file://[",
        "{folder}/a.png\x00",
        "",
    ],
)
def test_what_is_no_dropped_picture_stays_text(folder: Path, line: str) -> None:
    """Names in a sentence, other files, missing files and files on other machines stay text."""
    line = line.format(folder=folder)
    assert take_pasted(line) == (line, [])
    assert take_pasted("\n".join([f"{folder}/a.png"] * 51))[1] == []


# --- completion


def offered(folder: Path, before: str) -> list[str]:
    """Return the line after each possible completion."""
    found = _FileCompleter(folder).get_completions(Document(before), CompleteEvent())
    return [before[: len(before) + each.start_position] + each.text for each in found]


def test_names_are_completed_folders_first(folder: Path) -> None:
    """Hidden names appear after a dot, names with blanks are quoted, the rest of the line stays."""
    (folder / ".env").write_text("")
    (folder / "a dir").mkdir()
    (folder / "bad\n").write_text("")
    assert offered(folder, "see @") == [
        'see @"a dir/',
        "see @src/",
        "see @a.png",
        'see @"b c.png"',
        "see @doc.pdf",
        'see @it\\\'s\\ \\"x\\".txt',
        'see @"my notes.txt"',
        "see @tool.bin",
    ]
    assert offered(folder, "@.") == ["@.env"]
    assert offered(folder, "@src/M") == ["@src/main.py"]
    assert offered(folder, '@"my n') == ['@"my notes.txt"']
    assert offered(folder, "@my\\ n") == ['@"my notes.txt"']
    for nothing in "me@", "@@", "@none/", "x", "@src/main.py ", "@\x00/":
        assert offered(folder, nothing) == []


def test_every_offer_is_read_by_attach(folder: Path) -> None:
    """A completed name attaches the file."""
    (folder / "tool.bin").unlink()
    for line in offered(folder, "@"):
        if not line.endswith("/"):
            found = attach(line)
            assert len(found.names) == 1, line


def test_what_git_ignores_is_not_offered(folder: Path) -> None:
    """.gitignore files apply from the folder up to the root of the repository."""
    pytest.importorskip("pathspec", reason="what git ignores: not tested, without pathspec")
    (folder / ".gitignore").write_text("*.png\n/src/out/\n")
    (folder / "src" / "out").mkdir()
    (folder / "src" / ".gitignore").write_text("main.*\n")
    assert "@a.png" in offered(folder, "@")
    (folder / ".git").mkdir()
    assert "@a.png" not in offered(folder, "@")
    assert offered(folder, "@src/") == []


def test_a_folder_of_many_files_is_listed_once(folder: Path) -> None:
    """Further keys use the cached list, and the number of completions is limited."""
    many = folder / "many"
    many.mkdir()
    for number in range(3000):
        (many / f"f{number}").touch()
    files = _FileCompleter(folder)
    names = files._list(many)
    assert files._list(many) is names
    assert len(offered(folder, "@many/f")) == 200
    (many / "g").touch()
    os.utime(many, ns=(0, time.time_ns()))
    assert (False, "g") not in names
    assert len(files._list(many)) == 3001
    assert [name for _, name in files._list(many)][-1] == "g"
