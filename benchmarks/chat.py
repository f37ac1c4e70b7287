"""The chat in the terminal: the cost of drawing a streaming reply in Markdown.

    python benchmarks/chat.py            # about five minutes, on a quiet machine
    python benchmarks/chat.py --quick    # a reply of 5 KB: half a minute

CPU time for a reply of 20 KB with code and a table, in 100 deltas of three characters a second.
`blocks` is the chat's method: it prints each finished block once and draws the end of the growing
block twenty times a second. It is compared with rich's `Live` over the complete reply so far, drawn
as often, and drawn at each delta. One run measures all, one after the other.
"""

from __future__ import annotations

import argparse
import io
import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown

from anabranch.cli.chat._markdown import Block, MarkdownStream
from anabranch.cli.chat._markdown_view import MarkdownStyle, render, tail

WIDTH, HEIGHT = 80, 24
OPEN_LINES = 18  # of the window, for the open block
DELTAS_PER_DRAW = 5  # a hundred deltas a second, drawn twenty times

PART = """\
## How it is done

The **planner** splits the work into parts, and each of them runs by itself; see
[the manual](https://example.org/manual) for what `max_concurrency` does. A part that fails is
tried again, with a pause that grows, and gives up after *five* times.

- Each part has a name, so that what it gave can be found.
- A part may have parts:
  1. they are waited for,
  2. and cancelled with it.

| size | time | share |
|-----:|-----:|:------|
| 10 | 0.2 s | 1 % |
| 1,000 | 1.4 s | 7 % |
| 100,000 | 19.1 s | 92 % |

```python
async def plan(work: list[str], limit: int = 4) -> dict[str, int]:
    \"\"\"Run every part, at most `limit` at once.\"\"\"
    results: dict[str, int] = {}
    async with Commander(max_concurrency=limit) as commander:
        for name in work:
            # Each part is a job of its own.
            results[name] = await commander.run(Part(name, retries=5))
    return results
```

> What was measured on one machine says little about another.

"""


def reply(size: int) -> Sequence[str]:
    text = (PART * (size // len(PART) + 1))[:size]
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def blocks(deltas: Sequence[str], *, drawn: bool = True) -> None:
    stream, look, out = MarkdownStream(), MarkdownStyle(WIDTH), io.StringIO()

    def show(finished: Sequence[Block]) -> None:
        for block in finished:
            out.write(("" if block.joined else "\n") + render(block, look))

    for number, delta in enumerate(deltas):
        show(stream.feed(delta))
        if drawn and number % DELTAS_PER_DRAW == 0 and stream.dirty:
            stream.dirty = False
            out.write(tail(stream.block, look, OPEN_LINES))
    show(stream.end())


def live(deltas: Sequence[str], every: int = DELTAS_PER_DRAW) -> None:
    console = Console(file=io.StringIO(), width=WIDTH, height=HEIGHT, force_terminal=True)
    text = ""
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as shown:
        for number, delta in enumerate(deltas):
            text += delta
            if number % every == 0:
                shown.update(Markdown(text), refresh=True)
        shown.update(Markdown(text), refresh=True)


def cpu(way: Callable[[], None]) -> float:
    started = time.process_time()
    way()
    return time.process_time() - started


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="a reply of 5 KB")
    deltas = reply(5_000 if options.parse_args().quick else 20_000)
    blocks(deltas)  # so that all is imported and Pygments has its lexer
    ours = cpu(lambda: blocks(deltas))
    draws = len(deltas) // DELTAS_PER_DRAW
    print(f"{sum(map(len, deltas)):,} characters, {len(deltas):,} deltas, {draws:,} draws")
    print(f"{'blocks, 20 draws a second':36} {ours * 1000:9,.0f} ms      1")
    printed = cpu(lambda: blocks(deltas, drawn=False))
    print(f"{'blocks, the open one not drawn':36} {printed * 1000:9,.0f} ms  {printed / ours:5.2f}")
    for name, every in (("Live, 20 draws a second", DELTAS_PER_DRAW), ("Live, at each delta", 1)):
        theirs = cpu(lambda: live(deltas, every))
        print(f"{name:36} {theirs * 1000:9,.0f} ms  {theirs / ours:5.0f}")


if __name__ == "__main__":
    main()
