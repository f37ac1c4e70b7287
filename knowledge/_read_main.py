"""The process that reads files: the content of a file as blocks with headings and lines.

Runs as a script, so that a file that takes forever or all memory can be killed with it. Each line
of standard input is a request as JSON. Each answer is its length in eight bytes, then JSON. A
failed import and an unreadable file are answers; any other error ends the process. The end of
standard input also ends it, even in the middle of a file. `read_text` is also used in the program
itself, for texts.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import re
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from queue import SimpleQueue
from typing import Any

__all__ = ["KIND_BY_EXTENSION", "Block", "read_text"]

MEMORY_BYTES = 2 * 2**30
# Bounds a packed document after unpacking, and the text of any document.
MAX_UNPACKED_BYTES = 256 * 2**20
MAX_HEADING_CHARS = 300
# Characters or bytes at the start that show whether a file is binary.
SAMPLE_CHARS = 1 << 16
BYTE_ORDER_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# Encodings in common use: among all encodings, a short text fits a rare one by chance.
COMMON_ENCODINGS = [
    *(f"cp125{number}" for number in (2, 0, 1, 3, 4, 5, 6, 7)),
    *("koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]

# kind ("heading", "text", "code"), text, level of a heading, line from 1, page from 1; 0 for none
Block = tuple[str, str, int, int, int]

CODE_EXTENSIONS = """bash bat c cc clj cpp cs css cxx dart el ex exs f90 fs go gradle groovy h hh
hpp hs java jl js jsx kt kts lisp lua m mjs ml nim php pl pm proto ps1 py pyi pyx r rb rs scala scss
sh sql swift tcl tf ts tsx vb vim vue zig zsh"""
TEXT_EXTENSIONS = (
    "adoc cfg conf csv ini json jsonl log org properties rst tex text toml tsv txt xml yaml yml"
)

KIND_BY_EXTENSION = {
    **dict.fromkeys(CODE_EXTENSIONS.split(), "code"),
    **dict.fromkeys(TEXT_EXTENSIONS.split(), "text"),
    **dict.fromkeys(("md", "markdown", "mdx", "qmd"), "markdown"),
    **dict.fromkeys(("htm", "html", "xhtml"), "html"),
    "pdf": "pdf",
    "docx": "docx",
}
"""How files are read, by their extension."""


class UnreadableFile(Exception):
    """The file cannot be read, with the reason."""


# Parts of a page that browsers do not show.
HIDDEN_ELEMENTS = ("head", "noscript", "script", "style", "template")


def main() -> None:
    """Answer one request after the other."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output of libraries must not mix with the answers
    requests = SimpleQueue[dict[str, Any]]()
    threading.Thread(target=listen, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        set_limits(request["seconds"])
        try:
            answer = read_file(request)
        except UnreadableFile as error:
            answer = {"refused": str(error)}
        except ImportError as error:
            answer = {"missing": f"{type(error).__name__}: {error}"}
        except OSError as error:
            answer = {"refused": f"cannot be read ({error.strerror or type(error).__name__})"}
        except (MemoryError, RecursionError):
            answer = {"refused": "takes too much memory to read"}
        except Exception as error:  # noqa: BLE001 - a library may raise anything for a broken file
            why = " ".join(f"{type(error).__name__}: {error}".split())
            answer = {"refused": f"is broken ({why[:200]})"}
        data = json.dumps(answer).encode()
        out.write(len(data).to_bytes(8, "big") + data)
        out.flush()


def listen(requests: SimpleQueue[dict[str, Any]]) -> None:
    """Queue the requests; exit when the program closes the pipe."""
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)


