"""Make the pictures of seeing.md and serving.md again, from small programs.

    python docs/pictures.py            # all
    python docs/pictures.py page-light

No model is called: the replies are scripted. To add a picture, add a function to `PICTURES`. It
gets the folder of recordings; `recording(...)` returns one.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from anabranch import Agent, Commander, Job, Message, Retry, ToolCall, settle, tool
from anabranch.backends import Price
from anabranch.messages import Usage
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend
from anabranch.tracing import read, record

HERE = Path(__file__).resolve().parent / "pictures"
PRICES = {"small-1": Price(0.25, 2.0, 0.025), "large-1": Price(1.25, 10.0, 0.125)}
MOST = 150_000  # bytes of a picture


# --- the programs


class ServiceDown(Exception):
    """The error of a failing tool."""


@tool
async def search(query: str) -> str:
    """Search the archive."""
    await asyncio.sleep(0.02 + len(query) % 7 * 0.015)
    if "delta" in query:
        raise ServiceDown(f"the archive does not answer: {query}")
    return f"Four passages about {query}."


@tool
async def read_page(address: str) -> str:
    """Read a page."""
    await asyncio.sleep(0.05)
    return f"The page at {address}."


def call(name: str, **arguments: Any) -> Message:
    """Return a reply that calls a tool."""
    spent = Usage(input_tokens=900, output_tokens=40, cached_input_tokens=600)
    return Message(
        role="assistant",
        tool_calls=[ToolCall(id=f"call-{name}", name=name, arguments=arguments)],
        usage=spent,
    )


def say(text: str, tokens: int = 400) -> Message:
    """Return a reply in words."""
    spent = Usage(
        input_tokens=1200 + 3 * tokens, output_tokens=tokens, reasoning_tokens=tokens // 4
    )
    return Message(role="assistant", content=text, usage=spent)


def researcher(name: str, topic: str) -> Agent:
    """Return an agent that searches, reads and answers."""
    backend = ScriptedBackend(
        call("search", query=topic),
        call("read_page", address=f"archive/{topic.replace(' ', '-')}"),
        say(f"What is known of {topic}.", 300 + 40 * len(topic)),
        delay=0.008,
        size=6,
        model="small-1",
    )
    return Agent(backend, "You look things up.", name=name, tools=[search, read_page])


class Check(Job[int]):
    """Checks one claim."""

    claim: int
    where: list[int]

    async def task(self) -> int:
        await asyncio.sleep(0.01 + self.claim % 11 * 0.006)
        if self.claim == 57:
            raise ValueError(f"claim {self.claim} contradicts claim 12")
        if self.claim % 40 == 13 and self.claim not in self.where:
            self.where.append(self.claim)
            raise ConnectionError("reset by peer")
        return self.claim


class Verify(Job[int]):
    """Checks many claims at once."""

    policy = "isolate"
    claims: int

    async def task(self) -> int:
        tried: list[int] = []
        retry = Retry(attempts=3, on=ConnectionError, backoff=0.05)
        for claim in range(self.claims):
            self.put_job(Check(claim, tried), retry=retry)
        time.sleep(0.13)  # noqa: ASYNC251 - what blocks the loop is to be seen
        return self.claims


class Research(Job[str]):
    """Asks a group, has its claims checked, and writes."""

    policy = "isolate"
    topics: list[str]
    claims: int

    async def task(self) -> str:
        planner = Agent(
            ScriptedBackend(say("Ask each of them.", 220), delay=0.012, model="large-1"),
            "You plan.",
            name="planner",
        )
        await planner("How do rivers branch?")
        names = ["ada", "ben", "cleo", "dan", "eve", "finn"]
        group = zip(names, self.topics, strict=False)
        await settle(
            *(researcher(name, topic).call(f"Tell me of {topic}.") for name, topic in group)
        )
        await self.put_job(Verify(self.claims))
        writer = Agent(
            ScriptedBackend(
                say("Rivers branch where they slow down. " * 8, 900), delay=0.01, model="large-1"
            ),
            "You write.",
            name="writer",
        )
        return (await writer("Write the report.")).content


class Leaf(Job[int]):
    """A job with almost no work."""

    number: int

    async def task(self) -> int:
        await asyncio.sleep(0.05 + self.number % 97 / 250)
        if self.number == 7_001:
            raise ValueError("the 7,001st")
        return self.number


class Crowd(Job[int]):
    """A job with very many children."""

    policy = "isolate"
    size: int

    async def task(self) -> int:
        for number in range(self.size):
            self.put_job(Leaf(number))
            if number % 100 == 0:
                await asyncio.sleep(0)
        return self.size


TOPICS = [
    "meanders",
    "anabranches",
    "the delta of the Lena",
    "sediment",
    "ice jams",
    "braided rivers",
]


async def run_and_record(job: Job[Any], file: Path, *, content: bool = False) -> None:
    """Run a job to its end and record it."""
    async with Commander() as commander, record(commander, file, content=content, prices=PRICES):
        commander.put_job(job)


RUNS: dict[str, Callable[[Path], Any]] = {
    "research": lambda file: run_and_record(Research(TOPICS, 440), file, content=True),
    "small": lambda file: run_and_record(Research(TOPICS[:1], 2), file, content=True),
    "crowd": lambda file: run_and_record(Crowd(9_998), file),
}


def recording(folder: Path, name: str) -> Path:
    """Return the recording of one of `RUNS`. The first call makes it."""
    file = folder / f"{name}.jsonl"
    if not file.exists():
        asyncio.run(RUNS[name](file))
    return file


# --- the pictures of the page


def chromium() -> str:
    """Return the path of a Chromium."""
    for name in "chromium", "chromium-browser", "google-chrome":
        if found := shutil.which(name):
            return found
    raise SystemExit("no Chromium is here: install one")


@asynccontextmanager
async def browser() -> AsyncGenerator[Any]:
    """Open a headless Chromium."""
    from playwright.async_api import async_playwright

    async with async_playwright() as playwright:
        yield await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])


async def look(
    page_file: Path, picture: Path, size: tuple[int, int], scheme: Any, *keys: str
) -> None:
    """Open a page, press keys and save a screenshot."""
    async with browser() as opened:
        width, height = size
        context = await opened.new_context(
            viewport={"width": width, "height": height}, color_scheme=scheme, offline=True
        )
        page = await context.new_page()
        await page.goto(page_file.as_uri())
        await page.wait_for_selector("html[data-ready]")
        for key in keys:
            await page.keyboard.press(key)
        await page.evaluate(
            "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
        await page.screenshot(path=picture)


def page(
    folder: Path,
    picture: Path,
    run: str,
    scheme: str,
    keys: str = "",
    *,
    width: int = 1280,
    height: int = 800,
) -> None:
    """Save a picture of a recording's page, after some keys."""
    file = folder / f"{run}.html"
    read(recording(folder, run)).html(file)
    asyncio.run(look(file, picture, (width, height), scheme, *keys.split()))


