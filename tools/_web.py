"""`WebBrowser`: a model searches the web and reads pages as text."""

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
from ._web_fetch import Fetcher
from ._web_text import read_page
from .toolkits import Toolkit

__all__ = ["WebBrowser"]

S = TypeVar("S", bound=Sequence[object])

SNIPPET = 300
REMEMBERED_SEARCHES = 2000  # hits
REMEMBERED_TEXT = 20_000_000  # characters
HTML = ("text/html", "application/xhtml+xml")
TEXT = ("application/json", "application/xml", "application/javascript", "application/x-yaml")


class WebBrowser(Toolkit):
    """The tools `web_search` and `web_read`.

    `engine` is a `SearchEngine` or the name of one (see `search_engine`; by default what the
    environment offers). A search asks for up to 8 queries at once and gives `results` hits for
    each. A page is read as text, `max_text` characters at a time. Both are remembered for
    `cache_for` seconds.

    Each request, and the reading of its page, is limited by `timeout` seconds and `max_bytes`.
    Addresses that are not of the open internet are refused, whatever name or redirect leads there,
    unless `allow_private` is True or names their networks. The engine itself is the application's
    choice and may be anywhere.
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
        self.engine = engine if isinstance(engine, SearchEngine) else search_engine(engine)
        self.results = results
        self.max_text = max_text
        self.approve = approve
        self._fetcher = Fetcher(timeout=timeout, max_bytes=max_bytes, allow_private=allow_private)
        self._found: _Cache[list[SearchHit]] = _Cache(cache_for, REMEMBERED_SEARCHES)
        self._pages: _Cache[str] = _Cache(cache_for, REMEMBERED_TEXT)

    @tool(name="web_search", read_only=True)
    async def search(
        self, queries: Annotated[list[str], Field(min_length=1, max_length=8)] | str
    ) -> str:
        """Search the web; the result is a list of titles, addresses and excerpts.

        Args:
            queries: What to look for: one query, or several that are asked at once.
        """
        asked = list(dict.fromkeys([queries] if isinstance(queries, str) else queries))
        answers = await asyncio.gather(*map(self._search, asked))
        if all(isinstance(answer, ToolError) for answer in answers):
            raise ToolError("; ".join(dict.fromkeys(map(str, answers))))
        seen: set[str] = set()
        lists: list[str] = []
        for query, answer in zip(asked, answers, strict=True):
            if isinstance(answer, ToolError):
                lists.append(f"{query}: {answer}")
                continue
            lines = [f"{query}:" if answer else f"{query}: nothing found"]
            new = [hit for hit in answer if hit.url not in seen]
            seen.update(hit.url for hit in new)
            for number, hit in enumerate(new, 1):
                lines += [f"{number}. {hit.title}", f"   {hit.url}"]
                if hit.snippet:
                    more = "..." if len(hit.snippet) > SNIPPET else ""
                    lines.append(f"   {hit.snippet[:SNIPPET]}{more}")
            lists.append("\n".join(lines))
        return "\n\n".join(lists)

    async def _search(self, query: str) -> list[SearchHit] | ToolError:
        async def ask() -> list[SearchHit]:
            return await self.engine.search(query, self.results, self._fetcher)

        try:
            return await self._found.get(query, ask)
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
                url, accept=lambda kind: kind.startswith("text/") or kind in HTML + TEXT
            )
            wanted = "article" if page.content_type in HTML else "text"
            text = await read_page(page, wanted, self._fetcher.timeout)
            if not text.strip():
                raise ToolError("the page holds no text that can be read without its scripts")
            cut = "\n[the page is longer, but too large to read whole]" if page.cut else ""
            return text + cut

        text = await self._pages.get(url, fetch)
        piece = text[start : start + self.max_text]
        if not piece:
            raise ToolError(f"the page has only {len(text)} characters")
        end = start + len(piece)
        more = f"\n[cut at {end} of {len(text)} characters: go on with start={end}]"
        return piece + (more if end < len(text) else "")


class _Cache(Generic[S]):
    """Remembers what was made for a key, for a time, and of all that the last `size` items."""

    def __init__(self, seconds: float, size: int) -> None:
        self._seconds = seconds
        self._size = size
        self._held: OrderedDict[str, tuple[float, S]] = OrderedDict()

    async def get(self, key: str, make: Callable[[], Awaitable[S]]) -> S:
        """Return what is remembered, or make it; a failure is not remembered."""
        held = self._held.get(key)
        if held is not None and time.monotonic() < held[0]:
            return held[1]
        value = await make()
        self._held[key] = (time.monotonic() + self._seconds, value)
        self._held.move_to_end(key)
        size = sum(1 + len(each) for _, each in self._held.values())
        while size > self._size and self._held:
            _, (_, oldest) = self._held.popitem(last=False)
            size -= 1 + len(oldest)
        return value
