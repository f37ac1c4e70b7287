"""The jobs that the tests send to a cluster; workers import them from here."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import threading
import time
import types
import zlib
from contextlib import suppress
from pathlib import Path
from typing import Any

from anabranch import Backend, Conversation, Job, Node, handler, tool
from anabranch.agents import UserProxyAgent
from anabranch.cluster import Ray
from anabranch.commander import charge, check_cancelled, emit
from anabranch.handlers import View, respond
from support.ray_agents import Bob
from support.waiting import wait_until


def add_note(file: str, line: str) -> None:
    """Append a line to a file, so that a test can count actions in other processes."""
    with Path(file).open("a") as lines:
        lines.write(f"{line}\n")


def read_notes(file: str) -> str:
    """Return all lines so far; an empty text if the file does not exist."""
    path = Path(file)
    return path.read_text() if path.exists() else ""


async def wait_for_line(file: str, beginning: str) -> str:
    """Wait for a line with this beginning, and return it."""

    def found() -> list[str]:
        return [line for line in read_notes(file).splitlines() if line.startswith(beginning)]

    await wait_until(found, patience=60)  # a worker may take long to start
    return found()[0]


class Refusal(Exception):
    """An exception with two required arguments, which plain pickle cannot restore."""

    def __init__(self, what: str, why: str) -> None:
        super().__init__(f"{what}: {why}")
        self.what = what


class Unsendable(Exception):
    """An exception that cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("it holds a lock")
        self.lock = threading.Lock()


@handler
async def double(node: Node[Any], number: int) -> int:
    return 2 * number


class Double(Job[int]):
    number: int

    async def task(self) -> int:
        return await self.call_handler(double(self.number))


class There(Job[int]):
    on = "ray"

    async def task(self) -> int:
        return os.getpid()


class Fail(Job[None]):
    kind: str = "refusal"
    file: str = os.devnull

    async def task(self) -> None:
        add_note(self.file, "tried")
        if self.kind == "refusal":
            try:
                int("x")
            except ValueError as error:
                raise Refusal("no", "because") from error
        if self.kind == "ring":
            error = KeyError("its own cause")
            raise error from error
        raise Unsendable


class Mute(Exception):
    """An exception whose `__str__` raises."""

    def __str__(self) -> str:
        raise LookupError("no text")


class End(Job[None]):
    kind: type[BaseException]

    async def task(self) -> None:
        raise self.kind(3)


class Give(Job[Any]):
    """A job whose result cannot be pickled, or is a Ray reference."""

    what: str = "lock"

    async def task(self) -> Any:
        import ray

        return threading.Lock() if self.what == "lock" else ray.put(1)


class Measure(Job[tuple[int, int]]):
    """A job that changes its input and returns a checksum of the original."""

    value: Any
    number: int

    async def task(self) -> tuple[int, int]:
        seen = zlib.crc32(repr(self.value).encode())
        if isinstance(self.value, list):
            self.value.clear()
        return seen, self.number


class Resolve(Job[tuple[list[str], str]]):
    """A job that resolves the Ray references and the actor in its input."""

    value: dict[str, Any]

    async def task(self) -> tuple[list[str], str]:
        first, second = self.value["reference"]
        return [await first, await second], await self.value["actor"].host.remote()


@handler
async def stand(node: Node[Any], file: str) -> None:
    add_note(file, f"standing {os.getpid()}")
    try:
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0.3)  # a cleanup that takes longer than the cancellation
        add_note(file, "cleaned")


class Strange(Job[None]):
    """A job that emits and raises objects whose class exists only in the worker."""

    async def task(self) -> None:
        module: Any = types.ModuleType("only_there")
        exec("class Odd(Exception): pass", vars(module))
        sys.modules["only_there"] = module
        emit(self, "text", module.Odd("said"))
        await asyncio.sleep(0.05)
        raise module.Odd("raised")


class Stand(Job[None]):
    """A job with a child that waits forever, and notes its process id and its cleanup."""

    file: str

    async def task(self) -> None:
        await self.call_handler(stand(self.file))


class Last(Job[None]):
    """A job that emits text and charges usage while it is cancelled."""

    file: str

    async def task(self) -> None:
        add_note(self.file, "standing")
        try:
            await asyncio.Event().wait()
        finally:
            emit(self, "text", "farewell")
            charge("dear", 7)


class Join(Job[str]):
    """A job whose body has returned while its child waits forever."""

    file: str

    async def task(self) -> str:
        self.call_handler(stand(self.file))
        return "returned"


class Tool(Job[None]):
    """A job that blocks a thread until it is cancelled, as a synchronous tool does."""

    file: str

    async def task(self) -> None:
        await self.in_thread(self.block)

    def block(self) -> None:
        add_note(self.file, f"standing {os.getpid()}")
        while True:
            check_cancelled()
            threading.Event().wait(0.01)


class Block(Job[None]):
    """A job that ignores cancellation, in the way `how`, and notes its process id."""

    file: str
    how: str

    async def task(self) -> None:
        if self.how == "below":
            await self.put_job(Block(self.file, "sleep"), on=Ray(num_cpus=0, grace=0.5))
        add_note(self.file, f"standing {os.getpid()}")
        if self.how == "sleep":
            time.sleep(1000)  # noqa: ASYNC251
        while self.how == "loop":
            pass
        if self.how == "match":  # the regular expression never releases the GIL
            re.match(r"(a+)+$", "a" * 100 + "b")
        if self.how == "thread":
            await self.in_thread(time.sleep, 1000)
        while self.how == "stubborn":
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


