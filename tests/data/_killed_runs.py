"""Programs whose processes were killed, and the journals, recording and cassette that they left.

    python tests/data/journals/make.py [NAME ...]       # writes tests/data/journals/NAME.sql

Each program is killed with SIGKILL at one place (`stop`). Later releases resume the journals
(`test_killed_runs.py`). So names that a journal stores, such as those of this module's classes and
functions, do not change, and released files are not made again.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

from anabranch import Agent, Commander, Message, Retry, StreamInterrupted, tool
from anabranch.agents import ConversableAgent, GroupChat, Orchestrator, State
from anabranch.agents.conversation import round_robin
from anabranch.backends import Backend, ModelBackend, connect
from anabranch.handlers import handler, respond
from anabranch.messages import Delta, Request, ToolCallDelta, Usage
from anabranch.store import Done, Durable, Journal, Live, NotDone, live
from anabranch.tracing import record

__all__ = [
    "DID",
    "FOLDER",
    "JOBS",
    "KILLED",
    "cassette",
    "chat_partner",
    "load",
    "notes",
    "recording",
    "writer",
]

FOLDER = Path(__file__).parent / "journals"
DID: list[str] = []  # the effects and the requests to models in this process
STOPS: list[str] = []  # the place where this process is killed
SAFE_SECONDS = 0.2  # by then all earlier writes are on the disk


def did(text: str) -> str:
    DID.append(text)
    return text


async def stop(place: str) -> None:
    """Kill this process, if `place` is chosen."""
    if place in STOPS:
        await asyncio.sleep(SAFE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)


def stop_later(place: str) -> None:
    """Kill this process soon, if `place` is chosen. By then all its tasks wait."""
    if place in STOPS:
        loop = asyncio.get_running_loop()
        loop.call_later(2 * SAFE_SECONDS, os.kill, os.getpid(), signal.SIGKILL)


def text_of(message: Message) -> str:
    return f"{message.role}: {message.content}"


# --- the outside world


def load(what: str) -> list[str]:
    did(f"load {what}")
    if what in STOPS:
        time.sleep(SAFE_SECONDS)
        os.kill(os.getpid(), signal.SIGKILL)
    return [what, "é 😀"]


async def was_sent(text: str, *, effect_key: str) -> Done | NotDone:
    did(f"was {text} sent?")
    return NotDone() if "undone" in text else Done(f"sent {text}")


@tool(reconcile=was_sent, reconcile_after=0)
async def send(text: str) -> str:
    """Send a mail."""
    await stop(f"send {text}")
    return did(f"sent {text}")


@tool(approve=True, effect="keyed")
async def refund(cents: int) -> str:
    """Pay back."""
    return did(f"refund {cents}")


class Model(ModelBackend):
    """A model that sends a mail if asked to, then reports the number of messages in its request."""

    async def attempt(self, request: Request) -> AsyncGenerator[Delta, None]:
        read, last = len(request.messages), request.messages[-1]
        did(f"asked with {read}")
        usage = Usage(input_tokens=read, output_tokens=1)
        for name in ("send", "refund"):
            if last.role == "user" and name in str(last.content):
                arguments = '{"text": "a mail"}' if name == "send" else '{"cents": 500}'
                yield Delta("I do it.")
                call = ToolCallDelta(index=0, id="c", name=name, arguments=arguments)
                yield Delta(tool_calls=[call])
                yield Delta(usage=usage, finish_reason="tool_calls")
                return
        yield Delta(f"After {read}: ")
        await stop(f"reply {read}")
        yield Delta("that is all.")
        yield Delta(usage=usage, finish_reason="stop")


MODEL = Model("m")


# --- durable jobs


class Steps(Durable[list[Any]]):
    """Loads two things and adds, each in its own step or job."""

    async def task(self) -> list[Any]:
        first = await self.durable.step(load, "first")
        number = await self.put_job(Adds((1, 2)))
        second = await self.durable.step(load, "second")
        return [first, number, second, self.durable.random() < 1]


class Adds(Durable[int]):
    numbers: tuple[int, ...]

    async def task(self) -> int:
        did(f"add {self.numbers}")
        return sum(self.numbers)


class Sends(Durable[list[str]]):
    """Sends two mails."""

    text: str

    async def task(self) -> list[str]:
        sent = [await self.durable.call(send, "first")]
        await stop("between")
        sent.append(await self.durable.call(send, self.text))
        await stop("after")
        return [*sent, did("over")]


class Responds(Durable[list[str]]):
    """Lets a model answer, which calls a tool."""

    question: str
    backend: Live[Backend] = live()

    async def task(self) -> list[str]:
        talk = self.durable.conversation("talk", "Be short.")
        talk.add(self.question)
        stop_later(self.question)
        await self.call_handler(respond(self.backend, talk, [send, refund]))
        return [text_of(each) for each in talk]


class Groups(Durable[list[str]]):
    """Two agents answer in turn."""

    backend: Live[Backend] = live()

    async def task(self) -> list[str]:
        members = [ConversableAgent(name, self.backend, f"You are {name}.") for name in "ab"]
        team = GroupChat("team", members, speaker=round_robin, max_turns=4)
        await ConversableAgent("user").initiate_chat(team, "Go.")
        return [f"{each.sender}: {each.text}" for each in team.talks["user"].messages]


class Sleeps(Durable[str]):
    async def task(self) -> str:
        loaded = await self.durable.step(load, "before")
        stop_later("sleep")
        await self.durable.sleep(days=2)
        return f"{loaded[0]} and {did('after')}"


class Retries(Durable[str]):
    """The second attempt begins after a pause."""

    async def task(self) -> str:
        retry = Retry(attempts=3, on=KeyError, backoff=50, factor=1, jitter=0)
        return await self.call_handler(tries(self.durable), retry=retry)


@handler
async def tries(node: Any, durable: Any) -> str:
    first = await durable.call(send, "once")
    if not STOPS:
        return f"{first}, {did('again')}"
    stop_later("pause")
    raise KeyError(first)


class Waits(Durable[str]):
    async def task(self) -> str:
        loaded = await self.durable.step(load, "before")
        stop_later("signal")
        return f"{loaded[0]} {await self.durable.signal('go', str)}"


class Orchestrates(Durable[list[str]]):
    """Runs two agents in the order of a function; the first one sends a mail."""

    backend: Live[Backend] = live()

    async def task(self) -> list[str]:
        def next_agent(obs: str | None, state: State) -> str | None:
            return {None: "writer", "writer": "critic"}.get(state.agent)

        agents = [
            Agent(self.backend, name="writer", tools=[send]),
            Agent(self.backend, "Judge it.", name="critic"),
        ]
        orchestrator = Orchestrator(agents, next_agent, State())
        answer = await orchestrator.forward("send a mail")
        return [str(answer), orchestrator.state.model_dump_json()]


JOBS: dict[str, Callable[[], Durable[Any]]] = {
    "step": Steps,
    "before_a_call": lambda: Sends("second"),
    "call_done": lambda: Sends("second"),
    "call_undone": lambda: Sends("undone"),
    "after_a_call": lambda: Sends("second"),
    "respond": lambda: Responds("send it"),
    "approval": lambda: Responds("refund it"),
    "group": Groups,
    "timer": Sleeps,
    "retry": Retries,
    "signal": Waits,
    "orchestrator": Orchestrates,
}
# The place where each program is killed.
KILLED = {
    "step": "second",
    "before_a_call": "between",
    "call_done": "send second",
    "call_undone": "send undone",
    "after_a_call": "after",
    "respond": "reply 4",
    "approval": "refund it",
    "group": "reply 4",
    "timer": "sleep",
    "retry": "pause",
    "signal": "signal",
    "orchestrator": "reply 2",
    "agent": "reply 6",
    "chat": "reply 6",
    "served": "reply 3",
}


async def run_job(name: str, path: Path) -> None:
    async with Journal(path) as journal:
        given = {"backend": MODEL} if "backend" in JOBS[name]()._node_live() else {}
        await journal.run(JOBS[name](), run_id=name, live=given)


# --- sessions and servers


def notes(journal: Any) -> Agent[Any]:
    return Agent(MODEL, "Be kind.", name="notes", tools=[send], journal=journal)


async def run_agent(path: Path) -> None:
    async with Journal(path) as journal:
        for question in ("send it", "And now?"):
            await notes(journal)(question, session_id="s")


def chat_partner(sessions: Any, info: Any) -> Any:
    from anabranch.cli.chat._agent_partner import AgentPartner

    agent = Agent(MODEL, "Be kind.", name="chat", tools=[send])
    return AgentPartner(agent, sessions, info)


async def run_chat(path: Path) -> None:
    from anabranch.cli.chat._sessions import open_sessions
    from anabranch.handlers import View

    async with open_sessions(path) as sessions:
        partner = chat_partner(sessions, sessions.new(model="scripted"))
        for question in ("send it", "And now?"):
            said = Message(role="user", content=question)
            async with Commander() as commander:
                await commander.run(partner.answer(said, View()))


def writer() -> Agent[Any]:
    return Agent(MODEL, name="writer", tools=[send])


async def run_served(path: Path) -> None:
    from support.page_client import serve_in_process

    async with serve_in_process(writer(), journal=path) as client:
        await client.post("/runs", json={"model": "writer", "input": "send it"})
        await asyncio.Event().wait()


PROGRAMS: dict[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
    "agent": run_agent,
    "chat": run_chat,
    "served": run_served,
}


# --- a recording and a cassette


@handler
async def hangs(node: Any) -> None:
    await asyncio.Event().wait()


@handler
async def fails(node: Any) -> None:
    raise StreamInterrupted("broken off")


async def recording(file: Path) -> None:
    """Record an agent with a tool, a failure and a cancel."""
    async with Commander() as commander, record(commander, file, content=True):
        await writer()("send it")
        node = commander.call_handler(hangs())
        await asyncio.sleep(0)
        node.cancel("enough")
        for each in (node, commander.call_handler(fails())):
            with suppress(Exception):
                await each


async def cassette(file: Path, **options: Any) -> list[str]:
    """Ask an agent, a failing model and an embedding model through a cassette."""
    backend = connect(f"cassette:{file}", **options)
    said = (await Agent(backend, name="writer", tools=[send])("send it")).content
    failed: list[str] = []
    for _ in range(2):
        try:
            await backend.complete(Request([Message(role="user", content="fail")]))
        except Exception as error:
            failed.append(f"{type(error).__name__} {error.__dict__.get('retry_after')}: {error}")
    (vector,) = await backend.embed(["a text"])
    return [said, *failed, f"{len(vector)} {sum(vector):.3f}"]


def main(name: str, path: str) -> None:
    """Run a program. The process is killed before the program ends."""
    STOPS.append(KILLED[name])
    program = PROGRAMS.get(name) or (lambda path: run_job(name, path))
    asyncio.run(program(Path(path)))
    raise SystemExit(f"{name} was not killed at {KILLED[name]}")
