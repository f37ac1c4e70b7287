"""Code that type checkers must accept, and the types that they must infer."""

# pyright: strict

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Any, Generic, Literal, TypeVar, assert_type

from pydantic import BaseModel

from anabranch.agents import Agent, AgentMessage, AgentStream, JsonParser, prompt
from anabranch.backends import Backend
from anabranch.commander import (
    Commander,
    Context,
    Event,
    Node,
    NodeState,
    Restart,
    Retry,
    Started,
    current_context,
    current_node,
    quorum,
    run,
    settle,
)
from anabranch.handlers import Handler, handler, respond
from anabranch.jobs import Job
from anabranch.messages import (
    Conversation,
    Message,
    OutputMessage,
    OutputSchema,
    Request,
    Usage,
)
from anabranch.store import Durable
from anabranch.tools import Tool, Toolkit, tool

V = TypeVar("V")


# --- jobs: declared fields make the constructor


class Shout(Job[str]):
    text: str
    times: int = 1
    marks: list[str] = field(default_factory=lambda: ["!"])

    async def task(self) -> str:
        assert_type(self.text, str)
        assert_type(self.marks, list[str])
        return self.text.upper() * self.times + "".join(self.marks)


class Louder(Shout):
    extra: bool = False


class Own(Job[int]):
    """A job with its own constructor."""

    def __init__(self, first: int, *, second: int = 0) -> None:
        self.total = first + second

    async def task(self) -> int:
        return self.total


class Echo(Job[V], Generic[V]):
    value: V

    async def task(self) -> V:
        return self.value


class Returns(Job[str]):
    """A job whose body returns a node."""

    async def task(self) -> Any:
        return Shout("later")


async def constructors() -> None:
    assert_type(Shout("hi"), Shout)
    assert_type(Shout(text="hi", times=2, marks=[]), Shout)
    assert_type(Louder("hi", 1, [], True), Louder)
    assert_type(Own(1, second=2), Own)
    assert_type(Echo(5), Echo[int])


# --- awaiting gives the result's type


class Awaits(Job[None]):
    async def task(self) -> None:
        assert_type(await Shout("hi"), str)
        assert_type(await Own(1), int)
        assert_type(await Echo(b"x"), bytes)
        assert_type(await upper("hi"), str)
        assert_type(await Tools().measure("hi", unit="m"), float)


# --- putting keeps the node's own type


class Puts(Job[None]):
    async def task(self) -> None:
        job = self.put_job(Shout("hi"), priority=1, timeout=2.0, retry=Retry(attempts=2))
        assert_type(job, Shout)
        assert_type(job.text, str)
        assert_type(await job, str)
        call = self.call_handler(upper("hi"), policy="collect", claim=True, parent=self.commander)
        assert_type(call, Handler[str])
        assert_type(await call, str)
        self.put_job(Own(1), retry=Restart(max=3, within=60), policy=quorum(2))


async def starts(commander: Commander) -> None:
    async with commander.start(Shout("hi"), timeout=5) as started:
        assert_type(started, Started[str])
        async for agent, text in started.text():
            assert_type((agent, text), tuple[str, str])
        assert_type(await started, str)
    assert_type(await commander.start(upper("hi")), str)
    assert_type(commander.start(Own(1)).node, Node[int])


async def settles() -> None:
    jobs = [Shout("a"), Shout("b")]
    found = await settle(*jobs, at_least=1, at_once=5, retry=Retry(attempts=2), timeout=60)
    assert_type(found, list[str | Exception])


# --- a class sets defaults for its jobs


class Feed(Job[str], retry=Retry(attempts=3, on=OSError), timeout=10):
    url: str


class Slow(Feed, policy="collect"):
    timeout = 60
    retry = Restart(max=3)


class Timed(Durable[float], timeout=1.5):
    timeout: float = 10  # a field, as its annotation says


assert_type(run(Slow("https://example.org")), str)
assert_type(Timed(3).timeout, float)


# --- handlers: functions and methods keep their parameters


@handler
async def upper(node: Handler[str], text: str, times: int = 1) -> str:
    return text.upper() * times


@handler
async def plain(node: Node[Any], *parts: str, sep: str = " ") -> list[str]:
    assert_type(node.commander, Commander)
    return [sep.join(parts)]


@handler
async def nothing(node: Node[None]) -> None:
    return None


class Tools:
    scale = 2.0

    @handler
    async def measure(self, node: Handler[float], text: str, *, unit: str) -> float:
        assert_type(self.scale, float)
        return self.scale * len(text) * len(unit)


class WithHandlers(Job[int]):
    @handler
    async def count(self, node: Handler[int], text: str) -> int:
        return len(text)

    async def task(self) -> int:
        assert_type(self.count("four"), Handler[int])
        return await self.count("four")


