"""The context of a node goes with it to another machine."""

from __future__ import annotations

import pytest
from support.ray_context import Locked, Read, Reader, Seven, User

from anabranch import Commander, ContextError, handler
from anabranch.agents import AgentMessage
from anabranch.cluster import Ray, remote

pytestmark = pytest.mark.usefixtures("nodes")

LEFT = Ray(num_cpus=0, resources={"left": 0.01})


async def test_a_remote_job_reads_its_context() -> None:
    async with Commander() as commander:
        assert await commander.run(Read(), on=LEFT, context=User("ada")) == "ada"
        assert await commander.run(Read(), on=LEFT, context=User("eve")) == "eve"
        with pytest.raises(ContextError, match="no context was given"):
            await commander.run(Read(), on=LEFT)


async def test_a_context_that_cannot_be_sent_is_an_error_where_it_is_read() -> None:
    async with Commander() as commander:
        assert await commander.run(Seven(), on=LEFT, context=Locked("ada")) == 7
        with pytest.raises(ContextError, match=r"the context, a Locked, cannot be sent"):
            await commander.run(Read(), on=LEFT, context=Locked("ada"))


async def test_a_remote_agent_reads_the_context_of_each_call() -> None:
    async with remote(Reader, "reader", on=LEFT) as reader, Commander() as commander:

        @handler
        async def ask(self: object) -> str:
            answer = await reader.receive(AgentMessage(content="who?", sender="user"))
            return str(answer.message.content if answer.message else "")

        assert await commander.run(ask(), context=User("ada")) == "ada"
        assert await commander.run(ask(), context=User("eve")) == "eve"
        with pytest.raises(ContextError):
            await commander.run(ask())