class Speak(Job[int]):
    """A job that sends a request if it has a backend, then emits `count` numbers."""

    count: int
    file: str = os.devnull
    pause: float = 0.0
    backend: Backend | None = None

    async def task(self) -> int:
        add_note(self.file, f"standing {os.getpid()}")
        if self.backend is not None:  # its events are sent among many others
            await self.put_job(Ask(self.backend))
        for number in range(self.count):
            emit(self, "text", str(number))
            if self.pause:
                await asyncio.sleep(self.pause)
        return self.count


class Fan(Job[int]):
    """A job that puts many children at once and adds up their results."""

    width: int

    async def task(self) -> int:
        return sum([await node for node in [self.put_job(Double(n)) for n in range(self.width)]])


class Spend(Job[None]):
    amount: int
    pause: float = 0.0

    async def task(self) -> None:
        await self.call_handler(_spend(self.amount))
        await asyncio.sleep(self.pause)
        charge("dear", self.amount)


@handler
async def _spend(node: Node[Any], amount: int) -> None:
    charge("cheap", amount)


class Leave(Job[None]):
    how: str

    async def task(self) -> None:
        if self.how == "exit":
            self.commander.exit("left")
        elif self.how == "cancel":
            self.cancel("by itself")
        else:
            raise SystemExit(3)
        await asyncio.Event().wait()


class Ask(Job[str]):
    """A job that sends a request to a model on a real server."""

    backend: Backend
    tells: bool = False

    async def task(self) -> str:
        if self.tells:
            emit(self, "text", str(os.getpid()))
        conversation = Conversation()
        conversation.add("Hello")
        message = await respond(self.backend, conversation, (), _Silent())
        return message.content or ""


class Use(Job[str]):
    """A job whose model calls a tool."""

    backend: Backend

    async def task(self) -> str:
        conversation = Conversation()
        conversation.add("Hello")
        return (await respond(self.backend, conversation, [_double], _Silent())).content or ""


@tool(name="double")
def _double(n: int) -> int:
    """Double a number."""
    return 2 * n


class Odd(Job[None]):
    """A job whose events have details of a wrong type that cannot be pickled."""

    async def task(self) -> None:
        lock = threading.Lock()
        for kind in ("request", "first_chunk", "reply", "called", "answered", "slow", "text"):
            emit(self, kind, lock)  # type: ignore[arg-type]
        await self.call_handler(unsendable())


@handler
async def unsendable(node: Node[Any]) -> None:
    raise Unsendable


class AskThere(Job[list[str]]):
    """A job that sends requests from several machines at once."""

    backend: Backend
    places: list[Ray | None]

    async def task(self) -> list[str]:
        jobs = [self.put_job(Ask(self.backend), on=place) for place in self.places]
        return [await job for job in jobs]


class Talk(Job[str]):
    """A job with two agents that talk in the job's process."""

    async def task(self) -> str:
        user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
        return (await user.send("Who are you?", Bob("bob"))).text


class _Silent(View):
    def write(self, text: str) -> None:
        pass


class Nest(Job[list[int]]):
    """A job that sends its children to the cluster again, from its worker."""

    depth: int
    width: int = 2

    async def task(self) -> list[int]:
        if not self.depth:
            return [os.getpid()]
        jobs = [self.put_job(Nest(self.depth - 1, self.width), on=Ray()) for _ in range(self.width)]
        return sum([await job for job in jobs], start=[os.getpid()])


class Environment(Job[str | None]):
    name: str

    async def task(self) -> str | None:
        return os.environ.get(self.name)


class Planned(Job[str]):
    """A job that executes a plan. It and its children note their start and their outcome."""

    plan: dict[str, Any]
    file: str

    async def task(self) -> str:
        children: list[Planned] = []
        for what, *details in self.plan["steps"]:
            if what == "put":
                children.append(self.begin(details[0]))
            elif what == "await":
                await self.wait(children[details[0]], *details[1:])
            elif what == "cancel":
                children[details[0]].cancel("planned")
            elif what == "pause":
                await asyncio.sleep(0.005)
            elif what == "stand":
                await asyncio.Event().wait()
            else:
                raise KeyError(self.plan["label"])
        return self.plan["label"]

    def begin(self, plan: dict[str, Any]) -> Planned:
        child = Planned(plan, self.file).noting()
        place = None if plan["on"] is None else Ray(num_cpus=0, resources={plan["on"]: 1})
        return self.put_job(child, policy=plan["policy"], claim=plan["claim"], on=place)

    async def wait(self, child: Planned, caught: bool) -> None:
        try:
            await child
        except Exception:
            if not caught:
                raise

    def noting(self) -> Planned:
        label = self.plan["label"]
        self.at_start(lambda _: add_note(self.file, f"{label} starts"))
        self.at_end(lambda _: add_note(self.file, f"{label} completed"))
        self.at_exception(lambda _: add_note(self.file, f"{label} failed"))
        self.at_terminate(lambda _: add_note(self.file, f"{label} cancelled"))
        return self
