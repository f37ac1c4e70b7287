"""The search engines: what each is asked, and where in its answer the hits are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from ..commander.errors import ToolError
from ._search import SearchEngine, SearchHit
from ._web_fetch import Fetched, Fetcher
from ._web_text import read_page

__all__ = ["ArxivEngine", "BingEngine", "DuckDuckGoEngine", "SearxngEngine", "SerperEngine"]


class DuckDuckGoEngine(SearchEngine):
    """DuckDuckGo's page for browsers without scripts. It refuses those who ask too often."""

    name = "duckduckgo"

    def __init__(self, url: str = "https://html.duckduckgo.com/html/") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the results of its page."""
        page = await fetcher.ask("POST", self.url, data={"q": query})
        link = ".//a[contains(@class, 'result__a')]"
        result = f"//div[contains(@class, 'web-result')][{link}]"
        hits = await _hits(
            *(self, page, fetcher, limit, "html"),
            rows=result,
            fields=(link, f"{link}/@href", ".//*[contains(@class, 'result__snippet')]"),
            sign=f"{result} | //*[contains(@class, 'no-results')]",
        )
        return [SearchHit(hit.title, _target(hit.url), hit.snippet) for hit in hits]


class BingEngine(SearchEngine):
    """Bing's results as a feed; its paid interface was closed in 2025."""

    name = "bing"

    def __init__(self, url: str = "https://www.bing.com/search") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the items of the feed."""
        feed = await fetcher.ask("GET", self.url, params={"q": query, "format": "rss"})
        return await _hits(
            *(self, feed, fetcher, limit, "xml"),
            rows="//item",
            fields=("title", "link", "description"),
            sign="/rss",
        )


class SearxngEngine(SearchEngine):
    """A SearXNG server, which must allow the format `json`."""

    name = "searxng"

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") + "/search"

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read its JSON."""
        found = await fetcher.ask("GET", self.url, params={"q": query, "format": "json"})
        return await _hits(
            *(self, found, fetcher, limit, "json"),
            rows="results",
            fields=("title", "url", "content"),
        )


class SerperEngine(SearchEngine):
    """Google's results by way of serper.dev."""

    name = "serper"

    def __init__(self, key: str, url: str = "https://google.serper.dev/search") -> None:
        self._key = key
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read its JSON."""
        found = await fetcher.ask(
            "POST", self.url, json={"q": query, "num": limit}, headers={"X-API-KEY": self._key}
        )
        return await _hits(
            *(self, found, fetcher, limit, "json"),
            rows="organic",
            fields=("title", "link", "snippet"),
        )


class ArxivEngine(SearchEngine):
    """Papers on arXiv."""

    name = "arxiv"

    def __init__(self, url: str = "https://export.arxiv.org/api/query") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the entries of its feed."""
        params = {"search_query": f"all:{query}", "max_results": str(limit)}
        return await _hits(
            *(self, await fetcher.ask("GET", self.url, params=params), fetcher, limit, "xml"),
            rows="/*/*[local-name() = 'entry']",
            fields=[f"*[local-name() = '{name}']" for name in ("title", "id", "summary")],
            sign="/*[local-name() = 'feed']",
        )


async def _hits(
    engine: SearchEngine,
    answer: Fetched,
    fetcher: Fetcher,
    limit: int,
    syntax: Literal["html", "xml", "json"],
    *,
    rows: str,
    fields: Sequence[str],
    sign: str = "",
) -> list[SearchHit]:
    """Read the hits; `rows` and `fields` (title, address, excerpt) are keys, or else XPath.

    A page of XML or HTML without `sign` is no list of hits.
    """
    found = await read_page(
        answer,
        "hits",
        fetcher.timeout,
        syntax=syntax,
        rows=rows,
        fields=fields,
        sign=sign,
        limit=limit,
    )
    if found is None:
        what = answer.content_type
        raise ToolError(f"{engine.name} answered something else than results: {what:.100}")
    return [SearchHit(*row) for row in found]


def _target(href: str) -> str:
    """Return where a link of DuckDuckGo's leads in the end."""
    try:
        return parse_qs(urlsplit(href).query).get("uddg", [href])[0]
    except ValueError:  # it is no address
        return href
