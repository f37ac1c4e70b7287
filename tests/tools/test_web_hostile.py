"""Hostile servers and pages cannot stop the loop, exceed their time or fill memory."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import random
import socket
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.leaks import child_processes, find_leaks
from support.paths import DATA, ROOT
from support.threaded_byte_server import Answer, ThreadedByteServer
from support.waiting import run_turns

from anabranch.commander import MissingExtra, ToolError
from anabranch.tools import WebBrowser, _web, _web_fetch
from anabranch.tools._web_charset import CODEC_BY_LABEL, page_codec
from anabranch.tools._web_fetch import Fetched, Fetcher, _Inflater, read_page

ANSWERS: dict[str, Any] = json.loads((DATA / "hostile_answers.json").read_text())
PAGES: dict[str, Any] = json.loads((DATA / "hostile_pages.json").read_text())
LITTLE = 0.5  # seconds of the loop's own thread, whatever else the machine does


@pytest.fixture(autouse=True, scope="module")
def _no_collections():
    """Collecting the garbage of earlier tests may take longer than the measured time."""
    gc.disable()
    yield
    gc.enable()


PACKED = {"gzip": gzip.compress, "deflate": zlib.compress, "bare": lambda body: _bare(body)}


def _bare(body: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packing.compress(body) + packing.flush()


def drawn() -> random.Random:
    """Return what to draw with, and print its seed, which pytest shows if the test fails."""
    seed = random.randrange(2**32)
    print("seed", seed)
    return random.Random(seed)


def written(pieces: Any) -> str:
    return "".join(text * times for text, times in pieces)


def answer(described: Any) -> Answer:
    forever = described.get("forever")
    return (
        written(described["once"]).encode("latin-1"),
        written([forever]).encode("latin-1") if forever else b"",
    )


def answered(*headers: str, body: bytes = b"hello") -> Answer:
    head = "\r\n".join(["HTTP/1.1 200 OK", f"Content-Length: {len(body)}", *headers, "", ""])
    return head.encode("latin-1") + body, b""


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedByteServer]:
    with ThreadedByteServer(
        {name.replace(" ", "-"): answer(each) for name, each in ANSWERS.items()}
    ) as it:
        yield it


async def outcome(fetcher: Fetcher, url: str) -> Fetched | str:
    """Fetch a page at little cost to the loop; return the text of a failure."""
    before = time.thread_time()
    try:
        return await fetcher.get(url)
    except ToolError as error:
        return str(error)
    finally:
        assert time.thread_time() - before < 2 * LITTLE


@pytest.mark.parametrize("name", ANSWERS)
async def test_whatever_a_server_answers_is_a_page_or_a_clear_failure(
    server: ThreadedByteServer, name: str
):
    """In time, within the size, and without another error."""
    endless = "did not answer" in ANSWERS[name].get("said", "")
    fetcher = Fetcher(
        timeout=0.3 if endless else 20, max_bytes=100_000, allow_private=["127.0.0.1"]
    )
    said = await outcome(fetcher, f"{server.url}/{name.replace(' ', '-')}")

    if isinstance(said, Fetched):
        assert len(said.body) <= 100_000
    else:
        assert ANSWERS[name].get("said", "") in said
        assert len(said) < 500


PIECES = [
    *':;,="\\()<%*0 \t/a[@\xff',
    "charset",
    "utf-8''",
    "gzip",
    "text/html",
    "chunked",
    "identity",
]
NAMES = ["Content-Type", "Content-Encoding", "Content-Length", "Transfer-Encoding", "Location"]
NAMES += ["Set-Cookie", "Link", "Date", "Connection", "Upgrade", "Refresh"]


async def test_headers_made_at_random_cost_little_and_are_no_other_error(
    monkeypatch: pytest.MonkeyPatch,
):
    """Any header of any pieces, up to the length that HTTP allows."""

    async def nowhere(*_: Any, **__: Any) -> Any:
        raise socket.gaierror("there is no such name")

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", nowhere)
    draw = drawn()

    def header() -> str:
        pieces = draw.choices(PIECES, k=draw.randint(1, 4))
        return f"{draw.choice(NAMES)}: {''.join(pieces) * draw.randint(1, 8000 // 40)}"

    def status() -> str:
        return draw.choice(["200 OK", "302 Found", "204 None", "206 Part", "304 Same", "401 No"])

    answers = {
        str(number): (
            "\r\n".join([f"HTTP/1.1 {status()}", header(), header(), "", "hello"]).encode(
                "latin-1"
            ),
            b"",
        )
        for number in range(60)
    }
    with ThreadedByteServer(answers) as server:
        fetcher = Fetcher(timeout=1, allow_private=["127.0.0.1"])
        for number in answers:
            said = await outcome(fetcher, f"{server.url}/{number}")
            assert isinstance(said, (Fetched, str)), answers[number]


@given(
    st.sampled_from(sorted(PACKED)),
    st.binary(max_size=3000) | st.integers(1, 10**6).map(bytes),
    st.integers(1, 5000),
    st.integers(1, 100),
    st.binary(max_size=50),
)
def test_compressed_data_is_unfolded_up_to_what_is_asked_for(
    kind: str, body: bytes, most: int, step: int, after: bytes
):
    """In pieces of any size; bytes after its end are dropped."""
    packed = PACKED[kind](body) + after
    inflater = _Inflater("gzip" if kind == "gzip" else "deflate")
    out = b""
    for start in range(0, len(packed), step):
        piece = inflater.feed(packed[start : start + step], most + 1 - len(out))
        out += piece
        assert len(out) <= most + 1
        if inflater.ended or len(out) > most:
            break

    assert out == body[: most + 1]
    if inflater.ended:
        assert inflater.feed(after * 9, 1) == b""
        inflater.end()


async def test_a_page_whose_compressed_data_breaks_off_is_no_whole_page():
    """Also with the right length; later bytes are not waited for."""
    packed = gzip.compress(b"hello" * 99)
    coding = "Content-Encoding: gzip"
    endless = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\n\r\n" + packed
    answers = {"half": answered(coding, body=packed[:-9]), "more": (endless, b"x" * 9999)}
    with ThreadedByteServer(answers) as server:
        fetcher = Fetcher(timeout=10, allow_private=["127.0.0.1"])
        assert "is incomplete" in str(await outcome(fetcher, f"{server.url}/half"))
        page = await outcome(fetcher, f"{server.url}/more")

    assert isinstance(page, Fetched)
    assert page.body == b"hello" * 99


def test_a_page_is_decoded_by_the_codecs_of_the_web_alone():
    """Whichever of Python's codecs its header names."""
    from encodings.aliases import aliases

    for label in {*aliases, *aliases.values(), "punycode", "idna", "unicode_escape", "undefined"}:
        assert page_codec(b"abc", label) == CODEC_BY_LABEL.get(label, "utf-8")
    for codec in {*CODEC_BY_LABEL.values()}:
        assert b"abc".decode(codec, "replace")


