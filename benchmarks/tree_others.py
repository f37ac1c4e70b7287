"""The shapes of work of `benchmarks/tree.py`, for the libraries that it compares with this one."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable, Iterable
from typing import Annotated, Any, TypedDict

from tree_contenders import Contender, Counter, Look, nodes_in_tree


class Anyio(Contender):
    """anyio on asyncio; no callbacks, so each task counts at its end."""

    name = "anyio"
    note = "its chain is quadratic: 2,000 deep, per node"
    chain_most = 2_000

    def __init__(self) -> None:
        import anyio

        self.anyio = anyio

    def run(self, main: Callable[[], Any]) -> None:
        self.anyio.run(main)

    def group(self) -> Any:
        return self.anyio.create_task_group()

    def event(self) -> Any:
        return self.anyio.Event()

    async def turn(self) -> None:
        await self.anyio.sleep(0)

    def fan(self, count: int) -> None:
        async def leaf() -> None:
            done()

        async def main() -> None:
            async with self.group() as group:
                for _ in range(count):
                    group.start_soon(leaf)

        done = Counter()
        self.run(main)
        done.check(count)

    def chain(self, count: int) -> None:
        async def link(left: int) -> None:
            if left:
                async with self.group() as group:
                    group.start_soon(link, left - 1)
                done()

        done = Counter()
        self.run(lambda: link(count))
        done.check(count)

    def tree(self, depth: int) -> None:
        async def node(left: int) -> None:
            if left:
                async with self.group() as group:
                    group.start_soon(node, left - 1)
                    group.start_soon(node, left - 1)
            done()

        done = Counter()
        self.run(lambda: node(depth))
        done.check(nodes_in_tree(depth) + 1)

    def blocked(self, count: int, look: Look) -> None:
        async def leaf(event: Any) -> None:
            await event.wait()
            done()

        async def main() -> None:
            event = self.event()
            async with self.group() as group:
                for _ in range(count):
                    group.start_soon(leaf, event)
                await self.turn()
                look()
                event.set()

        done = Counter()
        self.run(main)
        done.check(count)


class Trio(Anyio):
    """trio, which has its own event loop."""

    name = "trio"
    note = ""
    chain_most = 100_000

    def __init__(self) -> None:
        import trio

        self.trio = trio

    def run(self, main: Callable[[], Any]) -> None:
        self.trio.run(main)

    def group(self) -> Any:
        return self.trio.open_nursery()

    def event(self) -> Any:
        return self.trio.Event()

    async def turn(self) -> None:
        await self.trio.sleep(0.001)


class Agere(Contender):
    """agere's handlers, with an at_handler_end callback each."""

    name = "agere"
    note = "its chain stops at the recursion limit, which is raised here"

    def __init__(self) -> None:
        from agere.commander import PASS_WORD, BasicJob, CommanderAsync, handler

        self.job, self.commander = BasicJob, CommanderAsync

        @handler(PASS_WORD)
        async def leaf(node: Any) -> None:
            pass

        @handler(PASS_WORD)
        async def fan(node: Any, count: int, done: Counter) -> None:
            for _ in range(count):
                node.call_handler(self.counted(leaf(), done))

        @handler(PASS_WORD)
        async def link(node: Any, left: int, done: Counter) -> None:
            if left:
                node.call_handler(self.counted(link(left - 1, done), done))

        @handler(PASS_WORD)
        async def branch(node: Any, left: int, done: Counter) -> None:
            if left:
                node.call_handler(self.counted(branch(left - 1, done), done))
                node.call_handler(self.counted(branch(left - 1, done), done))

        @handler(PASS_WORD)
        async def on_event(node: Any, event: asyncio.Event) -> None:
            await event.wait()

        @handler(PASS_WORD)
        async def blocked(node: Any, count: int, look: Look, done: Counter) -> None:
            event = asyncio.Event()
            for _ in range(count):
                node.call_handler(self.counted(on_event(event), done))
            for _ in range(3):
                await asyncio.sleep(0)
            look()
            event.set()

        @handler(PASS_WORD)
        async def wait(node: Any, future: asyncio.Future[None]) -> None:
            await future

        @handler(PASS_WORD)
        async def ordered(node: Any, count: int, order: Any, look: Look, done: Counter) -> None:
            loop = asyncio.get_running_loop()
            futures = [loop.create_future() for _ in range(count)]
            for future in futures:
                node.call_handler(self.counted(wait(future), done))
            for _ in range(3):
                await asyncio.sleep(0)
            look()
            for index in order:
                futures[index].set_result(None)

        self._fan, self._link, self._branch = fan, link, branch
        self._blocked, self._ordered = blocked, ordered

    def counted(self, node: Any, done: Counter) -> Any:
        node.add_callback_functions("at_handler_end", {"function": done})
        return node

    def drive(self, top: Any) -> None:
        self.commander().run_auto(self.job(top))

    def fan(self, count: int) -> None:
        done = Counter()
        self.drive(self._fan(count, done))
        done.check(count)

    def chain(self, count: int) -> None:
        done = Counter()
        self.drive(self._link(count, done))
        done.check(count)

    def tree(self, depth: int) -> None:
        done = Counter()
        self.drive(self._branch(depth, done))
        done.check(nodes_in_tree(depth))

    def blocked(self, count: int, look: Look) -> None:
        done = Counter()
        self.drive(self._blocked(count, look, done))
        done.check(count)

    def ordered(self, count: int, order: Iterable[int], look: Look) -> None:
        done = Counter()
        self.drive(self._ordered(count, order, look, done))
        done.check(count)


