"""The page of `anabranch serve`, open in a real Chromium, and agents and jobs to serve."""

from __future__ import annotations

import asyncio
import shutil
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import pytest

from anabranch import Agent, Job, Message, ToolCall, tool
from anabranch.messages import Request
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend, deltas
from support.threaded_server import ThreadedServer, serve_in_thread

__all__ = [
    "CHROMIUM_MARKS",
    "Crowd",
    "Gates",
    "OpenPage",
    "ServedPage",
    "agent",
    "calls",
    "chromium",
    "open_pages",
]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
PATIENCE = 20_000  # milliseconds

CHROMIUM_MARKS = [
    pytest.mark.xdist_group("chromium"),  # one worker runs it
    pytest.mark.skipif(
        CHROMIUM is None, reason="NO CHROMIUM on the path: the page was not opened by anything"
    ),
]


# --- agents and jobs to serve


@tool(read_only=True)
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


@tool(approve=True)
def buy(item: str) -> str:
    """Buy something."""
    return f"bought {item}"


def calls(*items: str, name: str = "buy", field: str = "item") -> Message:
    """Return a reply that calls a tool once for each item."""
    made = [
        ToolCall(id=f"c{place}", name=name, arguments={field: item}, index=place)
        for place, item in enumerate(items)
    ]
    return Message(role="assistant", content=None, tool_calls=made)


class Gates:
    """Replies that wait, in the server's loop, until the test opens the gate."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.asked = threading.Event()

    def wait(self, *texts: str) -> Callable[[Request], list[Any]]:
        """Return a reply of several texts, with a gate between each two."""

        def reply(request: Request) -> list[Any]:
            self.asked.set()
            steps: list[Any] = []
            for place, text in enumerate(texts):
                pieces = deltas(text)
                ends = pieces if place == len(texts) - 1 else pieces[:-1]
                steps += [*([self.gate] if place else []), *ends]
            return steps

        return reply


def agent(*replies: Any, **options: Any) -> Agent:
    """Return an agent with both tools and a scripted model."""
    return Agent(
        ScriptedBackend(*replies, **options), "Be short.", tools=[weather, buy], name="ann"
    )


class Leaf(Job[int]):
    """A job that returns its number; number 1,500 fails."""

    number: int

    async def task(self) -> int:
        if self.number == 1500:
            raise ValueError("the 1,500th")
        return self.number


class Crowd(Job[str]):
    """A job with 2,000 children."""

    policy = "isolate"
    question: str

    async def task(self) -> str:
        for number in range(2000):
            self.put_job(Leaf(number))
        return "all were put"


# --- the browser


@contextmanager
def chromium() -> Generator[Any]:
    """Open a Chromium for the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class ServedPage:
    """An open page, and its errors."""

    def __init__(self, page: Any, served: ThreadedServer) -> None:
        self.page = page
        self.served = served
        self.wrong: list[str] = []
        self.expected: list[str] = []  # parts of messages that are not wrong
        page.on("pageerror", lambda error: self.wrong.append(str(error)))
        page.on("console", lambda said: self.wrong.append(said.text))

    def ask(self, words: str) -> None:
        """Write a question and press Enter."""
        self.page.fill("#message", words)
        self.page.press("#message", "Enter")

    def end(self, count: int = 1) -> str:
        """Wait until `count` answers have ended; return the usage or error line of the last."""
        note = self.page.locator("#conversation > .usage, #conversation > .error").nth(count - 1)
        note.wait_for()
        return str(note.inner_text())

    @property
    def said(self) -> list[str]:
        """The texts of the agent's replies."""
        found: list[str] = self.page.locator(".message.assistant").all_inner_texts()
        return found

    def see(self, text: str) -> None:
        """Wait until a text is there."""
        self.page.get_by_text(text).first.wait_for()

    @property
    def focus(self) -> str:
        """The id, or else the text, of the focused element."""
        found: str = self.page.evaluate(
            "() => document.activeElement.id || document.activeElement.textContent"
        )
        return found


OpenPage = Callable[..., ServedPage]


@contextmanager
def open_pages(browser: Any) -> Generator[OpenPage]:
    """Give a function that serves agents and jobs and opens their page.

    At the end of the block, unexpected errors of a page fail the test.
    """
    opened: list[tuple[ServedPage, Any, Any]] = []

    def talk(*things: Any, width: int = 1100, scheme: str = "light", **options: Any) -> ServedPage:
        server = serve_in_thread(serve(*things, **options))
        served = server.__enter__()
        context = browser.new_context(viewport={"width": width, "height": 700}, color_scheme=scheme)
        context.set_default_timeout(PATIENCE)
        made = ServedPage(context.new_page(), served)
        opened.append((made, context, server))
        made.page.goto(served.url)
        return made

    yield talk
    for _, context, server in opened:
        context.close()
        server.__exit__(None, None, None)
    wrong = [
        text
        for made, _, _ in opened
        for text in made.wrong
        if not any(part in text for part in made.expected)
    ]
    assert wrong == []
