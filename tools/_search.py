"""Web search: the interface of search engines, and the engines.

An engine defines the request to its server, and where the answer contains the hits.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import parse_qs, urlsplit

from ..commander.errors import ConfigurationError, ToolError
from ._web_fetch import Fetched, Fetcher, read_page

__all__ = ["SearchEngine", "SearchHit", "search_engine"]


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result of a search."""

    title: str
    url: str
    snippet: str = ""


class SearchEngine(ABC):
    """Finds web pages. A new engine implements one method.

    class Wiki(SearchEngine):
        name = "wiki"

        async def search(self, query, limit, fetcher):
            page = await fetcher.ask("GET", "https://wiki.example/search", params={"q": query})
            return [SearchHit(row["title"], row["url"]) for row in json.loads(page.text)[:limit]]
    """

    name: str

    @abstractmethod
    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Return up to `limit` hits, best first; an empty list if there are none.

        Raises `ToolError` if the engine refuses, cannot be reached or sends no list of hits.
        """


class DuckDuckGoEngine(SearchEngine):
    """DuckDuckGo's page for browsers without scripts. It refuses clients that search too often."""

    name = "duckduckgo"

    def __init__(self, url: str = "https://html.duckduckgo.com/html/") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the results of its page."""
        page = await fetcher.ask("POST", self.url, data={"q": query})
        link = ".//a[contains(@class, 'result__a')]"
        result = f"//div[contains(@class, 'web-result')][{link}]"
        hits = await _read_hits(
            *(self, page, fetcher, limit, "html"),
            rows=result,
            fields=(link, f"{link}/@href", ".//*[contains(@class, 'result__snippet')]"),
            sign=f"{result} | //*[contains(@class, 'no-results')]",
        )
        hits_found: list[SearchHit] = []
        for hit in hits:
            try:  # the link redirects through the engine
                url = parse_qs(urlsplit(hit.url).query).get("uddg", [hit.url])[0]
            except ValueError:  # the link is not a URL
                url = hit.url
            hits_found.append(SearchHit(hit.title, url, hit.snippet))
        return hits_found


class BingEngine(SearchEngine):
    """Bing's results as a feed; its paid interface was closed in 2025."""

    name = "bing"

    def __init__(self, url: str = "https://www.bing.com/search") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the items of the feed."""
        feed = await fetcher.ask("GET", self.url, params={"q": query, "format": "rss"})
        return await _read_hits(
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
        hits_found = await fetcher.ask("GET", self.url, params={"q": query, "format": "json"})
        return await _read_hits(
            *(self, hits_found, fetcher, limit, "json"),
            rows="results",
            fields=("title", "url", "content"),
        )


class SerperEngine(SearchEngine):
    """Google's results through serper.dev."""

    name = "serper"

    def __init__(self, key: str, url: str = "https://google.serper.dev/search") -> None:
        self._key = key
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read its JSON."""
        hits_found = await fetcher.ask(
            "POST", self.url, json={"q": query, "num": limit}, headers={"X-API-KEY": self._key}
        )
        return await _read_hits(
            *(self, hits_found, fetcher, limit, "json"),
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
        return await _read_hits(
            *(self, await fetcher.ask("GET", self.url, params=params), fetcher, limit, "xml"),
            rows="/*/*[local-name() = 'entry']",
            fields=[f"*[local-name() = '{name}']" for name in ("title", "id", "summary")],
            sign="/*[local-name() = 'feed']",
        )


async def _read_hits(
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
    """Read the hits of an answer; raise `ToolError` if it is not a list of hits.

    `rows` and `fields` (title, address, excerpt) are keys of JSON, or else XPath. `sign` is the
    XPath of an element that each list of hits contains.
    """
    keys = {"rows": rows, "fields": fields, "sign": sign, "limit": limit}
    hits_found = await read_page(answer, "hits", fetcher.timeout, syntax=syntax, **keys)
    if hits_found is None:
        raise ToolError(
            f"{engine.name} did not answer with search results, but with {answer.content_type:.100}"
        )
    return [SearchHit(*row) for row in hits_found]


def search_engine(name: str | None = None) -> SearchEngine:
    """Return the engine with this name, with settings from the environment.

    `serper` needs `SERPER_API_KEY`, `searxng` needs `SEARXNG_URL`; `duckduckgo`, `bing` and `arxiv`
    need nothing. Without a name the first of these two whose variable is set is used, else
    `duckduckgo`. Raises `ConfigurationError` for an unknown name or a missing variable.
    """
    if name is None:
        variables = {"SERPER_API_KEY": "serper", "SEARXNG_URL": "searxng"}
        name = next((variables[each] for each in variables if os.environ.get(each)), "duckduckgo")
    engines: Mapping[str, Callable[[], SearchEngine]] = {
        "arxiv": ArxivEngine,
        "bing": BingEngine,
        "duckduckgo": DuckDuckGoEngine,
        "searxng": lambda: SearxngEngine(_require_variable("SEARXNG_URL")),
        "serper": lambda: SerperEngine(_require_variable("SERPER_API_KEY")),
    }
    if name not in engines:
        raise ConfigurationError(f"unknown search engine {name!r}; use one of {', '.join(engines)}")
    return engines[name]()


def _require_variable(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise ConfigurationError(f"set {name} in the environment to search with this engine")
