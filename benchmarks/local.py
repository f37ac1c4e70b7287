"""The first token of the small model: cold, warmed, and in later turns, each in one process.

    python benchmarks/local.py

Prints a line for each question of a short conversation with three tools: seconds and CPU seconds to
the first token, tokens read, cached tokens, and the longest delay of a timer of 10 ms. The variants
run one after the other, each in a separate process. Compare figures of one run only.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import time
from contextlib import aclosing, suppress

from anabranch.backends import connect
from anabranch.messages import Message, Request, Usage
from anabranch.tools.examples import EXAMPLE_TOOLS

TALK = (
    "What is the weather in Paris?",
    "What is the capital of France?",
    "What is the capital of Italy?",
    "What time is it in Rome?",
)
TICK = 0.01


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


async def tick(late: list[float]) -> None:
    """Record the delay of each tick."""
    while True:
        began = time.perf_counter()
        await asyncio.sleep(TICK)
        late.append(time.perf_counter() - began - TICK)


async def talk(*, warmed: bool) -> None:
    late: list[float] = [0.0]
    ticking = asyncio.create_task(tick(late))
    tools = EXAMPLE_TOOLS[:3]
    backend = connect("local")
    messages: list[Message] = []
    if warmed:
        began, used = time.perf_counter(), cpu()
        await backend.warm(Request([], tools))
        print(
            f"  warming {time.perf_counter() - began:6.2f} s, CPU {cpu() - used:6.2f} s,"
            f" late {max(late) * 1e3:.0f} ms"
        )
    for question in TALK:
        messages.append(Message(role="user", content=question))
        late[:] = [0.0]
        began, used = time.perf_counter(), cpu()
        first, usage, text = "", Usage(), ""
        async with aclosing(backend.stream(Request(messages, tools))) as deltas:
            async for delta in deltas:
                first = first or (
                    f"{time.perf_counter() - began:6.2f} s, CPU {cpu() - used:6.2f} s,"
                    f" late {max(late) * 1e3:3.0f} ms"
                )
                usage, text = delta.usage or usage, text + delta.text
        print(
            f"  first token {first}, {usage.input_tokens} tokens"
            f" ({usage.cached_input_tokens} cached): {question}"
        )
        messages.append(Message(role="assistant", content=text or "Done."))
    ticking.cancel()
    with suppress(asyncio.CancelledError):
        await ticking
    await backend.aclose()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        asyncio.run(talk(warmed=sys.argv[1] == "warmed"))
    else:
        for way in ("cold", "warmed"):
            print(way, flush=True)
            subprocess.run([sys.executable, __file__, way], check=True)
