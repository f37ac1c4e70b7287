"""Web search: one interface, and the engine that the environment offers."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..commander.errors import ConfigurationError
from ._web_fetch import Fetcher

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


def search_engine(name: str | None = None) -> SearchEngine:
    """Return the engine of this name, set up from the environment.

    `serper` needs `SERPER_API_KEY`, `searxng` needs `SEARXNG_URL`; `duckduckgo`, `bing` and
    `arxiv` need nothing. Without a name it is the first of the two that has what it needs, else
    `duckduckgo`. Raises `ConfigurationError` for an unknown name or a missing setting.
    """
    from . import _search_engines as engines

    if name is None:
        wants = {"SERPER_API_KEY": "serper", "SEARXNG_URL": "searxng"}
        name = next((wants[each] for each in wants if os.environ.get(each)), "duckduckgo")
    made = {
        "arxiv": lambda: engines.ArxivEngine(),
        "bing": lambda: engines.BingEngine(),
        "duckduckgo": lambda: engines.DuckDuckGoEngine(),
        "searxng": lambda: engines.SearxngEngine(_setting("SEARXNG_URL")),
        "serper": lambda: engines.SerperEngine(_setting("SERPER_API_KEY")),
    }
    if name not in made:
        raise ConfigurationError(f"search engine {name!r}: there are {', '.join(made)}")
    return made[name]()


def _setting(name: str) -> str:
    if value := os.environ.get(name):
        return value
    raise ConfigurationError(f"set {name} in the environment to search with this engine")
