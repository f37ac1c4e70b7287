"""A process of its own that reads files: what a file says, as blocks with headings and lines.

Run as a script, by its path: a file that takes forever, or all memory, is killed with it. Each line
of standard input is a request as JSON; each answer is its length in eight bytes and then JSON. An
import that fails is an answer, and so is a file that cannot be read; whatever else goes wrong ends
the process, and so does the end of standard input, in the middle of a file too. `read_text` alone
is also used where there is a text already.
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

__all__ = ["KINDS", "Block", "read_text"]

MEMORY = 2 * 2**30
UNPACKED = 256 * 2**20  # bytes that a packed document may have when it is unpacked, or its text
TITLE = 300  # characters of a heading
LOOK = 1 << 16  # characters or bytes at the beginning by which a binary file is known
MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
# Those in use: among all that there are, a short text fits into some rare one by chance.
ENCODINGS = [
    *(f"cp125{number}" for number in (2, 0, 1, 3, 4, 5, 6, 7)),
    *("koi8_r", "cp932", "euc_jp", "gb18030", "big5", "cp949"),
]

# kind ("heading", "text", "code"), text, level of a heading, line from 1, page from 1; 0 for none
Block = tuple[str, str, int, int, int]

CODE = """bash bat c cc clj cpp cs css cxx dart el ex exs f90 fs go gradle groovy h hh hpp hs java
jl js jsx kt kts lisp lua m mjs ml nim php pl pm proto ps1 py pyi pyx r rb rs scala scss sh sql
swift tcl tf ts tsx vb vim vue zig zsh"""
TEXT = "adoc cfg conf csv ini json jsonl log org properties rst tex text toml tsv txt xml yaml yml"

KINDS = {
    **dict.fromkeys(CODE.split(), "code"),
    **dict.fromkeys(TEXT.split(), "text"),
    **dict.fromkeys(("md", "markdown", "mdx", "qmd"), "markdown"),
    **dict.fromkeys(("htm", "html", "xhtml"), "html"),
    "pdf": "pdf",
    "docx": "docx",
}
"""How files are read, by the end of their names."""


class Refused(Exception):
    """The file cannot be read, and why."""


UNSEEN = ("head", "noscript", "script", "style", "template")  # parts of a page


def main() -> None:
    """Answer one request after the other."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints goes elsewhere
    requests = SimpleQueue[dict[str, Any]]()
    threading.Thread(target=listen, args=(requests,), daemon=True).start()
    while True:
        request = requests.get()
        limit(request["seconds"])
        try:
            answer = read_file(request)
        except Refused as error:
            answer = {"refused": str(error)}
        except ImportError as error:
            answer = {"missing": f"{type(error).__name__}: {error}"}
        except OSError as error:
            answer = {"refused": f"cannot be read ({error.strerror or type(error).__name__})"}
        except (MemoryError, RecursionError):
            answer = {"refused": "takes too much memory to read"}
        except Exception as error:  # noqa: BLE001 - whatever a library makes of a broken file
            why = " ".join(f"{type(error).__name__}: {error}".split())
            answer = {"refused": f"is broken ({why[:200]})"}
        data = json.dumps(answer).encode()
        out.write(len(data).to_bytes(8, "big") + data)
        out.flush()


def listen(requests: SimpleQueue[dict[str, Any]]) -> None:
    """Take requests; without whoever asks there is nothing left to do."""
    for line in sys.stdin.buffer:
        requests.put(json.loads(line))
    os._exit(0)