@pytest.mark.parametrize(
    ("body", "label", "codec"),
    [
        ("Grüße".encode(), None, "utf-8"),
        (b"<meta charset=windows-1251>", None, "cp1251"),
        (b"<meta charset=windows-1251>", "utf-8", "utf-8"),
        (b"<meta charset=windows-1251>", "nonsense", "cp1251"),
        (b"<meta charset=utf-16>", None, "utf-8"),
        (b"<meta http-equiv=x content='text/html; charset=sjis'>", None, "cp932"),
        (b'<?xml version="1.0" encoding="KOI8-R"?>', None, "koi8_r"),
        (b"\xef\xbb\xbf<meta charset=sjis>", "koi8-r", "utf-8"),
        (b"\xff\xfe<", "utf-8", "utf-16-le"),
        (b"<p>" * 999 + b"<meta charset=sjis>", None, "utf-8"),
        (b"", " ISO-8859-1 ", "cp1252"),
    ],
)
def test_a_mark_decides_then_the_header_then_the_page(body: bytes, label: str | None, codec: str):
    """As in a browser."""
    assert page_codec(body, label) == codec


@given(
    st.binary(max_size=2000),
    st.text(max_size=50) | st.sampled_from(sorted(CODEC_BY_LABEL)) | st.none(),
)
def test_any_bytes_under_any_label_are_text(body: bytes, label: str | None):
    """What cannot be decoded is replaced."""
    page = Fetched("http://e.com/", "text/plain", label, body)

    assert page.text.encode("utf-8", "strict") or not page.text


async def found(page: Fetched, wanted: Any, timeout: float, **options: Any) -> Any:
    """Return the content of a page, None if it takes too long or all memory."""
    try:
        return await read_page(page, wanted, timeout, **options)
    except ToolError as error:
        said = str(error)
    assert f"more than {timeout} s" in said or "cannot be read" in said
    return []


def sampled(many: int) -> list[str]:
    """Return a few hostile pages, and as many pieces of them."""
    draw = drawn()
    every = [piece for page in PAGES.values() for piece in page["body"]]
    mixed = [
        [(text, min(times, 20_000)) for text, times in draw.choices(every, k=4)]
        for _ in range(many)
    ]
    known = [page["body"] for page in draw.sample(list(PAGES.values()), many)]
    return [written(pieces) for pieces in [*known, *mixed]]


@pytest.mark.parametrize("first", range(9))
async def test_cancelled_again_in_every_turn_no_process_is_left(first: int):
    """Also while the process is being started."""
    before = child_processes()
    reading = asyncio.create_task(read_page(Fetched("http://e.com/", "", None, b"x"), "text", 50))
    await run_turns(first)
    while not reading.done():
        reading.cancel()
        await asyncio.sleep(0)
    assert reading.cancelled()
    assert child_processes() <= before


