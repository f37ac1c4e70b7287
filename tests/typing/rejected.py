"""Code that type checkers must report: each marked line, and no other."""

# pyright: strict

from __future__ import annotations

from typing import Any

from anabranch.agents import Agent
from anabranch.commander import Commander, Node, Retry, run
from anabranch.handlers import Handler, handler
from anabranch.jobs import Job


class Shout(Job[str]):
    text: str
    times: int = 1

    async def task(self) -> str:
        return self.text.upper() * self.times


class Wrong(Job[int]):
    async def task(self) -> str:  # error: not the result that the class declares
        return "text"


@handler
async def upper(node: Handler[str], text: str, *, times: int = 1) -> str:
    return text.upper() * times


class Tools:
    @handler
    async def measure(self, node: Handler[float], text: str) -> float:
        return float(len(text))


@handler  # error: not an async function
def not_async(node: Node[Any], text: str) -> str:
    return text


async def body(node: Node[Any], commander: Commander) -> None:
    # constructors
    Shout()  # error: a field is missing
    Shout(1)  # error: the wrong type
    Shout("hi", "twice")  # error: the wrong type
    Shout("hi", loud=True)  # error: no such field
    # handlers
    upper()  # error: an argument is missing
    upper(1)  # error: the wrong type
    upper("hi", 2)  # error: keyword only
    upper("hi", loud=True)  # error: no such parameter
    Tools().measure()  # error: an argument is missing
    Tools().measure(1)  # error: the wrong type
    # results
    number: int = await Shout("hi")  # error: it is a str
    number = await upper("hi")  # error: it is a str
    number = await commander.run(Shout("hi"))  # error: it is a str
    number = run(upper("hi"))  # error: it is a str
    number = commander.put_job_threadsafe(Shout("hi")).result()  # error: it is a str
    print(number)
    # options
    node.put_job(Shout("hi"), policy="fail_slow")  # error: no such policy
    node.put_job(Shout("hi"), timeout="1")  # error: seconds are a number
    node.put_job(Shout("hi"), retry=3)  # error: not a Retry
    node.call_handler(upper("hi"), priority=1)  # error, except for ty: only jobs have one
    node.call_handler(upper)  # error: not called yet
    Retry(3)  # error: keyword only
    Commander(10)  # error: keyword only
    # callbacks
    node.at_end("print")  # error: not callable
    node.result = 1  # error: read only
    Shout("hi").text = 1  # error: the wrong type
    # agents
    agent = Agent(output_type=int)
    number = (await agent("?")).output.upper()  # error: it is an int
    Agent(output_format=int)  # error: a type is an output_type
    Agent(output_mode="json")  # error: no such mode

    @agent.output_validator  # error: it takes another type
    def check(output: str) -> str:
        return output