def set_limits(seconds: float) -> None:
    """Bound the memory of this process, and the CPU time of this request."""
    with suppress(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        end = used.ru_utime + used.ru_stime + seconds + 2
        for kind, max_bytes in ((resource.RLIMIT_DATA, MEMORY_BYTES), (resource.RLIMIT_CPU, end)):
            with suppress(ValueError, OSError, OverflowError):  # a lower limit is set
                resource.setrlimit(kind, (int(max_bytes), resource.getrlimit(kind)[1]))


def read_file(request: dict[str, Any]) -> dict[str, Any]:
    """Read the file of a request; report if the digest of its bytes is the known one."""
    path, max_bytes = request["path"], request["max_bytes"]
    # Non-blocking: opening a pipe without a writer would wait.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise UnreadableFile("is no file")
        check_size(found.st_size, max_bytes)
        with open(number, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)
        check_size(len(data), max_bytes)  # it may have grown
    finally:
        os.close(number)
    digest = hashlib.sha256(data).hexdigest()
    if digest == request["known"]:
        return {"same": True}
    kind = request["kind"]
    if kind == "pdf":
        found = read_pdf(data)
    elif kind == "docx":
        found = read_docx(data)
    else:
        found = read_text(decode(data, kind), kind)
    blocks: list[Block] = []
    total = 0
    for block in found:
        total += len(block[1])
        if total > max(MAX_UNPACKED_BYTES, max_bytes):
            raise UnreadableFile(
                f"has more than {max(MAX_UNPACKED_BYTES, max_bytes) / 1e6:,.0f} MB of text"
            )
        if block[1].strip():
            blocks.append(block)
    return {"digest": digest, "blocks": blocks}


def check_size(size: int, max_bytes: int) -> None:
    """Refuse a file that is too large."""
    if size > max_bytes:
        size_mb, most_mb = size / 1e6, max_bytes / 1e6
        raise UnreadableFile(f"is too large: {size_mb:,.1f} MB, and the limit is {most_mb:,.1f} MB")


def decode(data: bytes, kind: str = "text") -> str:
    """Return the text of a file; refuse a binary file.

    A few invalid bytes are replaced: they do not make the rest another encoding.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    for decoder in (decode_marked, decode_wide, decode_utf8):
        if (text := decoder(data)) is not None:
            break
    else:
        if b"\0" in data[:SAMPLE_CHARS]:
            raise UnreadableFile("is binary, not text")
        text = decode_declared(data, kind) or guess_encoding(data)
    head = text[:SAMPLE_CHARS]
    if len(re.findall(r"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]", head)) > len(head) // 10:
        raise UnreadableFile("is binary, not text")
    return text


def decode_marked(data: bytes) -> str | None:
    """Decode a file with a byte order mark, unless the mark is wrong."""
    for mark, codec in BYTE_ORDER_MARKS:
        if data.startswith(mark):
            rest = data[len(mark) :]
            if rest.isascii() and b"\0" not in rest:
                return rest.decode("ascii")
            return data.decode(codec, "replace").removeprefix("\ufeff")
    return None


def decode_utf8(data: bytes) -> str | None:
    """Decode UTF-8, in which one in ten of the non-ASCII characters may be invalid."""
    text = data.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    if not wrong:
        return text
    return text if len(re.findall(r"[^\0-\x7f\ufffd]", text)) > 10 * wrong else None


def decode_wide(data: bytes) -> str | None:
    """Decode UTF-16 without a mark: for Latin letters every second byte is 0."""
    head = data[:SAMPLE_CHARS]
    for codec, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if 0 < len(zeros) < 2 * zeros.count(0) and head.count(0) == zeros.count(0):
            return data.decode(codec, "replace")
    return None


def decode_declared(data: bytes, kind: str) -> str | None:
    """Decode HTML or XML by its own declaration, if that is valid."""
    head = data[:2048]
    if kind != "html" and not head.lstrip().startswith(b"<?xml"):
        return None
    for name in re.findall(rb"(?:charset|encoding)\s*=\s*[\"']?([\w-]{1,40})", head, re.IGNORECASE):
        with suppress(LookupError, ValueError):
            codec = codecs.lookup(name.decode()).name
            return data.decode("cp1252" if codec == "iso8859-1" else codec)
    return None


def guess_encoding(data: bytes) -> str:
    """Decode by the most probable letters; among equals as Western European."""
    from charset_normalizer import from_bytes

    found = list(from_bytes(data, cp_isolation=COMMON_ENCODINGS))
    if not found:
        raise UnreadableFile("has no known text encoding")
    best = found[0]
    for each in found:
        equal = each.chaos < best.chaos + 0.05 and each.coherence > best.coherence - 0.1
        if equal and "cp1252" in each.could_be_from_charset:
            return data.decode("cp1252", "replace")
    return str(best)


def read_text(text: str, kind: str) -> list[Block]:
    """Return the blocks of a text of kind "markdown", "html" or "code", else its paragraphs."""
    text = escape_surrogates(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""))
    readers: dict[str, Callable[[str], Iterator[Block]]] = {
        "markdown": read_markdown,
        "html": read_html,
        "code": read_code,
    }
    return [block for block in readers.get(kind, read_paragraphs)(text) if block[1].strip()]


def read_markdown(text: str) -> Iterator[Block]:
    """Yield the blocks of Markdown, unchanged."""
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    end = count_front_matter(lines)
    if end:
        yield "code", "\n".join(lines[:end]), 0, 1, 0
    parser = MarkdownIt("commonmark").enable("table").disable(["inline", "text_join"])
    tokens = parser.parse("\n" * end + "\n".join(lines[end:]))
    for number, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        start, until = token.map
        if start > end:  # such as link targets, which no block contains
            yield "text", "\n".join(lines[end:start]), 0, end + 1, 0
        end = until
        if token.type == "heading_open":
            yield from make_heading(tokens[number + 1].content, int(token.tag[1:]), start + 1)
        else:
            kind = "code" if token.type == "fence" else "text"
            yield kind, "\n".join(lines[start:until]), 0, start + 1, 0
    yield "text", "\n".join(lines[end:]), 0, end + 1, 0


def count_front_matter(lines: list[str]) -> int:
    """Return the number of lines of settings between two lines of dashes at the start."""
    if lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:200], 2):
            if line.rstrip() in ("---", "..."):
                return number
    return 0


def make_heading(text: str, level: int, line: int = 0, page: int = 0) -> Iterator[Block]:
    """Yield a heading on one line; a long one is also a text block, with all of its text."""
    title = " ".join(text.split())
    yield "heading", title[:MAX_HEADING_CHARS], level, line, page
    if len(title) > MAX_HEADING_CHARS:
        yield "text", text, 0, line, page


def read_html(text: str) -> Iterator[Block]:
    """Yield the main text of a page, without menus and without line numbers."""
    from trafilatura import extract

    options: dict[str, Any] = {"output_format": "markdown", "favor_recall": True, "fast": True}
    said = extract(text, include_tables=True, **options) or read_whole_page(text)
    if named := re.search(r"<title[^>]{0,200}>([^<]{1,500})", text, re.IGNORECASE):
        from html import unescape

        yield from make_heading(unescape(named[1]), 1)
    for kind, block, level, _, _ in read_markdown(escape_surrogates(said)):
        yield kind, block, level, 0, 0


def read_whole_page(text: str) -> str:
    """Return all text of a page without an article."""
    etree: Any = import_module("lxml.etree")  # has no types
    page = etree.fromstring(text.encode(), etree.HTMLParser(encoding="utf-8", huge_tree=True))
    if page is None:  # an empty page
        return ""
    etree.strip_elements(page, *HIDDEN_ELEMENTS, etree.Comment, with_tail=False)
    return "\n\n".join(page.itertext())


def read_paragraphs(text: str) -> Iterator[Block]:
    """Yield the text between empty lines."""
    yield from _chunks(text, "text", lambda line: True)


def read_code(text: str) -> Iterator[Block]:
    """Yield parts that start at the left edge after an empty line; the first line is a heading."""
    for kind, block, _, line, _ in _chunks(text, "code", lambda line: not line[:1].isspace()):
        yield "heading", " ".join(block.partition("\n")[0].split())[:MAX_HEADING_CHARS], 1, line, 0
        yield kind, block, 0, line, 0


def _chunks(text: str, kind: str, begins: Callable[[str], bool]) -> Iterator[Block]:
    chunk: list[str] = []
    start, empty = 1, False
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip() and empty and begins(line):
            yield kind, "\n".join(chunk).rstrip(), 0, start, 0
            chunk = []
        if line.strip() and not chunk:
            start = number
        if line.strip() or chunk:
            chunk.append(line)
        empty = not line.strip()
    yield kind, "\n".join(chunk).rstrip(), 0, start, 0


def read_pdf(data: bytes) -> Iterator[Block]:
    """Yield the paragraphs of a PDF, page by page."""
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL + 1)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableFile("is encrypted: store it without a password")
    empty = True
    if reader.metadata is not None and isinstance(reader.metadata.title, str):
        yield from make_heading(escape_surrogates(reader.metadata.title), 1)
    for number, page in enumerate(reader.pages, 1):
        for kind, block, _, _, _ in read_paragraphs(escape_surrogates(page.extract_text())):
            empty = empty and not block.strip()
            yield kind, block, 0, 0, number
    if empty:
        raise UnreadableFile("has no text: its pages may be pictures of text")


def read_docx(data: bytes) -> Iterator[Block]:
    """Yield the paragraphs, headings and tables of a Word document."""
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(io.BytesIO(data)) as packed:
            if sum(each.file_size for each in packed.infolist()) > MAX_UNPACKED_BYTES:
                raise UnreadableFile(
                    f"is more than {MAX_UNPACKED_BYTES >> 20} MB when it is unpacked"
                )
    except BadZipFile:
        raise UnreadableFile("is not a Word document (.docx)") from None
    from docx import Document
    from docx.table import Table

    for item in Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(item, Table):
            yield "text", escape_surrogates(read_table(item)), 0, 0, 0
            continue
        style = (item.style.name if item.style is not None else "") or ""
        text = escape_surrogates(item.text)
        if style == "Title":
            yield from make_heading(text, 1)
        elif re.fullmatch("Heading [1-9]", style):
            yield from make_heading(text, int(style[8:]))
        else:
            yield "text", text, 0, 0, 0


def read_table(table: Any) -> str:
    """Return the cells of a Word table, a merged one once, with nested tables."""
    seen: set[Any] = set()
    rows: list[str] = []
    for row in table.rows:
        cells: list[str] = []
        for cell in row.cells:
            # python-docx repeats a merged cell in each of its rows; its element identifies it.
            element = getattr(cell, "_tc", cell)
            if element not in seen:
                seen.add(element)
                items = cell.iter_inner_content()
                said = (item.text if hasattr(item, "text") else read_table(item) for item in items)
                cells.append(" ".join(text.strip() for text in said if text.strip()))
        rows.append(" | ".join(cells))
    return "\n".join(rows)


def escape_surrogates(text: str) -> str:
    """Return a text whose lone surrogates, which file names may have, are written as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
