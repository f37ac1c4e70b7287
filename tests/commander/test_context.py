"""`context=`: a value for all code below."""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import (
    Commander,
    Context,
    ContextError,
    Job,
    Node,
    Retry,
    current_context,
    current_node,
    handler,
    run,
)
from anabranch.commander.context import call_with_context

T = TypeVar("T")


@dataclass
class User:
    name: str


class Read(Job[Any]):
    async def task(self) -> Any:
        return current_context().value


@handler
async def read(self: Node[Any]) -> Any:
    return current_context().value


def test_a_run_gives_its_context_to_all_nodes():
    class Outer(Job[Any]):
        async def task(self) -> Any:
            return [await Read(), await read(), await self.put_job(Read(), context="inner")]

    assert run(Outer(), context="given") == ["given", "given", "inner"]


def test_none_is_a_context():
    assert run(read(), context=None) is None


def test_without_a_context_the_error_says_what_to_pass():
    with pytest.raises(ContextError, match=r"pass context= to the call"):
        run(Read())


def test_a_context_of_another_type_is_an_error():
    @handler
    async def read_user(self: Node[Any]) -> str:
        return current_context(User).value.name

    assert run(read_user(), context=User("ada")) == "ada"
    with pytest.raises(ContextError, match=r"needs a context of type User, and .* was a str"):
        run(read_user(), context="ada")


@dataclass
class Store(Generic[T]):
    db: T


@runtime_checkable
class Named(Protocol):
    name: str


class NotChecked(Protocol):
    name: str


@pytest.mark.parametrize(
    ("kind", "right", "wrong"),
    [
        (Store[int], Store(1), User("x")),
        (Store[list[int]] | None, None, 1),
        (dict[str, int], {}, []),
        (Mapping[str, int], {"a": 1}, ["a"]),
        (tuple[int, ...], (1,), [1]),
        (Named, User("x"), "x"),
    ],
)
def test_a_generic_context_is_checked_by_its_class(kind: Any, right: object, wrong: object):
    class ReadsKind(Job[Any]):
        async def task(self) -> Any:
            def reads(ctx):
                return ctx.value

            reads.__annotations__ = {"ctx": Context[kind]}
            return current_context(kind).value, await call_with_context(reads)

    assert run(ReadsKind(), context=right) == (right, right)
    with pytest.raises(ContextError, match="needs a context of type"):
        run(ReadsKind(), context=wrong)


def test_a_protocol_that_cannot_be_checked_takes_any_value():
    class ReadsProtocol(Job[Any]):
        async def task(self) -> Any:
            return current_context(NotChecked).value

    assert run(ReadsProtocol(), context=1) == 1


async def test_commander_run_and_both_puts_take_a_context():
    async with Commander() as commander:
        assert await commander.run(Read(), context=1) == 1
        assert await commander.run(read(), context=2) == 2
        assert await commander.put_job(Read(), context=3) == 3
        assert await commander.call_handler(read(), context=4, timeout=10) == 4
        assert await commander.start(Read(), context=5) == 5
        with pytest.raises(ContextError):
            await read()


async def test_each_attempt_has_the_context_of_the_put():
    seen: list[Any] = []

    @handler
    async def fail_twice(self: Node[Any]) -> None:
        seen.append(current_context().value)
        await current_node().call_handler(read(), context="below")
        if len(seen) < 3:
            raise OSError

    async with Commander() as commander:
        await commander.run(fail_twice(), context="given", retry=Retry(attempts=3))
    assert seen == ["given"] * 3


async def test_a_missing_context_is_not_retried():
    attempts: list[None] = []

    @handler
    async def read_often(self: Node[Any]) -> None:
        attempts.append(None)
        current_context()

    async with Commander() as commander:
        with pytest.raises(ContextError):
            await commander.run(read_often(), retry=Retry(attempts=5))
    assert len(attempts) == 1


async def test_callbacks_and_threads_see_the_context():
    seen: list[Any] = []

    def note(_: object) -> None:
        seen.append(current_context().value)

    @handler
    async def work(self: Node[Any]) -> None:
        seen.append(await current_node().in_thread(lambda: current_context().value))

    async with Commander() as commander:
        await commander.run(work().at_start(note).at_end(note).at_done(note), context="given")
    assert seen == ["given"] * 4


async def test_a_put_of_a_thread_without_context_variables_has_that_of_its_parent():
    async with Commander() as commander:

        @handler
        async def work(self: Node[Any]) -> Any:
            node, found = current_node(), list[Any]()

            def put() -> None:
                found.append(commander.put_job_threadsafe(Read(), parent=node).result())
                given = commander.put_job_threadsafe(Read(), parent=node, context="own")
                found.append(given.result())

            thread = threading.Thread(target=put)
            thread.start()
            await asyncio.to_thread(thread.join)
            return found

        assert await commander.run(work(), context="given") == ["given", "own"]


def test_a_run_in_a_thread_of_a_node_sees_the_context():
    @handler
    async def work(self: Node[Any]) -> Any:
        return await current_node().in_thread(lambda: run(Read()))

    assert run(work(), context="given") == "given"


async def test_a_queued_job_has_the_context_of_its_put():
    async with Commander(max_concurrency=1) as commander:
        jobs = [commander.put_job(Read(), context=n, priority=n % 3) for n in range(9)]
        assert [await job for job in jobs] == [*range(9)]


async def test_a_refused_put_leaves_the_context_of_the_code():
    async with Commander() as commander:
        with pytest.raises(TypeError):
            commander.put_job(Read(), context=1, timeout="soon")  # type: ignore[arg-type]
        with pytest.raises(ContextError):
            current_context()


