"""Run a test under one seed, or under many until an order of events makes it fail."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

from ..commander.private import running_loop, silence_unfinished
from ._deadlock import Deadlock
from ._loop import SeededLoop

__all__ = ["advance", "explore", "pause", "run_seeded"]

T = TypeVar("T")


def run_seeded(
    main: Callable[[], Coroutine[Any, Any, T]],
    seed: int | None = 0,
    *,
    patience: float = 10.0,
    turns: int | None = 1_000_000,
) -> T:
    """Run `main()` on a new `SeededLoop` and return its result.

        def test_transfer():
            run_seeded(transfer, seed=7)

    The same seed gives the same order of events. The module `random` is seeded too, and gets its
    earlier state back afterwards. The seed does not control real threads, files, or the iteration
    order of sets. With `seed=None` the order is asyncio's, and only the clock is virtual.

    Raises `Deadlock`, `TimeoutError` after `turns` turns of the loop, or the error of `main`. If
    `main` succeeds, it raises the first error of a callback or of an unawaited task, which asyncio
    would only log. At the end, remaining tasks are cancelled and awaited.
    """
    if running_loop() is not None:
        raise RuntimeError("a loop is running here: call this from a test that is no coroutine")
    loop = SeededLoop(seed, patience=patience, turns=turns)
    before = random.getstate()
    unhandled: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: unhandled.append(context))
    try:
        random.seed(seed or 0)
        try:
            result = loop.run_until_complete(main())
        finally:
            _wind_up(loop)
    finally:
        random.setstate(before)
        loop.close()
    if unhandled:
        raise unhandled[0].get("exception") or RuntimeError(unhandled[0]["message"])
    return result


def explore(
    main: Callable[[], Coroutine[Any, Any, T]],
    seeds: Iterable[int] = range(1000),
    *,
    patience: float = 10.0,
    turns: int | None = 1_000_000,
) -> list[T]:
    """Run `main()` once for each seed; return the results in the order of the seeds.

        def test_transfer():
            explore(transfer, range(200))

    The first error stops the loop over the seeds. It is raised unchanged, with a note that says how
    to replay it.
    """
    results: list[T] = []
    for seed in seeds:
        try:
            results.append(run_seeded(main, seed, patience=patience, turns=turns))
        except BaseException as error:
            name = getattr(main, "__qualname__", "main")
            error.add_note(f"seed {seed} found this; to replay it: run_seeded({name}, seed={seed})")
            raise
    return results


async def pause(at_most: int = 5) -> None:
    """Suspend for a number of turns that the seed chooses, from 0 to `at_most`.

    A test awaits this before a step whose timing should vary, such as a cancel.
    """
    for _ in range(_loop().choices.among(at_most + 1)):
        await asyncio.sleep(0)


def advance(seconds: float) -> None:
    """Advance the running loop's virtual clock at once, like a body that computes for this long."""
    _loop().clock.advance(seconds)


def _loop() -> SeededLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SeededLoop):
        raise RuntimeError("this works under run_seeded, explore and SeededLoop only")
    return loop


def _wind_up(loop: SeededLoop) -> None:
    """Cancel the remaining tasks of `loop` and wait for them to end."""
    loop.allow_more()
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    except (Deadlock, TimeoutError):
        for task in asyncio.all_tasks(loop):  # these ignore the cancel: silence the warning of each
            silence_unfinished(task)
