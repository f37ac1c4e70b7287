"""Tokens a second through the vLLM backend against the engine itself, in the same run.

    python benchmarks/vllm.py MODEL [--concurrent 1 4 16] [--tokens 64] [--rounds 9]

One engine serves both sides, in turn: directly, its outputs read in its own loop as a program
with `AsyncLLM` would; and through `backend.stream`, read in ours. Goal: at least 0.98.
Give `--concurrent 1 4 16 64 128` on a GPU.

    python benchmarks/vllm.py --pipe [--concurrent 1 4 16 128]

needs neither vLLM nor a quiet machine: CPU time for a token on its way from the engine's thread to
the reader, with an engine that only counts, beside the counting alone.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# This file's own folder comes first there, and `import vllm` would find this file.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).parent.resolve()]

from anabranch.backends import _vllm, _vllm_engine  # noqa: E402 - see above
from anabranch.backends._vllm import VLLMBackend  # noqa: E402
from anabranch.backends._vllm_engine import LoadedModel, VLLMEngine  # noqa: E402
from anabranch.messages import Delta, Message, Request  # noqa: E402

TOKENS = 200  # of a reply with --pipe
PROMPT = "Tell me about the history of bridges."


async def direct(llm: Any, tokens: int) -> int:
    """Read one reply of the engine as vLLM's own users do."""
    from vllm import SamplingParams
    from vllm.renderers.params import ChatParams
    from vllm.sampling_params import RequestOutputKind

    chat = [{"role": "user", "content": PROMPT}]
    _, (prompt,) = await llm.renderer.render_chat_async(
        [chat], ChatParams(chat_template_kwargs={"add_generation_prompt": True, "tokenize": False})
    )
    params = SamplingParams(
        temperature=0,
        max_tokens=tokens,
        ignore_eos=True,
        output_kind=RequestOutputKind.DELTA,
    )
    count = 0
    async for output in llm.generate(prompt, params, uuid.uuid4().hex):
        count += len(output.outputs[0].token_ids)
    return count


async def through(backend: VLLMBackend, tokens: int) -> int:
    """Read one reply of the backend."""
    options = {"temperature": 0, "max_tokens": tokens, "ignore_eos": True}
    count = 0
    async for delta in backend.stream(Request([Message(role="user", content=PROMPT)], (), options)):
        if delta.usage is not None:
            count = delta.usage.output_tokens
    return count


async def speed(reply: Callable[[], Awaitable[int]], concurrent: int) -> float:
    """Return the tokens per second of a number of simultaneous replies."""
    start = time.perf_counter()
    counts = await asyncio.gather(*(reply() for _ in range(concurrent)))
    return sum(counts) / (time.perf_counter() - start)


async def compare(backend: VLLMBackend, engine: VLLMEngine, concurrent: int, args: Any) -> str:
    """Run both sides in turn, the order changing; the ratio is the median of the rounds'."""
    assert engine.model is not None
    llm = engine.model.llm

    async def theirs() -> float:
        work = speed(lambda: direct(llm, args.tokens), concurrent)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, engine._loop))

    async def ours() -> float:
        return await speed(lambda: through(backend, args.tokens), concurrent)

    await theirs(), await ours()
    pairs: list[tuple[float, float]] = []
    for number in range(args.rounds):
        if number % 2:
            second, first = await ours(), await theirs()
        else:
            first, second = await theirs(), await ours()
        pairs.append((first, second))
    raw, mine = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(b / a for a, b in pairs)
    spread = f"{ratios[0]:.2f}-{ratios[-1]:.2f}"
    return f"{concurrent:10} {raw:12.1f} {mine:12.1f} {statistics.median(ratios):8.3f}  {spread}"


async def _counts(*_: Any) -> AsyncGenerator[Delta, None]:
    """Answer as an engine that takes no time: a token in each turn of its loop."""
    for _ in range(TOKENS):
        await asyncio.sleep(0)
        yield Delta(" word")
    yield Delta(finish_reason="length", done=True)


async def _cost(reply: Callable[[], AsyncGenerator[Delta, None]], concurrent: int) -> float:
    """Return the CPU time of a token in microseconds, the best of six rounds."""

    async def read() -> None:
        async for _ in reply():
            pass

    times: list[float] = []
    for _ in range(6):
        start = time.process_time()
        await asyncio.gather(*(read() for _ in range(concurrent)))
        times.append(time.process_time() - start)
    return min(times) / (concurrent * TOKENS) * 1e6


async def pipe(args: Any) -> None:
    """Print the cost of a token's way through the backend."""
    _vllm.find_spec, _vllm.answer = (lambda _: True), _counts  # type: ignore[assignment]
    loaded = LoadedModel(SimpleNamespace(shutdown=lambda: None), {}, "")
    _vllm_engine._load = lambda _: loaded
    request = Request([Message(role="user", content=PROMPT)])
    async with VLLMBackend("none") as backend:
        print("concurrent  counting alone  through anabranch   (CPU time, us a token)")
        for concurrent in args.concurrent:
            alone = await _cost(_counts, concurrent)
            whole = await _cost(lambda: backend.stream(request), concurrent)
            print(f"{concurrent:10} {alone:15.1f} {whole:18.1f}")


async def main(args: Any) -> None:
    engine = {"max_model_len": 1024, "enforce_eager": args.eager}
    if args.dtype:
        engine["dtype"] = args.dtype
    async with VLLMBackend(args.model, engine=engine) as backend:
        print(f"{args.tokens} tokens a reply, {args.rounds} rounds, tokens/s (median)")
        print("concurrent    vLLM alone    anabranch    ratio  lowest-highest")
        for concurrent in args.concurrent:
            print(await compare(backend, backend._running(), concurrent, args), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("model", nargs="?")
    parser.add_argument("--pipe", action="store_true", help="the way alone, without vLLM")
    parser.add_argument("--concurrent", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--dtype", default="", help="float32 is the fastest on some CPUs")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    options = parser.parse_args()
    if not (options.pipe or options.model):
        parser.error("which model?")
    asyncio.run((pipe if options.pipe else main)(options))
