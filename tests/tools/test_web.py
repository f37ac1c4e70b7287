"""Search the web and read pages, against a server that imitates the engines."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from support.leaks import child_processes, find_leaks
from support.web_server import WebServer

from anabranch.agents import AgentMessage, ToolExecutor
from anabranch.commander import (
    Commander,
    ConfigurationError,
    MissingExtra,
    NodeCancelled,
    ToolError,
)
from anabranch.handlers import handler
from anabranch.tools import SearchEngine, WebBrowser, search_engine
from anabranch.tools._search import (
    ArxivEngine,
    BingEngine,
    DuckDuckGoEngine,
    SearxngEngine,
    SerperEngine,
)

HERE = ["127.0.0.1"]
ENGINES = ["duckduckgo", "bing", "searxng", "serper", "arxiv"]


@pytest.fixture
async def server() -> AsyncIterator[WebServer]:
    async with WebServer() as playing:
        yield playing


def engine(name: str, url: str, key: str = "right") -> SearchEngine:
    match name:
        case "duckduckgo":
            return DuckDuckGoEngine(f"{url}/duckduckgo")
        case "bing":
            return BingEngine(f"{url}/bing")
        case "searxng":
            return SearxngEngine(f"{url}/searxng/")
        case "serper":
            return SerperEngine(key, f"{url}/serper")
        case _:
            return ArxivEngine(f"{url}/arxiv")


def browser(server: WebServer, name: str = "searxng", **options: Any) -> WebBrowser:
    return WebBrowser(engine(name, server.url), **{"allow_private": HERE, **options})


async def use(tool: Any, **arguments: Any) -> str:
    async with asyncio.timeout(30):
        return await tool.run(arguments)


async def failure(tool: Any, **arguments: Any) -> str:
    with pytest.raises(ToolError) as raised:
        await use(tool, **arguments)
    return str(raised.value)


@pytest.mark.parametrize("name", ENGINES)
async def test_every_engine_gives_titles_addresses_and_excerpts(server: WebServer, name: str):
    """Behind one interface."""
    found = await use(browser(server, name).search, queries=["rivers & lakes"])

    lines = found.splitlines()
    assert lines[0] == "rivers & lakes:"
    assert lines[1] == "1. About rivers & lakes"
    assert lines[2].strip().startswith("http")
    assert lines[3] == "   A rivers & lakes text"


@pytest.mark.parametrize("name", ENGINES)
@pytest.mark.parametrize(
    "answer",
    [
        web.Response(body=b"\x00\xff garbage", content_type="application/octet-stream"),
        web.Response(text="<html><body>Are you a robot?</body></html>", content_type="text/html"),
        web.Response(text="[1, 2]", content_type="application/json"),
        web.Response(body=b"", content_type="text/html"),
        web.Response(status=429, text="slow down"),
        web.Response(status=500, text="oops"),
    ],
    ids=["bytes", "captcha", "json", "empty", "429", "500"],
)
async def test_an_engine_that_answers_nonsense_is_a_clear_failure(
    server: WebServer, name: str, answer: web.Response
):
    """The error names the engine and the content; it is not cached."""
    tools = browser(server, name)
    server.broken = answer

    said = await failure(tools.search, queries="x")
    assert (
        f"{name} did not answer with search results" in said
        or "answered 429" in said
        or "500" in said
    )

    server.broken = None
    assert "About x" in await use(tools.search, queries="x")


async def test_nothing_found_is_no_failure(server: WebServer):
    """The model reads that there are no hits."""
    said = await use(browser(server, "duckduckgo").search, queries="nothing")

    assert said == "nothing: nothing found"


async def test_several_queries_are_asked_at_once_and_doubles_are_left_out(server: WebServer):
    """Each has its own list; an address appears once; a failed query does not affect others."""
    tools = browser(server)
    server.gate.clear()
    asking = asyncio.create_task(use(tools.search, queries=["a", "b", "a"]))
    async with asyncio.timeout(5):
        await server.answering(2)
    server.gate.set()
    said = await asking

    assert server.asked["/searxng/search"] == server.most == 2
    assert "a:\n1. About a\n" in said
    assert said.endswith("\n\nb:")


async def test_one_query_that_fails_leaves_the_others():
    """Its list has the error."""

    class Moody(SearchEngine):
        name = "moody"

        async def search(self, query: str, limit: int, fetcher: Any) -> list[Any]:
            if query == "bad":
                raise ToolError("not today")
            return []

    tools = WebBrowser(Moody())
    said = await use(tools.search, queries=["bad", "good"])

    assert said == "bad: not today\n\ngood: nothing found"
    assert await failure(tools.search, queries=["bad"]) == "not today"


async def test_a_wrong_number_of_queries_is_the_models_to_mend(server: WebServer):
    """Zero, or more than eight."""
    for queries in ([], ["x"] * 9, 3):
        assert "wrong arguments" in await failure(browser(server).search, queries=queries)


async def test_searches_and_pages_are_remembered_for_a_time(server: WebServer):
    """The second use sends no request until `cache_for` has passed."""
    tools = browser(server)
    for _ in range(2):
        await use(tools.search, queries="x")
        await use(tools.read, url=f"{server.url}/page/text")
    assert (server.asked["/searxng/search"], server.asked["/page/text"]) == (1, 1)

    forgetful = browser(server, cache_for=0)
    for _ in range(2):
        await use(forgetful.search, queries="x")
    assert server.asked["/searxng/search"] == 3


async def test_a_page_is_read_as_text(server: WebServer):
    """Its main text with links, as Markdown; no menu, no script."""
    said = await use(browser(server).read, url=f"{server.url}/page/rivers")

    assert "title: Rivers" in said
    assert "An anabranch leaves the main stream" in said
    assert f"[more]({server.url}/more)" in said
    assert "alert" not in said


async def test_text_and_json_are_read_as_they_are(server: WebServer):
    """In their charset, or with replacements."""
    read = browser(server).read

    assert await use(read, url=f"{server.url}/page/text") == "Grüße"
    assert await use(read, url=f"{server.url}/page/json") == '{"a": 1}'
    assert (await use(read, url=f"{server.url}/page/odd")).endswith("plain")


async def test_a_long_page_is_read_piece_by_piece(server: WebServer):
    """The result names the next `start`."""
    read = browser(server, max_text=10_000).read
    url = f"{server.url}/page/long"
    first = await use(read, url=url)
    second = await use(read, url=url, start=10_000)

    assert "[cut at 10000 of " in first
    assert first.endswith("go on with start=10000]")
    assert second.startswith("word") or second[:5].strip() in "word word"
    assert "start must be less than" in await failure(read, url=url, start=10**6)
    assert "wrong arguments" in await failure(read, url=url, start=-1)
    assert server.asked["/page/long"] == 1


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("/page/pdf", "this is application/pdf, which cannot be read as text"),
        ("/page/none", "127.0.0.1 answered 404 Not Found"),
        ("/page/empty", "no text without its scripts"),
        ("/page/loop", "127.0.0.1 redirects more than 5 times"),
        ("/page/to?url=file:///etc/passwd", "the address must be http or https"),
        ("/page/garbage", "fetching from 127.0.0.1 failed"),
        ("/page/hang", "127.0.0.1 did not answer within 0.5 s"),
        ("/page/drip", "127.0.0.1 did not answer within 0.5 s"),
    ],
)
async def test_a_page_that_cannot_be_read_is_a_clear_failure(
    server: WebServer, path: str, said: str
):
    """One sentence has the reason."""
    timeout = 0.5 if "0.5" in said else 20

    assert said in await failure(browser(server, timeout=timeout).read, url=server.url + path)


@pytest.mark.parametrize(
    "url",
    ["", "nonsense", "ftp://x/y", "file:///etc/passwd", "http://", "http://[", "http://x:y/", "//"],
)
async def test_what_is_no_web_address_is_refused(server: WebServer, url: str):
    """Whatever a model may write."""
    said = await failure(browser(server).read, url=url)

    assert "must be http" in said or "failed" in said


async def test_a_large_page_is_cut_also_when_it_came_compressed(server: WebServer):
    """A small compressed answer is not expanded completely."""
    said = await use(
        browser(server, max_bytes=1000, max_text=5000).read, url=f"{server.url}/page/bomb"
    )

    assert len(said) < 1100
    assert said.endswith("[the page is longer, but too large to read completely]")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "0.0.0.0", "[::1]",
     "[::ffff:127.0.0.1]", "10.0.0.1", "169.254.169.254", "[fd00::1]", "[64:ff9b::7f00:1]"],
)  # fmt: skip
async def test_a_private_address_is_refused_however_it_is_written(server: WebServer, host: str):
    """No connection is made to it."""
    port = server.url.rpartition(":")[2]
    tools = browser(server, allow_private=False)

    assert "private address" in await failure(tools.read, url=f"http://{host}:{port}/page/text")
    assert not server.asked


@pytest.mark.parametrize("host", ["10.0.0.1", "127.0.0.2", "169.254.169.254", "[::1]"])
async def test_a_redirect_to_a_private_address_is_refused(server: WebServer, host: str):
    """Also when the page that redirects is allowed."""
    url = f"{server.url}/page/to?url=http://{host}/secret"

    assert "private address" in await failure(browser(server).read, url=url)


@pytest.mark.parametrize("host", ["rebound.example", "0x7f.1"])
async def test_a_name_is_looked_at_when_the_connection_is_made(
    server: WebServer, monkeypatch: pytest.MonkeyPatch, host: str
):
    """A name that becomes private after the lookup is refused, and so is an unusual number."""
    port = int(server.url.rpartition(":")[2])

    async def rebound(self: Any, host: str, port: int, **_: Any) -> Any:
        kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
        return [(*kind, ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.BaseEventLoop, "getaddrinfo", rebound)
    tools = browser(server, allow_private=False)

    said = await failure(tools.read, url=f"http://{host}:{port}/page/text")
    assert "127.0.0.1 is a private address" in said
    assert not server.asked


async def test_cancelling_closes_the_request_and_leaves_no_process(server: WebServer):
    """The cancel of a conversation cancels its requests."""
    before = child_processes()
    async with asyncio.timeout(10), Commander() as commander:

        @handler
        async def work(node: Any) -> Any:
            call = {"name": "web_read", "parameters": {"url": f"{server.url}/page/hang"}}
            return await ToolExecutor([browser(server)])(AgentMessage(content=call))

        working = commander.call_handler(work(), claim=True)
        await server.hanging.wait()
        working.cancel()
        with pytest.raises(NodeCancelled):
            await working
        await server.answering(0)
    assert not find_leaks(child_processes, before)


async def test_reading_that_takes_too_long_is_killed(server: WebServer):
    """Its process ends with it."""
    before = child_processes()
    read = browser(server, timeout=0.05).read

    assert "more than 0.05 s" in await failure(read, url=f"{server.url}/page/rivers")
    assert not find_leaks(child_processes, before)


async def test_a_dead_server_is_named():
    """Its host and the failure of the connection."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/"
        said = await failure(WebBrowser("duckduckgo", allow_private=True).read, url=url)

    assert "cannot connect to 127.0.0.1" in said


