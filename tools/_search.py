"""Web search: the interface of an engine, the engines, and which one the environment offers.

An engine says what its server is asked, and where in the answer the hits are.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from ..commander.errors import ConfigurationError, ToolError
from ._web_fetch import Fetched, Fetcher
from ._web_text import read_page

__all__ = ["SearchEngine", "SearchHit", "search_engine"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result of a search."""

    title: str
    url: str
    snippet: str = ""


class SearchEngine(ABC):
    """Finds pages. A new engine is one method."""

    name: str

    @abstractmethod
    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Return up to `limit` hits, best first; an empty list if there are none.

        Raises `ToolError` if the engine refuses, cannot be reached or answers nonsense.
        """


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
        found: list[SearchHit] = []
        for hit in hits:
            try:  # a link leads by way of the engine
                url = parse_qs(urlsplit(hit.url).query).get("uddg", [hit.url])[0]
            except ValueError:  # it is no address
                url = hit.url
            found.append(SearchHit(hit.title, url, hit.snippet))
        return found


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
    keys = {"rows": rows, "fields": fields, "sign": sign, "limit": limit}
    found = await read_page(answer, "hits", fetcher.timeout, syntax=syntax, **keys)
    if found is None:
        what = answer.content_type
        raise ToolError(f"{engine.name} answered something else than results: {what:.100}")
    return [SearchHit(*row) for row in found]


def search_engine(name: str | None = None) -> SearchEngine:
    """Return the engine of this name, set up from the environment.

    `serper` needs `SERPER_API_KEY`, `searxng` needs `SEARXNG_URL`; `duckduckgo`, `bing` and
    `arxiv` need nothing. Without a name it is the first of the two that has what it needs, else
    `duckduckgo`. Raises `ConfigurationError` for an unknown name or a missing setting.
    """
    if name is None:
        wants = {"SERPER_API_KEY": "serper", "SEARXNG_URL": "searxng"}
        name = next((wants[each] for each in wants if os.environ.get(each)), "duckduckgo")
    engines: Mapping[str, Callable[[], SearchEngine]] = {
        "arxiv": ArxivEngine,
        "bing": BingEngine,
        "duckduckgo": DuckDuckGoEngine,
        "searxng": lambda: SearxngEngine(_setting("SEARXNG_URL")),
        "serper": lambda: SerperEngine(_setting("SERPER_API_KEY")),
    }
    if name not in engines:
        raise ConfigurationError(f"search engine {name!r}: there are {', '.join(engines)}")
    return engines[name]()


def _setting(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise ConfigurationError(f"set {name} in the environment to search with this engine")