# --- the picture of a server's page


def librarian() -> Agent:
    """Return an agent that searches, shows code, and asks before it reserves."""
    program = "```python\nfor book in shelf('rivers'):\n    print(book.title, book.due)\n```"
    backend = ScriptedBackend(
        call("search", query="rivers that branch"),
        say(f"There are **four passages**. This lists what is on the shelf:\n{program}", 180),
        call("reserve", title="Rivers and Their Branches"),
        say("It is reserved until Friday."),
        delay=0.01,
    )
    return Agent(backend, "You help visitors.", name="librarian", tools=[search, reserve])


@tool(approve=True)
async def reserve(title: str) -> str:
    """Reserve a book."""
    return f"{title} is reserved."


async def talk(picture: Path) -> None:
    """Talk to a server on its page until it asks for approval, and save a screenshot."""
    import socket

    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(serve(librarian()), log_level="warning", timeout_graceful_shutdown=1)
    )
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    async with browser() as opened:
        page = await opened.new_page(viewport={"width": 1100, "height": 640})
        await page.goto(f"http://127.0.0.1:{listening.getsockname()[1]}/")
        await page.fill("#words", "What do you have on rivers that branch?")
        await page.press("#words", "Enter")
        await page.wait_for_selector(".spent")
        await page.fill("#words", "Please reserve the first one for me.")
        await page.press("#words", "Enter")
        await page.wait_for_selector(".ask button")
        await page.screenshot(path=picture)
    server.should_exit = True
    await serving


def server_page(folder: Path, picture: Path) -> None:
    """Save a picture of a server's page."""
    asyncio.run(talk(picture))


PICTURES: dict[str, Callable[[Path, Path], None]] = {
    "page-light": partial(page, run="research", scheme="light", keys="f"),
    "page-dark": partial(page, run="research", scheme="dark", keys="3"),
    "page-crowd": partial(page, run="crowd", scheme="light", keys="4"),
    "page-narrow": partial(page, run="research", scheme="light", keys="f", width=400, height=800),
    "server-page": server_page,
}


def shrink(picture: Path) -> int:
    """Reduce a picture to 256 colours, without a visible difference; return its size in bytes."""
    from PIL import Image

    with Image.open(picture) as whole:
        few = whole.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    few.save(picture, optimize=True)
    return picture.stat().st_size


def main(names: list[str]) -> None:
    """Make the pictures of these names, or all."""
    HERE.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or PICTURES:
            picture = HERE / f"{name}.png"
            PICTURES[name](Path(folder), picture)
            size = picture.stat().st_size
            if size > MOST:
                size = shrink(picture)
            print(f"{picture.name}: {size:,} bytes" + (": TOO LARGE" if size > MOST else ""))


if __name__ == "__main__":
    main(sys.argv[1:])