async def test_a_hostile_page_costs_the_loop_nothing_and_ends_in_time():
    """Depth, width, entities, what makes a pattern try every way; its process ends with it."""
    before = child_processes()

    async def read(body: str) -> None:
        page = Fetched("http://e.com/", "text/html", None, body.encode()[: 2**21])
        said = await found(page, "article", 1)
        assert len(said) <= len(page.body) + 10_000

    bodies = sampled(3)
    started = time.thread_time()
    async with asyncio.timeout(60):
        await asyncio.gather(*map(read, bodies))
    assert time.thread_time() - started < LITTLE
    assert not find_leaks(child_processes, before)


async def test_only_so_many_pages_are_read_at_once(monkeypatch: pytest.MonkeyPatch):
    """A reply with a hundred calls does not start a hundred processes."""
    monkeypatch.setattr(_web_fetch, "MAX_READERS", 2)
    before = child_processes()
    most = 0
    plain = asyncio.create_subprocess_exec

    async def counted(*words: Any, **options: Any) -> Any:
        nonlocal most
        process = await plain(*words, **options)
        most = max(most, len(child_processes() - before))
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", counted)
    page = Fetched("http://e.com/", "text/plain", None, b"text")
    async with asyncio.timeout(60):
        assert set(await asyncio.gather(*(read_page(page, "text", 50) for _ in range(6)))) == {
            "text"
        }
    assert most == 2


@pytest.mark.parametrize(
    ("syntax", "body"),
    [
        ("json", '{"results": ' + "[" * 100_000),
        ("json", '{"results": [' + "9" * 100_000 + "]}"),
        ("json", '{"results": [{"title": "\\ud800", "url": "u", "content": null}]}'),
        ("html", "<p" + " a1 b2 c3" * 100_000 + ">"),
        ("html", "<div class=web-result>" * 50_000 + "<a class=result__a href=x>" + "y" * 10**6),
        ("xml", "<!DOCTYPE r [<!ENTITY a 'xx'><!ENTITY b '&a;&a;'>]><rss>&b;</rss>"),
        ("xml", "<rss>" + "<item>" * 100_000),
    ],
)
async def test_a_search_engine_that_turns_hostile_is_read_as_carefully(syntax: str, body: str):
    """Hits have a bounded size and valid text, or there are none."""
    before = time.thread_time()
    hits = await found(
        Fetched("http://e.com/", "x/y", None, body.encode()),
        "hits",
        10,
        syntax=syntax,
        rows="results" if syntax == "json" else "//item | //div",
        fields=("title", "url", "content") if syntax == "json" else (".", "@x", "title"),
        sign="/*",
        limit=5,
    )

    for hit in hits or []:
        assert all(len(field) <= 2000 and field.encode() is not None for field in hit)
    assert len(hits or []) <= 5
    assert time.thread_time() - before < LITTLE


async def test_a_failed_import_is_no_bad_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package with a missing dependency is a missing extra; the error has the failed import."""
    (tmp_path / "trafilatura.py").write_text("import lxml_html_clean_is_not_there")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    page = Fetched("http://e.com/", "text/html", None, b"<p>text</p>")
    with pytest.raises(MissingExtra, match=r"anabranch\[web\]") as raised:
        await read_page(page, "article", 20)

    assert "lxml_html_clean_is_not_there" in str(raised.value.__cause__)


def test_the_extra_names_what_the_reader_imports():
    """Some versions of pip do not install the extra of lxml."""
    project = ROOT / "pyproject.toml"
    (line,) = (each for each in project.read_text().splitlines() if each.startswith("web = "))

    assert "lxml_html_clean" in line


async def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch):
    """By length, not only by count; a page that is too long is not cached."""
    tools = WebBrowser("duckduckgo", max_text=10**9)
    asked: list[str] = []

    async def get(url: str, **_: Any) -> Fetched:
        asked.append(url)
        return Fetched(url, "text/plain", None, b"")

    async def read_page(*_: Any) -> str:
        return "x" * 3_000_000

    monkeypatch.setattr(tools._fetcher, "get", get)
    monkeypatch.setattr(_web, "read_page", read_page)
    for number in [*range(20), 19, 0]:
        await tools.read.function(url=str(number))

    assert asked == [*map(str, range(20)), "0"]
    assert sum(len(text) for _, text in tools._page_cache._entries.values()) <= 20_000_000


async def test_an_address_too_long_is_refused():
    """Before it is parsed."""
    fetcher = Fetcher()
    for url in ("http://" + "a" * 10**6, "http://e.com/" + "\u2177" * 10**6):
        assert "characters" in str(await outcome(fetcher, url))
