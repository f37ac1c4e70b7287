"""The search engines: what each is asked, and how its answer is read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

from ..commander._errors import ToolError
from ._extra import import_extra
from ._search import SearchEngine, SearchHit
from ._web_fetch import Fetched, Fetcher

__all__ = ["ArxivEngine", "BingEngine", "DuckDuckGoEngine", "SearxngEngine", "SerperEngine"]


class DuckDuckGoEngine(SearchEngine):
    """DuckDuckGo's page for browsers without scripts. It refuses those who ask too often."""

    name = "duckduckgo"

    def __init__(self, url: str = "https://html.duckduckgo.com/html/") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the results of its page."""
        page = await _parsed(await fetcher.ask("POST", self.url, data={"q": query}), self, "html")
        hits = [
            SearchHit(_text(link), _target(link.get("href", "")), _text(_first(box, SNIPPET)))
            for box in page.xpath("//div[contains(@class, 'web-result')]")
            for link in box.xpath(".//a[contains(@class, 'result__a')]")[:1]
        ]
        if not hits and not page.xpath("//*[contains(@class, 'no-results')]"):
            raise _nonsense(self, "no results, perhaps it refuses programs")
        return hits[:limit]


SNIPPET = ".//*[contains(@class, 'result__snippet')]"


class BingEngine(SearchEngine):
    """Bing's results as a feed; its paid interface was closed in 2025."""

    name = "bing"

    def __init__(self, url: str = "https://www.bing.com/search") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the items of the feed."""
        params = {"q": query, "format": "rss"}
        feed = await _parsed(await fetcher.ask("GET", self.url, params=params), self, "xml")
        if feed.tag != "rss":
            raise _nonsense(self, "no feed")
        return [
            SearchHit(*(_text(_first(item, name)) for name in ("title", "link", "description")))
            for item in feed.iter("item")
        ][:limit]


class SearxngEngine(SearchEngine):
    """A SearXNG server, which must allow the format `json`."""

    name = "searxng"

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/") + "/search"

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read its JSON."""
        params = {"q": query, "format": "json"}
        found = _json(await fetcher.ask("GET", self.url, params=params), self)
        return _hits(self, found, "results", ("title", "url", "content"), limit)


class SerperEngine(SearchEngine):
    """Google's results by way of serper.dev."""

    name = "serper"

    def __init__(self, key: str, url: str = "https://google.serper.dev/search") -> None:
        self._key = key
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read its JSON."""
        answer = await fetcher.ask(
            "POST", self.url, json={"q": query, "num": limit}, headers={"X-API-KEY": self._key}
        )
        found = _json(answer, self)
        return _hits(self, found, "organic", ("title", "link", "snippet"), limit)


class ArxivEngine(SearchEngine):
    """Papers on arXiv."""

    name = "arxiv"

    def __init__(self, url: str = "https://export.arxiv.org/api/query") -> None:
        self.url = url

    async def search(self, query: str, limit: int, fetcher: Fetcher) -> list[SearchHit]:
        """Read the entries of its feed."""
        params = {"search_query": f"all:{query}", "max_results": str(limit)}
        feed = await _parsed(await fetcher.ask("GET", self.url, params=params), self, "xml")
        if not feed.tag.endswith("}feed"):
            raise _nonsense(self, "no feed")
        return [
            SearchHit(
                *(_text(_first(entry, f"{{*}}{name}")) for name in ("title", "id", "summary"))
            )
            for entry in feed.findall("{*}entry")
        ][:limit]


async def _parsed(answer: Fetched, engine: SearchEngine, kind: str) -> Any:
    """Parse HTML or XML; nothing in it can make the parser fetch or expand anything."""
    etree: Any = await import_extra("lxml.etree", "the web tools", "web")
    options = {"no_network": True, "recover": True, "huge_tree": False}
    if kind == "html":
        parser = etree.HTMLParser(encoding=answer.charset or "utf-8", **options)
    else:
        parser = etree.XMLParser(resolve_entities=False, load_dtd=False, **options)
    try:
        root = etree.fromstring(answer.body, parser)
    except etree.LxmlError as error:
        raise _nonsense(engine, str(error)) from None
    if root is None:
        raise _nonsense(engine, "nothing that can be read")
    return root


def _json(answer: Fetched, engine: SearchEngine) -> Any:
    try:
        return json.loads(answer.text)
    except (ValueError, RecursionError) as error:
        raise _nonsense(engine, f"no JSON ({error})") from None


def _hits(
    engine: SearchEngine, found: Any, key: str, names: Iterable[str], limit: int
) -> list[SearchHit]:
    results = found.get(key) if isinstance(found, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    if not isinstance(results, list):
        raise _nonsense(engine, f"no list of {key!r}")
    made = [
        SearchHit(*(str(cast("Mapping[str, Any]", one).get(name) or "") for name in names))
        for one in cast("list[Any]", results)
        if isinstance(one, dict)
    ]
    return [hit for hit in made if hit.url][:limit]


def _target(href: str) -> str:
    """Return where a link of DuckDuckGo's leads in the end."""
    return parse_qs(urlsplit(href).query).get("uddg", [href])[0]


def _first(element: Any, path: str) -> Any:
    found = element.xpath(path) if path.startswith(".//*[") else element.findall(path)
    return found[0] if found else None


def _text(element: Any) -> str:
    return "" if element is None else " ".join("".join(element.itertext()).split())


def _nonsense(engine: SearchEngine, what: str) -> ToolError:
    return ToolError(f"{engine.name} answered something else than results: {what:.200}")
