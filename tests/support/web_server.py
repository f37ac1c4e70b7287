"""A loopback server that imitates search engines and a few web pages."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from html import escape
from typing import Any
from urllib.parse import quote

from aiohttp import web

from support.aiohttp_server import serve_app

__all__ = ["WebServer"]

DRIP = 0.01  # seconds between two bytes of a page that never ends

PAGE = """<html><head><title>Rivers</title></head><body><nav><a href="/">Home</a></nav><article>
<h1>Rivers</h1><p>An anabranch leaves the main stream and joins it again further down. It is one
sentence among several that make up the text of this page, see <a href="/more">more</a>.</p>
<p>{}</p></article><script>alert(1)</script></body></html>"""


class WebServer:
    """The server. `asked` counts the requests for each path; `bodies` are their bodies.

    `broken` replaces the answer of every search engine. `hanging` is set when a request hangs.
    `together` is the number of requests in progress.
    """

    def __init__(self) -> None:
        self.asked: Counter[str] = Counter()
        self.bodies: list[Any] = []
        self.broken: web.Response | None = None
        self.hanging = asyncio.Event()
        self.together = 0
        self.most = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self._changed = asyncio.Event()
        self._stack = AsyncExitStack()
        self.url = ""

    async def __aenter__(self) -> WebServer:
        app = web.Application(middlewares=[self._count])
        for path in ("duckduckgo", "bing", "searxng/search", "serper", "arxiv"):
            handler = getattr(self, "_" + path.partition("/")[0])
            app.router.add_route("*", f"/{path}", handler)
        app.router.add_get("/page/{name}", self._page)
        self.url = await self._stack.enter_async_context(serve_app(app))
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def answering(self, requests: int) -> None:
        """Wait until this number of requests is in progress."""
        while self.together != requests:
            await self._changed.wait()

    def _add(self, requests: int) -> None:
        self.together += requests
        self.most = max(self.most, self.together)
        self._changed.set()
        self._changed = asyncio.Event()

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.asked[request.path] += 1
        self._add(1)
        try:
            await self.gate.wait()
            if self.broken is not None:
                body = self.broken.body
                return web.Response(
                    status=self.broken.status, body=body, content_type=self.broken.content_type
                )
            return await handler(request)
        finally:
            self._add(-1)

    async def _duckduckgo(self, request: web.Request) -> web.Response:
        query = (await request.post())["q"]
        if query == "nothing":
            return self._html('<div class="no-results">No results.</div>')
        link = "//duckduckgo.com/l/?uddg=" + quote("http://e.com/a?b=1&c=2") + "&rut=x"
        box = (
            f'<div class="result results_links web-result"><h2><a class="result__a" href="{link}">'
            f"About <b>{query}</b></a></h2>"
            f"<a class='result__snippet'>A <b>{query}</b> text</a></div>"
        )
        advert = '<div class="result result--ad"><a class="result__a" href="x">Buy</a></div>'
        return self._html(advert + box * 9)

    async def _bing(self, request: web.Request) -> web.Response:
        query = escape(request.query["q"])
        items = "".join(
            f"<item><title>About {query}</title><link>http://e.com/{n}</link>"
            f"<description>A {query} text</description></item>"
            for n in range(9)
        )
        bomb = '<!DOCTYPE r [<!ENTITY a "x"><!ENTITY f SYSTEM "file:///etc/passwd">]>'
        feed = f'<?xml version="1.0"?>{bomb}<rss><channel><title>&f;</title>{items}</channel></rss>'
        return web.Response(text=feed, content_type="text/xml")

    async def _searxng(self, request: web.Request) -> web.Response:
        assert request.query["format"] == "json"
        query = request.query["q"]
        one = {"title": f"About {query}", "url": "http://e.com/1", "content": f"A {query} text"}
        return web.json_response({"results": [one, "odd", {"title": "no url"}, one]})

    async def _serper(self, request: web.Request) -> web.Response:
        if request.headers.get("X-API-KEY") != "right":
            return web.json_response({"message": "Unauthorized."}, status=403)
        query = (await request.json())["q"]
        one = {"title": f"About {query}", "link": "http://e.com/1", "snippet": f"A {query} text"}
        return web.json_response({"organic": [one]})

    async def _arxiv(self, request: web.Request) -> web.Response:
        query = escape(request.query["search_query"].removeprefix("all:"))
        entry = (
            f"<entry><id>http://arxiv.org/abs/1</id><title>About\n  {query}</title>"
            f"<summary>A {query} text</summary></entry>"
        )
        feed = f'<feed xmlns="http://www.w3.org/2005/Atom"><title>q</title>{entry}</feed>'
        return web.Response(text=feed, content_type="application/atom+xml")

    def _html(self, body: str) -> web.Response:
        return web.Response(text=f"<html><body>{body}</body></html>", content_type="text/html")

    async def _page(self, request: web.Request) -> web.StreamResponse:
        match request.match_info["name"]:
            case "rivers":
                return web.Response(text=PAGE.format("End."), content_type="text/html")
            case "long":
                return web.Response(text=PAGE.format("word " * 9000), content_type="text/html")
            case "text":
                return web.Response(
                    body="Grüße".encode("latin-1"),
                    headers={"Content-Type": "text/plain; charset=latin-1"},
                )
            case "odd":
                return web.Response(
                    body=b"\xfa\xfbplain", headers={"Content-Type": "text/plain; charset=nowhere"}
                )
            case "json":
                return web.json_response({"a": 1})
            case "pdf":
                return web.Response(body=b"%PDF", content_type="application/pdf")
            case "empty":
                return self._html("")
            case "bomb":
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                response.enable_compression()
                await response.prepare(request)
                for _ in range(200):
                    await response.write(bytes(2**20))
                return response
            case "hang":
                self.hanging.set()
                await asyncio.Event().wait()
                raise AssertionError
            case "drip":
                response = web.StreamResponse(headers={"Content-Type": "text/plain"})
                await response.prepare(request)
                self.hanging.set()
                while True:
                    await response.write(b"x")
                    await asyncio.sleep(DRIP)
            case "to":
                raise web.HTTPFound(request.query["url"])
            case "loop":
                raise web.HTTPFound("/page/loop")
            case "garbage":
                assert request.transport is not None
                request.transport.write(b"\x00\x01 not http at all\r\n\r\n")
                request.transport.close()
                return web.Response()
            case _:
                raise web.HTTPNotFound