class State(TypedDict):
    """LangGraph's state; adding to its sum replaces the callback."""

    done: Annotated[int, operator.add]
    left: int


class LangGraph(Contender):
    """LangGraph: `Send` for children; a chain is a loop of steps, not a nest."""

    name = "LangGraph"
    note = "its chain is flat: a step after a step"
    most = 10_000

    def __init__(self) -> None:
        from langgraph.graph import END, START, StateGraph
        from langgraph.types import Command, Send

        async def leaf(state: Any) -> dict[str, int]:
            return {"done": 1}

        async def step(state: Any) -> dict[str, int]:
            return {"done": 1, "left": state["left"] - 1}

        async def on_event(state: Any) -> dict[str, int]:
            await state["event"].wait()
            return {"done": 1}

        def graph(node: Any, first: Any, then: Any) -> Any:
            built = StateGraph(State)
            built.add_node("node", node)
            built.add_conditional_edges(START, first, ["node"])
            if then is not None:
                built.add_conditional_edges("node", then, ["node", END])
            return built.compile()

        def spread(state: Any) -> list[Any]:
            return [Send("node", {}) for _ in range(state["left"])]

        def spread_events(state: Any) -> list[Any]:
            return [Send("node", {"event": self.event}) for _ in range(state["left"])]

        def children(state: Any) -> list[Any]:
            left = state["left"] - 1
            return [Send("node", {"left": left}) for _ in range(2)] if left >= 0 else []

        async def branch(state: Any) -> Any:
            return Command(update={"done": 1}, goto=children(state))

        self._fan = graph(leaf, spread, None)
        self._blocked = graph(on_event, spread_events, None)
        self._chain = graph(step, lambda _: "node", lambda s: "node" if s["left"] else END)
        self._tree = graph(branch, children, None)

    def drive(self, graph: Any, left: int, limit: int = 25) -> int:
        config = {"recursion_limit": limit}
        final = asyncio.run(graph.ainvoke({"done": 0, "left": left}, config))
        return int(final["done"])

    def fan(self, count: int) -> None:
        assert self.drive(self._fan, count) == count

    def chain(self, count: int) -> None:
        assert self.drive(self._chain, count, count + 10) == count

    def tree(self, depth: int) -> None:
        assert self.drive(self._tree, depth) == nodes_in_tree(depth)

    def blocked(self, count: int, look: Look) -> None:
        async def main() -> None:
            self.event = asyncio.Event()
            running = asyncio.ensure_future(self._blocked.ainvoke({"done": 0, "left": count}))
            while len(self.event._waiters) < count:  # type: ignore[attr-defined]
                await asyncio.sleep(0)
            look()
            self.event.set()
            assert (await running)["done"] == count

        asyncio.run(main())


class PydanticGraph(Contender):
    """pydantic-graph: `map` and a join for children; a chain is a loop of nodes."""

    name = "pydantic-graph"
    note = "its chain is flat; its graphs are static, so it has no tree of any depth"
    most = 20_000

    def __init__(self) -> None:
        from pydantic_graph import GraphBuilder, reduce_sum

        fan: Any = GraphBuilder(input_type=int, output_type=int)
        chain: Any = GraphBuilder(input_type=int, output_type=int)

        @fan.step
        async def spread(ctx: Any) -> list[int]:
            return [1] * int(ctx.inputs)

        @fan.step
        async def leaf(ctx: Any) -> int:
            return 1

        total = fan.join(reduce_sum, initial=0)
        fan.add(
            fan.edge_from(fan.start_node).to(spread),
            fan.edge_from(spread).map().to(leaf),
            fan.edge_from(leaf).to(total),
            fan.edge_from(total).to(fan.end_node),
        )

        @chain.step
        async def step(ctx: Any) -> int:
            return int(ctx.inputs) - 1

        chain.add(
            chain.edge_from(chain.start_node).to(step),
            chain.edge_from(step).to(
                chain.decision()
                .branch(chain.match(int, matches=lambda left: left > 0).to(step))
                .branch(chain.match(int, matches=lambda left: left <= 0).to(chain.end_node))
            ),
        )
        self._fan, self._chain = fan.build(), chain.build()

    def fan(self, count: int) -> None:
        assert asyncio.run(self._fan.run(inputs=count)) == count

    def chain(self, count: int) -> None:
        assert asyncio.run(self._chain.run(inputs=count)) == 0


OTHERS = (Anyio, Trio, Agere, LangGraph, PydanticGraph)