def handlers() -> None:
    assert_type(upper("hi"), Handler[str])
    assert_type(upper("hi", times=3), Handler[str])
    assert_type(plain("a", "b", sep=","), Handler[list[str]])
    assert_type(nothing(), Handler[None])
    assert_type(Tools().measure("hi", unit="m"), Handler[float])
    start: Callable[[str], Handler[str]] = upper
    start("hi")


# --- the node's own names


def names(node: Shout) -> None:
    assert_type(node.result, str | None)
    assert_type(node.error, BaseException | None)
    assert_type(node.state, NodeState)
    assert_type(node.path, str)
    assert_type(node.parent, Node[Any] | None)
    assert_type(node.children, tuple[Node[Any], ...])
    assert_type(current_node(), Node[Any])
    assert_type(node.at_end(print).at_exception(recover).at_done(later), Shout)


def recover(node: Shout) -> None:
    node.recover("plan b")


async def later(node: Shout) -> None:
    node.put_job(Shout("next"), parent=node.commander)


# --- the commander


def divide(number: int, by: int) -> tuple[int, int]:
    return divmod(number, by)


async def application() -> None:
    async with Commander(max_concurrency=3, policy="fail_fast", slow_after=None) as commander:
        assert_type(await commander.run(Shout("hi")), str)
        assert_type(await commander.run(upper("hi")), str)
        assert_type(commander.put_job(Shout("hi")), Shout)
        future = commander.put_job_threadsafe(Own(1))
        assert_type(future, concurrent.futures.Future[int])
        other = commander.call_handler_threadsafe(upper("hi"))
        assert_type(other, concurrent.futures.Future[str])
        assert_type(await commander.in_thread(divide, 7, 2), tuple[int, int])
        assert_type(await commander.drain(1.0), bool)
        async for event in commander.events(["text", "failed"]):
            assert_type(event, Event)
            assert_type((event.node_name, event.key), tuple[str, str | None])
        assert_type(commander.usage(), dict[str, Usage])


assert_type(run(Shout("hi")), str)
assert_type(run(upper("hi"), auto_exit=False, max_concurrency=1, timeout=5), str)


# --- agents: what a parser makes is what an answer's `output` is


class Weather(BaseModel):
    degrees: int


@prompt
def greeting(name: str) -> None:
    """Greet {name}."""


class Fault(BaseModel):
    why: str


class Twice(Agent[Weather]):
    def __init__(self, inner: Agent[Weather]) -> None:
        super().__init__()
        self.inner = inner

    async def forward(
        self, message: AgentMessage, session_id: int | str = 0
    ) -> AgentMessage[Weather]:
        return await self.inner(
            await self.inner(message, session_id=session_id), session_id=session_id
        )


async def asks(backend: Backend) -> None:
    agent = Agent(backend, output_format=JsonParser(Weather))
    assert_type(agent, Agent[Weather])
    assert_type((await agent("?", stop=["x"])).output, Weather)
    assert_type((await Twice(agent)("?")).output.degrees, int)
    assert_type((await Agent(backend)("?")).output, str)
    assert_type(agent.run_sync("?"), AgentMessage[Weather])
    async with Commander() as commander:
        assert_type(await commander.run(agent.call("?")), AgentMessage[Weather])
    async for message in agent.stream("?"):
        assert_type(message, AgentMessage)
    async with agent.stream("?") as stream:
        assert_type(stream, AgentStream[Weather])
        async for text in stream.text():
            assert_type(text, str)
        async for weather in agent.stream("?").output():
            assert_type(weather, Weather)
        assert_type((await stream.answer()).output, Weather)
    typed = Agent(backend, output_type=Weather)
    assert_type(typed, Agent[Weather])
    assert_type((await typed("?")).output, Weather)
    assert_type(typed.run_sync("?").output, Weather)
    assert_type((await typed.stream("?").answer()).output, Weather)
    assert_type((await Agent(backend, output_type=list[Weather])("?")).output, list[Weather])
    assert_type((await Agent(backend, output_type=OutputSchema[int](int))("?")).output, int)
    union: Agent[Weather | Fault] = Agent(backend, output_type=Weather | Fault)
    assert_type((await union("?")).output, Weather | Fault)
    words: Agent[Literal["yes", "no"]] = Agent(backend, output_type=Literal["yes", "no"])
    assert_type((await words("?")).output, Literal["yes", "no"])
    bounded: Agent[int] = Agent(backend, output_type=Annotated[int, "bounded"])
    assert_type((await bounded("?")).output, int)

    ask = greeting.with_backend(backend, output_type=Weather)
    assert_type(await ask("Ada"), Weather)
    assert_type(await greeting.with_backend(backend)("Ada"), str)

    @typed.output_validator
    def mild(weather: Weather) -> Weather:
        return weather

    @typed.output_validator
    async def known(weather: Weather, ctx: Context[str]) -> Weather:
        return weather

    assert_type(mild(Weather(degrees=1)), Weather)
    assert_type(await known(Weather(degrees=1), Context("x")), Weather)
    either: JsonParser[Weather | Fault] = JsonParser(Weather | Fault, retries=1)
    assert_type((await Agent(backend, output_format=either)("?")).output, Weather | Fault)
    assert_type(JsonParser(Weather | None), JsonParser[Any])
    assert_type(JsonParser(list[Weather]), JsonParser[list[Weather]])


