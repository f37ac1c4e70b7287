"""Running a test under one seed, or under many, until an order of events breaks it."""

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
    """Run `main()` on a fresh `SeededLoop` and return its result.

    The same seed gives the same order of events: the module `random` is seeded too, and left
    afterwards as it was. Real threads, files and sets of objects without an order of their own
    are not the seed's. With None the order is asyncio's own: for a test that wants a clock that
    jumps and nothing else. Raises `Deadlock`, `TimeoutError` after `turns` turns of the loop, or
    whatever `main` raises; and if `main` succeeds, what callbacks and forgotten tasks have raised
    meanwhile, which a loop would only log. Tasks that are left are cancelled and waited for.
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

    The first failure ends it and is raised as it is, with a note that says how to replay it.
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

    Put it where a test's own steps should fall at any moment of what it tests.
    """
    for _ in range(_loop().choices.among(at_most + 1)):
        await asyncio.sleep(0)


def advance(seconds: float) -> None:
    """Move the running loop's virtual clock on at once, as a body does that computes so long."""
    _loop().clock.advance(seconds)


def _loop() -> SeededLoop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, SeededLoop):
        raise RuntimeError("this works under run_seeded, explore and SeededLoop only")
    return loop


def _wind_up(loop: SeededLoop) -> None:
    """Cancel what is left on `loop`, and wait for it."""
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
        for task in asyncio.all_tasks(loop):  # they cannot be ended: left without a warning each
            silence_unfinished(task)
