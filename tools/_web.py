"""`WebBrowser`: tools to search the web and to read pages as text."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Generic, TypeVar

from pydantic import Field

from ..commander import ToolError
from ._search import SearchEngine, SearchHit, search_engine
from ._tool import tool
from ._web_fetch import Fetcher, read_page
from .toolkits import Toolkit

__all__ = ["WebBrowser"]

S = TypeVar("S", bound=Sequence[object])

MAX_SNIPPET_CHARS = 300
MAX_CACHED_HITS = 2000
MAX_CACHED_CHARS = 20_000_000
HTML_TYPES = ("text/html", "application/xhtml+xml")
TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "application/x-yaml")


class WebBrowser(Toolkit):
    """The tools `web_search` and `web_read`.

        agent = Agent(backend, tools=[WebBrowser("duckduckgo")])

    `engine` is a `SearchEngine` or the name of one (default: see `search_engine`). A search sends
    up to 8 queries at once and returns `results` hits for each. A page is returned as text,
    `max_text` characters at a time. Hits and pages are cached for `cache_for` seconds.

    Each request, and the reading of its page, may take `timeout` seconds and `max_bytes` bytes.
    Addresses outside of the public internet are refused, also if a name or a redirect leads there,
    unless `allow_private` is True or lists their networks. The engine's own server may have one.
    """

    def __init__(
        self,
        engine: SearchEngine | str | None = None,
        *,
        results: int = 5,
        timeout: float = 20,
        max_bytes: int = 2 * 2**20,
        max_text: int = 20_000,
        cache_for: float = 300,
        allow_private: bool | Sequence[str] = False,
        approve: bool = False,
    ) -> None:
        self.engine: SearchEngine = (
            engine if isinstance(engine, SearchEngine) else search_engine(engine)
        )
        self.results = results
        self.max_text = max_text
        self.approve = approve
        self._fetcher = Fetcher(timeout=timeout, max_bytes=max_bytes, allow_private=allow_private)
        self._hit_cache: _Cache[list[SearchHit]] = _Cache(cache_for, MAX_CACHED_HITS)
        self._page_cache: _Cache[str] = _Cache(cache_for, MAX_CACHED_CHARS)

    @tool(name="web_search", read_only=True)
    async def search(
        self, queries: Annotated[list[str], Field(min_length=1, max_length=8)] | str
    ) -> str:
        """Search the web; the result is a list of titles, addresses and excerpts.

        Args:
            queries: What to look for: one query, or several that are asked at once.
        """
        unique_queries = list(dict.fromkeys([queries] if isinstance(queries, str) else queries))
        answers = await asyncio.gather(*map(self._search, unique_queries))
        if all(isinstance(answer, ToolError) for answer in answers):
            raise ToolError("; ".join(dict.fromkeys(map(str, answers))))
        shown: set[str] = set()
        lists: list[str] = []
        for query, answer in zip(unique_queries, answers, strict=True):
            if isinstance(answer, ToolError):
                lists.append(f"{query}: {answer}")
                continue
            lines = [f"{query}:" if answer else f"{query}: nothing found"]
            new = [hit for hit in answer if hit.url not in shown]
            shown.update(hit.url for hit in new)
            for number, hit in enumerate(new, 1):
                lines += [f"{number}. {hit.title}", f"   {hit.url}"]
                if hit.snippet:
                    more = "..." if len(hit.snippet) > MAX_SNIPPET_CHARS else ""
                    lines.append(f"   {hit.snippet[:MAX_SNIPPET_CHARS]}{more}")
            lists.append("\n".join(lines))
        return "\n\n".join(lists)

    async def _search(self, query: str) -> list[SearchHit] | ToolError:
        async def ask() -> list[SearchHit]:
            return await self.engine.search(query, self.results, self._fetcher)

        try:
            return await self._hit_cache.get(query, ask)
        except ToolError as error:
            return error

    @tool(name="web_read", read_only=True)
    async def read(self, url: str, start: Annotated[int, Field(ge=0)] = 0) -> str:
        """Read a web page as text.

        Args:
            url: The page's address.
            start: The character to start from, to go on with a page that was cut.
        """

        async def fetch() -> str:
            page = await self._fetcher.get(
                url, accept=lambda kind: kind.startswith("text/") or kind in HTML_TYPES + TEXT_TYPES
            )
            wanted = "article" if page.content_type in HTML_TYPES else "text"
            text = await read_page(page, wanted, self._fetcher.timeout)
            if not text.strip():
                raise ToolError("the page has no text without its scripts")
            cut = "\n[the page is longer, but too large to read completely]" if page.cut else ""
            return text + cut

        text = await self._page_cache.get(url, fetch)
        piece = text[start : start + self.max_text]
        if not piece:
            raise ToolError(f"start must be less than {len(text)}, the characters of the page")
        end = start + len(piece)
        more = f"\n[cut at {end} of {len(text)} characters: go on with start={end}]"
        return piece + (more if end < len(text) else "")


class _Cache(Generic[S]):
    """Caches values by key for some seconds; drops the oldest above `size` items in all values."""

    def __init__(self, seconds: float, size: int) -> None:
        self._seconds = seconds
        self._size = size
        self._entries: OrderedDict[str, tuple[float, S]] = OrderedDict()

    async def get(self, key: str, make: Callable[[], Awaitable[S]]) -> S:
        """Return the cached value, or make it. Failures are not cached."""
        entry = self._entries.get(key)
        if entry is not None and time.monotonic() < entry[0]:
            return entry[1]
        value = await make()
        self._entries[key] = (time.monotonic() + self._seconds, value)
        self._entries.move_to_end(key)
        size = sum(1 + len(each) for _, each in self._entries.values())
        while size > self._size and self._entries:
            _, (_, oldest) = self._entries.popitem(last=False)
            size -= 1 + len(oldest)
        return value