async def test_a_wrong_key_is_a_failure_that_does_not_show_it(server: WebServer):
    """Nor does the engine's repr."""
    tools = WebBrowser(engine("serper", server.url, key="sk-wrong"))

    assert await failure(tools.search, queries="x") == "127.0.0.1 answered 403 Forbidden"
    assert "sk-wrong" not in repr(tools.engine)


def test_the_environment_chooses_the_engine(monkeypatch: pytest.MonkeyPatch):
    """A key, a server address, or the engine that needs neither."""
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    monkeypatch.delenv("SEARXNG_URL", raising=False)
    assert search_engine().name == "duckduckgo"
    with pytest.raises(ConfigurationError, match="SERPER_API_KEY"):
        search_engine("serper")
    with pytest.raises(ConfigurationError, match="use one of arxiv, bing"):
        search_engine("altavista")
    monkeypatch.setenv("SEARXNG_URL", "http://localhost:8080")
    assert search_engine().name == "searxng"
    monkeypatch.setenv("SERPER_API_KEY", "k")
    assert search_engine().name == "serper"
    assert [search_engine(name).name for name in ENGINES] == ENGINES


async def test_without_the_extra_the_error_names_it(monkeypatch: pytest.MonkeyPatch):
    """At the first use, not at import."""
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[web\]"):
        await WebBrowser("duckduckgo").read.run({"url": "http://127.0.0.1/"})
