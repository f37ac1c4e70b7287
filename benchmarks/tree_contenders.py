"""The shapes of work of `benchmarks/tree.py`, for raw asyncio and for this engine.

Each node counts one callback at its end. In libraries without callbacks, it adds one to a sum. Each
function checks that all nodes were counted. Shapes that a library cannot express are missing.
`tree_others.py` has the other libraries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

Look = Callable[[], None]


class Counter:
    """Counts ended nodes; the callback of each node."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, *_: object) -> None:
        self.count += 1

    def check(self, expected: int) -> None:
        assert self.count == expected, f"{self.count} of {expected} nodes have ended"


def nodes_in_tree(depth: int) -> int:
    """Return the number of nodes of a binary tree without its root."""
    return 2 ** (depth + 1) - 2


class Contender:
    """One library, with the shapes of work that it can express."""

    name = ""
    note = ""
    # The largest sizes that are measured; larger ones take minutes per round.
    most = 100_000

    def can(self, shape: str) -> bool:
        return hasattr(self, shape)


class Raw(Contender):
    """asyncio.TaskGroup with a done callback, the base of all ratios."""

    name = "raw TaskGroup"

    def fan(self, count: int) -> None:
        async def leaf() -> None:
            pass

        async def main() -> None:
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(leaf()).add_done_callback(done)

        done = Counter()
        asyncio.run(main())
        done.check(count)

    def chain(self, count: int) -> None:
        async def link(left: int) -> None:
            if left:
                async with asyncio.TaskGroup() as group:
                    group.create_task(link(left - 1)).add_done_callback(done)

        done = Counter()
        asyncio.run(link(count))
        done.check(count)

    def tree(self, depth: int) -> None:
        async def node(left: int) -> None:
            if left:
                async with asyncio.TaskGroup() as group:
                    group.create_task(node(left - 1)).add_done_callback(done)
                    group.create_task(node(left - 1)).add_done_callback(done)

        done = Counter()
        asyncio.run(node(depth))
        done.check(nodes_in_tree(depth))

    def blocked(self, count: int, look: Look) -> None:
        async def leaf(event: asyncio.Event) -> None:
            await event.wait()

        async def main() -> None:
            event = asyncio.Event()
            async with asyncio.TaskGroup() as group:
                for _ in range(count):
                    group.create_task(leaf(event)).add_done_callback(done)
                await asyncio.sleep(0)
                look()
                event.set()

        done = Counter()
        asyncio.run(main())
        done.check(count)

    def ordered(self, count: int, order: Iterable[int], look: Look) -> None:
        async def leaf(future: asyncio.Future[None]) -> None:
            await future

        async def main() -> None:
            loop = asyncio.get_running_loop()
            futures = [loop.create_future() for _ in range(count)]
            async with asyncio.TaskGroup() as group:
                for future in futures:
                    group.create_task(leaf(future)).add_done_callback(done)
                await asyncio.sleep(0)
                look()
                for index in order:
                    futures[index].set_result(None)

        done = Counter()
        asyncio.run(main())
        done.check(count)


class Ours(Contender):
    """This engine: handlers, with everything at its default (the watch of T12 included)."""

    name = "anabranch handlers"
    listeners = 0

    def __init__(self) -> None:
        from anabranch.commander import Commander
        from anabranch.handlers import handler

        self.commander = Commander

        @handler
        async def leaf(node: Any) -> None:
            pass

        @handler
        async def link(node: Any, left: int, done: Counter) -> None:
            if left:
                node.call_handler(link(left - 1, done)).at_end(done)

        @handler
        async def branch(node: Any, left: int, done: Counter) -> None:
            if left:
                node.call_handler(branch(left - 1, done)).at_end(done)
                node.call_handler(branch(left - 1, done)).at_end(done)

        @handler
        async def wait(node: Any, awaitable: Any) -> None:
            await awaitable

        @handler
        async def on_event(node: Any, event: asyncio.Event) -> None:
            await event.wait()

        self.leaf, self.link, self.branch = leaf, link, branch
        self.wait, self.on_event = wait, on_event

    def drive(self, body: Callable[[Any], Any]) -> None:
        async def listen(events: Any) -> None:
            async for _ in events:
                pass

        async def main() -> None:
            async with self.commander() as commander:
                tasks = [
                    asyncio.create_task(listen(commander.events(capacity=1_000_000)))
                    for _ in range(self.listeners)
                ]
                await body(commander)
            for task in tasks:
                await task

        asyncio.run(main())

    def start(self, parent: Any, node: Any) -> Any:
        return parent.call_handler(node)

    def fan(self, count: int) -> None:
        done = Counter()

        async def body(commander: Any) -> None:
            for _ in range(count):
                self.start(commander, self.leaf()).at_end(done)

        self.drive(body)
        done.check(count)

    def chain(self, count: int) -> None:
        done = Counter()
        self.drive(lambda commander: commander.run(self.link(count, done)))
        done.check(count)

    def tree(self, depth: int) -> None:
        done = Counter()
        self.drive(lambda commander: commander.run(self.branch(depth, done)))
        done.check(nodes_in_tree(depth))

    def blocked(self, count: int, look: Look) -> None:
        done = Counter()

        async def body(commander: Any) -> None:
            event = asyncio.Event()
            for _ in range(count):
                self.start(commander, self.on_event(event)).at_end(done)
            for _ in range(3):  # jobs pass the queue first
                await asyncio.sleep(0)
            look()
            event.set()

        self.drive(body)
        done.check(count)

    def ordered(self, count: int, order: Iterable[int], look: Look) -> None:
        done = Counter()

        async def body(commander: Any) -> None:
            loop = asyncio.get_running_loop()
            futures = [loop.create_future() for _ in range(count)]
            for future in futures:
                self.start(commander, self.wait(future)).at_end(done)
            for _ in range(3):
                await asyncio.sleep(0)
            look()
            for index in order:
                futures[index].set_result(None)

        self.drive(body)
        done.check(count)


class OursJobs(Ours):
    """This engine: jobs, which wait in the commander's queue."""

    name = "anabranch jobs"

    def __init__(self) -> None:
        from anabranch.commander import Commander
        from anabranch.jobs import Job

        self.commander = Commander

        class Leaf(Job[None]):
            async def task(self) -> None:
                pass

        class Link(Job[None]):
            left: int
            done: Any

            async def task(self) -> None:
                if self.left:
                    self.put_job(Link(self.left - 1, self.done)).at_end(self.done)

        class Branch(Job[None]):
            left: int
            done: Any

            async def task(self) -> None:
                if self.left:
                    self.put_job(Branch(self.left - 1, self.done)).at_end(self.done)
                    self.put_job(Branch(self.left - 1, self.done)).at_end(self.done)

        class Wait(Job[None]):
            awaitable: Any

            async def task(self) -> None:
                await self.awaitable

        class OnEvent(Job[None]):
            event: Any

            async def task(self) -> None:
                await self.event.wait()

        self.leaf, self.link, self.branch = Leaf, Link, Branch
        self.wait, self.on_event = Wait, OnEvent

    def start(self, parent: Any, node: Any) -> Any:
        return parent.put_job(node)


class OursWatched(Ours):
    """This engine, with a listener that reads all events at once."""

    name = "anabranch, watched"
    listeners = 1


OURS = (Ours, OursJobs)