async def check_weather(weather: Weather) -> Weather:
    return weather


async def typed_output(backend: Backend, request: Request, conversation: Conversation) -> None:
    assert_type(await backend.complete(request), Message)
    message = await backend.complete(request, output_type=Weather, output_retries=1)
    assert_type(message, OutputMessage[Weather])
    assert_type(message.output, Weather)
    assert_type((await backend.complete(request, output_type=list[Weather])).output, list[Weather])
    assert_type((await backend.complete(request, output_type=int)).output, int)
    either: OutputMessage[Weather | Fault] = await backend.complete(
        request, output_type=Weather | Fault, output_mode="tool"
    )
    assert_type(either.output, Weather | Fault)
    assert_type(OutputSchema(Weather), OutputSchema[Weather])

    assert_type(respond(backend, conversation), Handler[Message])
    assert_type(await respond(backend, conversation, temperature=0), Message)
    answer = await respond(
        backend,
        conversation,
        output_type=Weather,
        output_mode="schema",
        output_validators=[check_weather],
        temperature=0,
    )
    assert_type(answer.output.degrees, int)


# --- tools: a method is bound as a plain one is


class Counter(Toolkit):
    """Its methods keep their types as tools."""

    total = 0

    @tool(name="count")
    async def add(self, by: int = 1) -> int:
        """Count on."""
        self.total += by
        return self.total

    @tool
    def show(self, prefix: str) -> str:
        """Show the total."""
        return f"{prefix} {self.total}"


async def call_tools_of_a_toolkit(counter: Counter) -> None:
    assert_type(await counter.add(by=2), int)
    assert_type(counter.show("total:"), str)
    assert_type(await Counter.add(counter, 3), int)
    bound: Tool[..., Any] = counter.show
    assert_type(bound.name, str)


class Scales(Toolkit):
    """Its static and class methods keep their types, too."""

    @staticmethod
    @tool
    def double(x: int) -> int:
        """Return twice the number."""
        return 2 * x

    @classmethod
    @tool
    def label(cls, x: int) -> str:
        """Return the label."""
        return f"{cls.__name__} {x}"


def call_static_and_class_methods(scales: Scales) -> None:
    assert_type(scales.double(2), int)
    assert_type(Scales.double(x=2), int)
    assert_type(scales.label(2), str)
    assert_type(Scales.label(x=2), str)
    assert_type(scales.double.name, str)


# --- the context of a call


class User:
    name: str = ""


@tool
def list_orders(ctx: Context[User], limit: int = 10) -> list[str]:
    assert_type(ctx.value, User)
    assert_type(ctx.value.name, str)
    assert_type(ctx.session_id, int | str | None)
    assert_type(ctx.agent, str)
    assert_type(ctx.node, Node[Any])
    return [ctx.value.name] * limit


async def contexts(commander: Commander, agent: Agent, user: User) -> None:
    assert_type(list_orders(Context(user)), list[str])
    assert_type(list_orders(ctx=Context(user), limit=1), list[str])
    assert_type(current_context(), Context[object])
    assert_type(current_context(User).value, User)
    await agent("?", context=user)
    await commander.run(agent.call("?", context=user), context=user)
    commander.put_job(Shout("hi"), context=user)
    commander.put_job_threadsafe(Shout("hi"), context=user)
    run(Shout("hi"), context=user)
    assert_type(await commander.start(Shout("hi"), context=user), str)


def of_context(ctx: Context[User]) -> str:
    return ctx.value.name


async def later_of_context(ctx: Context[User]) -> str:
    return ctx.value.name


def instructions(backend: Backend) -> None:
    assert_type(Agent(backend, of_context), Agent[str])
    assert_type(Agent(backend, instructions=later_of_context), Agent[str])
    assert_type(Agent(backend, lambda ctx: f"Help {ctx.value.name}."), Agent[str])
    assert_type(Agent(backend, lambda: "Be brief."), Agent[str])