def limit(seconds: float) -> None:
    """Bound the memory of this process and the time of this request, whoever waits for it."""
    with suppress(ImportError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        end = used.ru_utime + used.ru_stime + seconds + 2
        for kind, most in ((resource.RLIMIT_DATA, MEMORY), (resource.RLIMIT_CPU, end)):
            with suppress(ValueError, OSError, OverflowError):  # a lower limit is there already
                resource.setrlimit(kind, (int(most), resource.getrlimit(kind)[1]))


def read_file(request: dict[str, Any]) -> dict[str, Any]:
    """Read what the request names; say so if its bytes are those that are known."""
    path, most = request["path"], request["most"]
    # Not to wait for a pipe that nobody writes to.
    number = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise Refused("is no file")
        check_size(found.st_size, most)
        with open(number, "rb", closefd=False) as file:
            data = file.read(most + 1)
        check_size(len(data), most)  # it may have grown
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
        if total > max(UNPACKED, most):
            raise Refused(f"has more than {max(UNPACKED, most) / 1e6:,.0f} MB of text")
        if block[1].strip():
            blocks.append(block)
    return {"digest": digest, "blocks": blocks}


def check_size(size: int, most: int) -> None:
    """Refuse a file of too many bytes."""
    if size > most:
        size_mb, most_mb = size / 1e6, most / 1e6
        raise Refused(f"is too large: {size_mb:,.1f} MB, and {most_mb:,.1f} MB are read at most")


def decode(data: bytes, kind: str = "text") -> str:
    """Return the text of a file; refuse what is none.

    A few bytes that do not fit are shown as such: the rest is no other encoding for that.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")
    for decoder in (decode_marked, decode_wide, decode_utf8):
        if (text := decoder(data)) is not None:
            break
    else:
        if b"\0" in data[:LOOK]:
            raise Refused("is binary, and no text")
        text = decode_declared(data, kind) or guess(data)
    head = text[:LOOK]
    if len(re.findall(r"[\0-\x08\x0e-\x1a\x1c-\x1f\x7f\ufffd]", head)) > len(head) // 10:
        raise Refused("is binary, and no text")
    return text


def decode_marked(data: bytes) -> str | None:
    """Decode what says at its beginning how it is encoded, unless that is not true."""
    for mark, codec in MARKS:
        if data.startswith(mark):
            rest = data[len(mark) :]
            if rest.isascii() and b"\0" not in rest:
                return rest.decode("ascii")
            return data.decode(codec, "replace").removeprefix("\ufeff")
    return None


def decode_utf8(data: bytes) -> str | None:
    """Decode UTF-8, in which one byte in ten of those that are not ASCII may be wrong."""
    text = data.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    if not wrong:
        return text
    return text if len(re.findall(r"[^\0-\x7f\ufffd]", text)) > 10 * wrong else None


def decode_wide(data: bytes) -> str | None:
    """Decode UTF-16 without a mark: of Latin letters, each second byte is 0."""
    head = data[:LOOK]
    for codec, zeros in (("utf-16-le", head[1::2]), ("utf-16-be", head[::2])):
        if 0 < len(zeros) < 2 * zeros.count(0) and head.count(0) == zeros.count(0):
            return data.decode(codec, "replace")
    return None


def decode_declared(data: bytes, kind: str) -> str | None:
    """Decode HTML or XML as it says itself, if that is possible."""
    head = data[:2048]
    if kind != "html" and not head.lstrip().startswith(b"<?xml"):
        return None
    for name in re.findall(rb"(?:charset|encoding)\s*=\s*[\"']?([\w-]{1,40})", head, re.IGNORECASE):
        with suppress(LookupError, ValueError):
            codec = codecs.lookup(name.decode()).name
            return data.decode("cp1252" if codec == "iso8859-1" else codec)
    return None


def guess(data: bytes) -> str:
    """Decode by what the letters would be; among equals as most of the West writes."""
    from charset_normalizer import from_bytes

    found = list(from_bytes(data, cp_isolation=ENCODINGS))
    if not found:
        raise Refused("is no text in any encoding that is known")
    best = found[0]
    for each in found:
        equal = each.chaos < best.chaos + 0.05 and each.coherence > best.coherence - 0.1
        if equal and "cp1252" in each.could_be_from_charset:
            return data.decode("cp1252", "replace")
    return str(best)


def read_text(text: str, kind: str) -> list[Block]:
    """Return the blocks of a text: "markdown", "html", "code", or else paragraphs."""
    text = encodable(text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", ""))
    readers: dict[str, Callable[[str], Iterator[Block]]] = {
        "markdown": markdown,
        "html": html,
        "code": code,
    }
    return [block for block in readers.get(kind, paragraphs)(text) if block[1].strip()]


def markdown(text: str) -> Iterator[Block]:
    """Give the blocks of Markdown, as they are written there."""
    from markdown_it import MarkdownIt

    lines = text.split("\n")
    end = front_matter(lines)
    if end:
        yield "code", "\n".join(lines[:end]), 0, 1, 0
    parser = MarkdownIt("commonmark").enable("table").disable(["inline", "text_join"])
    tokens = parser.parse("\n" * end + "\n".join(lines[end:]))
    for number, token in enumerate(tokens):
        if token.level or token.map is None or token.nesting < 0:
            continue
        start, until = token.map
        if start > end:  # what is no block of a page, such as the targets of links
            yield "text", "\n".join(lines[end:start]), 0, end + 1, 0
        end = until
        if token.type == "heading_open":
            yield from heading(tokens[number + 1].content, int(token.tag[1:]), start + 1)
        else:
            kind = "code" if token.type == "fence" else "text"
            yield kind, "\n".join(lines[start:until]), 0, start + 1, 0
    yield "text", "\n".join(lines[end:]), 0, end + 1, 0


def front_matter(lines: list[str]) -> int:
    """Return how many lines at the beginning are settings between two lines of dashes."""
    if lines[0].rstrip() == "---":
        for number, line in enumerate(lines[1:200], 2):
            if line.rstrip() in ("---", "..."):
                return number
    return 0


def heading(text: str, level: int, line: int = 0, page: int = 0) -> Iterator[Block]:
    """Give a heading on one line; one that is too long for that stands below it as a whole."""
    title = " ".join(text.split())
    yield "heading", title[:TITLE], level, line, page
    if len(title) > TITLE:
        yield "text", text, 0, line, page


def html(text: str) -> Iterator[Block]:
    """Give the main text of a page, without its menus; it has no lines any more."""
    from trafilatura import extract

    options: dict[str, Any] = {"output_format": "markdown", "favor_recall": True, "fast": True}
    said = extract(text, include_tables=True, **options) or whole_page(text)
    if named := re.search(r"<title[^>]{0,200}>([^<]{1,500})", text, re.IGNORECASE):
        from html import unescape

        yield from heading(unescape(named[1]), 1)
    for kind, block, level, _, _ in markdown(encodable(said)):
        yield kind, block, level, 0, 0


def whole_page(text: str) -> str:
    """Return all of the text of a page in which no article was found."""
    etree: Any = import_module("lxml.etree")  # it has no types
    page = etree.fromstring(text.encode(), etree.HTMLParser(encoding="utf-8", huge_tree=True))
    if page is None:  # there is nothing in it
        return ""
    etree.strip_elements(page, *UNSEEN, etree.Comment, with_tail=False)
    return "\n\n".join(page.itertext())


def paragraphs(text: str) -> Iterator[Block]:
    """Give what stands between empty lines."""
    yield from _chunks(text, "text", lambda line: True)


def code(text: str) -> Iterator[Block]:
    """Give what begins at the left edge after an empty line, with its first line as heading."""
    for kind, block, _, line, _ in _chunks(text, "code", lambda line: not line[:1].isspace()):
        yield "heading", " ".join(block.partition("\n")[0].split())[:TITLE], 1, line, 0
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
    """Give the paragraphs of a PDF, page by page."""
    import logging

    from pypdf import PdfReader

    logging.getLogger("pypdf").setLevel(logging.CRITICAL + 1)
    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        raise Refused("is encrypted: store it without a password")
    empty = True
    if reader.metadata is not None and isinstance(reader.metadata.title, str):
        yield from heading(encodable(reader.metadata.title), 1)
    for number, page in enumerate(reader.pages, 1):
        for kind, block, _, _, _ in paragraphs(encodable(page.extract_text())):
            empty = empty and not block.strip()
            yield kind, block, 0, 0, number
    if empty:
        raise Refused("has no text: its pages may be pictures of text")


def read_docx(data: bytes) -> Iterator[Block]:
    """Give the paragraphs, headings and tables of a Word document."""
    from zipfile import BadZipFile, ZipFile

    try:
        with ZipFile(io.BytesIO(data)) as packed:
            if sum(each.file_size for each in packed.infolist()) > UNPACKED:
                raise Refused(f"is more than {UNPACKED >> 20} MB when it is unpacked")
    except BadZipFile:
        raise Refused("is no Word document of the kind .docx") from None
    from docx import Document
    from docx.table import Table

    for item in Document(io.BytesIO(data)).iter_inner_content():
        if isinstance(item, Table):
            yield "text", encodable(table_text(item)), 0, 0, 0
            continue
        style = (item.style.name if item.style is not None else "") or ""
        text = encodable(item.text)
        if style == "Title":
            yield from heading(text, 1)
        elif re.fullmatch("Heading [1-9]", style):
            yield from heading(text, int(style[8:]))
        else:
            yield "text", text, 0, 0, 0


def table_text(table: Any) -> str:
    """Return the cells of a table of Word, a merged one once, with the tables inside of them."""
    seen: set[Any] = set()
    rows: list[str] = []
    for row in table.rows:
        cells: list[str] = []
        for cell in row.cells:
            # Without this name a cell merged over several rows is repeated in each of them.
            element = getattr(cell, "_tc", cell)
            if element not in seen:
                seen.add(element)
                items = cell.iter_inner_content()
                said = (item.text if hasattr(item, "text") else table_text(item) for item in items)
                cells.append(" ".join(text.strip() for text in said if text.strip()))
        rows.append(" | ".join(cells))
    return "\n".join(rows)


def encodable(text: str) -> str:
    """Return a text in which the halves of characters that some names have are written out."""
    return text.encode("utf-8", "backslashreplace").decode()


if __name__ == "__main__":
    main()
