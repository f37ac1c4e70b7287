"""A nightly report of news feeds: 20 summaries of 30 are enough, and a kill loses none of them.

    pip install "anabranch[http]"
    python examples/nightly_report.py feeds.txt          # one address in each line

Press Ctrl-C, or kill the process, and run the same command again. It reads only the feeds, and asks
the model only for the summaries, that are not yet in `report.db`.
"""

from __future__ import annotations

import argparse
import os
import sys
from datetime import date
from pathlib import Path
from typing import Literal
from urllib.request import urlopen

from pydantic import BaseModel

from anabranch import Agent, AnabranchError, BackendError, Limits, Node, Retry, run, settle
from anabranch.store import Durable


class Summary(BaseModel):
    title: str
    points: list[str]
    importance: Literal["high", "normal", "low"]


MODEL = os.environ.get("ANABRANCH_MODEL", "openai:gpt-5-mini")
editor = Agent(MODEL, "Summarize a news feed in at most three points.", output_type=Summary)


def read(url: str) -> str:
    with urlopen(url, timeout=20) as reply:
        return reply.read(100_000).decode(errors="replace")


class Feed(Durable[Summary], retry=Retry(attempts=3, on=(OSError, BackendError)), timeout=120):
    url: str

    async def task(self) -> Summary:
        text = await self.durable.step(read, self.url)
        return (await editor(text)).output


class Report(Durable[str]):
    urls: list[str]

    async def task(self) -> str:
        done: list[Node[Summary]] = []

        def show(feed: Node[Summary]) -> None:
            done.append(feed)
            print(f"{len(done)}/{len(self.urls)} {feed.state}", file=sys.stderr)

        feeds = [Feed(url).at_done(show) for url in self.urls]
        enough = len(feeds) * 2 // 3
        summaries = await settle(*feeds, at_least=enough, at_once=5)
        found = [each for each in summaries if isinstance(each, Summary)]
        found.sort(key=lambda each: ["high", "normal", "low"].index(each.importance))
        missing = [
            f"- {feed.url}: {each!r}"
            for feed, each in zip(feeds, summaries, strict=True)
            if isinstance(each, Exception)
        ]
        parts = [
            "\n".join([f"## {each.title}", *(f"- {p}" for p in each.points)]) for each in found
        ]
        return "\n\n".join([*parts, *(["## Not read", *missing] if missing else [])])


def main() -> None:
    parser = argparse.ArgumentParser(description="Summarize feeds. A kill loses no summary.")
    parser.add_argument("feeds", type=Path, help="a file with one address in each line")
    parser.add_argument("--budget", type=int, default=200_000, help="tokens (%(default)s)")
    options = parser.parse_args()
    report = Report(options.feeds.read_text(encoding="utf-8").split())
    limits, name = Limits(budget=options.budget), f"report-{date.today()}"
    try:
        print(run(report, journal="report.db", run_id=name, limits=limits, timeout=3600))
    except (AnabranchError, TimeoutError) as error:
        sys.exit(f"{error}\nTo continue, run the same command again.")


if __name__ == "__main__":
    main()