async def test_the_context_names_its_node():
    @handler
    async def work(self: Node[Any]) -> bool:
        return current_context().node is current_node()

    async with Commander() as commander:
        assert await commander.run(work(), context=1)
    with pytest.raises(LookupError):
        _ = Context(1).node


def test_a_context_without_its_node_is_pickled():
    @handler
    async def work(self: Node[Any]) -> Context[object]:
        return pickle.loads(pickle.dumps(current_context()))

    copied = run(work(), context=1)
    assert copied == Context(1)
    with pytest.raises(LookupError):
        _ = copied.node


# --- random trees


@dataclass
class Spec:
    given: int | None
    kind: str
    children: list[Spec]


KINDS = ["job", "handler", "thread", "retry", "commander"]
SPECS = st.recursive(
    st.builds(Spec, st.none() | st.integers(0, 5), st.sampled_from(KINDS), st.just([])),
    lambda below: st.builds(
        Spec, st.none() | st.integers(0, 5), st.sampled_from(KINDS), st.lists(below, max_size=3)
    ),
    max_leaves=8,
)


class Draw(Job[None]):
    spec: Any
    expected: Any
    wrong: Any
    tries: int = 0

    async def task(self) -> None:
        found: object = None
        with suppress(ContextError):
            found = current_context().value
        if found != self.expected:
            self.wrong.append((found, self.expected))
        self.tries += 1
        for each in self.spec.children:
            put_below(self, each, self.expected, self.wrong)
        if self.spec.kind == "retry" and self.tries < 2:
            raise OSError
        if self.spec.kind == "commander":
            async with Commander() as inner:
                for each in self.spec.children:
                    put_below(inner, each, self.expected, self.wrong)


@handler
async def hold(self: Node[Any], make: Callable[[], Job[Any]]) -> None:
    await make()


def put_below(parent: Node[Any], spec: Spec, above: object, wrong: list[Any]) -> None:
    expected = above if spec.given is None else spec.given
    options: Any = {} if spec.given is None else {"context": spec.given}
    job = Draw(spec, expected, wrong)
    if spec.kind == "retry":
        options["retry"] = Retry(attempts=2, on=OSError)
    if spec.kind == "handler":
        parent.call_handler(hold(lambda: job), **options)
    elif spec.kind == "thread":
        commander = parent if isinstance(parent, Commander) else parent.commander

        async def put(self: Node[Any]) -> None:
            await asyncio.to_thread(
                lambda: commander.put_job_threadsafe(job, parent=parent, **options).result()
            )

        parent.call_handler(handler(put)())
    else:
        parent.put_job(job, **options)


@given(SPECS)
def test_each_node_of_a_tree_has_the_nearest_context_above(spec: Spec):
    wrong: list[Any] = []

    class Root(Job[None]):
        async def task(self) -> None:
            put_below(self, spec, None, wrong)

    run(Root())
    assert wrong == []


# --- functions with a parameter for the context


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (lambda: "none", "none"),
        (lambda x: x, "in"),
        (lambda x, ctx: (x, ctx.value), ("in", 7)),
        (lambda x, ctx=None: (x, ctx), ("in", None)),
    ],
)
async def test_a_function_gets_the_context_only_if_it_needs_it(function: Any, expected: Any):
    @handler
    async def work(self: Node[Any]) -> Any:
        arguments = ["in"] if function.__code__.co_argcount else []
        return await call_with_context(function, *arguments)

    async with Commander() as commander:
        assert await commander.run(work(), context=7) == expected


class Both:
    async def method(self, ctx: Context[int], x: str) -> Any:
        return x, ctx.value

    async def named(self, x: str, *, of: Context[int | str] | None = None) -> Any:
        return x, None if of is None else of.value

    def __call__(self, x: str, ctx: Context) -> Any:
        return x, ctx.value


async def test_the_annotated_parameter_is_found_at_any_place():
    @handler
    async def work(self: Node[Any]) -> Any:
        both = Both()
        return [
            await call_with_context(both.named, "x"),
            await call_with_context(both, "x"),
            await call_with_context(both.method, "x"),
            await call_with_context(partial(both.method, x="x")),
        ]

    async with Commander() as commander:
        assert await commander.run(work(), context=7) == [("x", 7)] * 4
    assert await call_with_context(Both().named, "x") == ("x", None)
    with pytest.raises(ContextError, match=r"Both.*'ctx'"):
        await call_with_context(Both(), "x")


# --- processes


def read_in_process() -> str:
    return current_context(User).value.name


def run_in_process() -> str:
    @handler
    async def work(self: Node[Any]) -> str:
        return await self.in_process(read_in_process)

    return run(work())


def needs_no_context() -> int:
    return 7


class Lock(User):
    def __reduce__(self) -> Any:
        raise TypeError("it holds a lock")


async def test_a_function_in_a_process_reads_a_copy_of_the_context():
    async with Commander() as commander:

        @handler
        async def work(self: Node[Any]) -> list[Any]:
            return [
                await self.in_process(read_in_process),
                await self.in_process(run_in_process),
            ]

        assert await commander.run(work(), context=User("ada")) == ["ada", "ada"]


async def test_a_context_that_cannot_be_pickled_is_an_error_only_where_it_is_read():
    async with Commander() as commander:

        @handler
        async def work(self: Node[Any]) -> Any:
            assert await self.in_process(needs_no_context) == 7
            return await self.in_process(read_in_process)

        with pytest.raises(ContextError, match=r"the context, a Lock, cannot be sent .* a lock"):
            await commander.run(work(), context=Lock("ada"))
        with pytest.raises(ContextError, match="no context was given"):
            await commander.run(work())
