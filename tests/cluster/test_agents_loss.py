"""The loss of an agent's process, machine or caller is one clear error, and nothing hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.ray_agents import Alice, Bob, Held
from support.scripted_server import Reply as ServerReply
from support.scripted_server import ScriptedServer, Step, chunk
from support.waiting import wait_until

from anabranch import Commander, WorkerLost
from anabranch.agents import Chat, Directory, UserProxyAgent
from anabranch.cluster import ActorNotFound, Ray, RemoteAgent, find, remote
from anabranch.commander import ConfigurationError

pytestmark = pytest.mark.usefixtures("nodes")


LEFT = Ray(num_cpus=0, resources={"left": 1})


def a_user(**options: Any) -> UserProxyAgent:
    return UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0, **options)


async def kill(agent: RemoteAgent) -> None:
    """Kill the process of an agent, as the system does when memory is short."""
    os.kill(await agent.invoke("where"), signal.SIGKILL)


class Loss:
    """Removes a machine, or kills a process, after the first half of a reply."""

    def __init__(self, lose: Callable[[], Any]) -> None:
        self.lose = lose
        self.heard: list[tuple[str, Any]] = []
        self.task: asyncio.Task[Any] | None = None

    def __call__(self, part: Any) -> None:
        self.heard.append((part.stream_state, part.content))
        if part.stream_state == "begin":
            self.task = asyncio.ensure_future(self.lose())


HALF = [("end", "Well?"), ("begin", "Half of it"), ("failed", "Half of it")]


async def test_a_process_killed_in_the_middle_of_a_reply_is_lost(tmp_path: Path) -> None:
    """The listener gets the first half and its failure; the agent's name is free again."""
    async with asyncio.timeout(60):
        bob = await remote(Bob, "bob", Held(tmp_path), introduces=False)
        loss = Loss(lambda: kill(bob))
        with pytest.raises(WorkerLost, match="went away") as lost:
            await a_user().send("Well?", bob, listener=loss)
        assert loss.heard == HALF
        assert "while bob answered user" in lost.value.__notes__
        await asyncio.wait([loss.task])
        with pytest.raises((WorkerLost, ActorNotFound)):
            await a_user().send("Well?", bob)
        await bob.close()
        async with remote(Bob, "bob") as bob:
            assert (await a_user().send("Well?", bob)).text == "I am bob."


async def test_a_machine_that_goes_away_in_the_middle_of_a_reply_is_lost(
    nodes: Any, tmp_path: Path
) -> None:
    """As for a lost process; other agents continue."""
    node = nodes.add("doomed")
    async with asyncio.timeout(60):
        doomed = Ray(num_cpus=0, resources={"doomed": 1})
        bob = await remote(Bob, "bob", Held(tmp_path), introduces=False, on=doomed)
        async with remote(Bob, "carol", on=LEFT) as carol, Commander() as commander:
            loss = Loss(lambda: asyncio.to_thread(nodes.remove, node))
            with pytest.raises(WorkerLost):
                await commander.run(Chat(a_user(), bob, "Well?", listener=loss))
            assert loss.heard == HALF
            assert (await a_user().send("Well?", carol)).text == "I am carol."
        await asyncio.wait([loss.task])
        await asyncio.to_thread(nodes.cluster.wait_for_nodes)  # until Ray places nothing there
        await bob.close()


async def test_who_asks_a_lost_agent_from_there_is_told(tmp_path: Path) -> None:
    """A remote agent that waits for the lost one fails, and the failure is raised here."""
    directory = Directory()
    async with asyncio.timeout(60), remote(Alice, "alice", directory=directory):
        bob = await remote(Bob, "bob", Held(tmp_path), introduces=False, directory=directory)
        loss = Loss(lambda: kill(bob))
        with pytest.raises(WorkerLost):
            await a_user(directory=directory).send("Well?", "alice", listener=loss)
        await asyncio.wait([loss.task])
        await bob.close()
        assert "bob" not in directory


async def test_closing_an_agent_ends_what_it_says(tmp_path: Path) -> None:
    """Its model stops, and the listener gets the end."""
    async with asyncio.timeout(60):
        bob = await remote(Bob, "bob", Held(tmp_path), introduces=False)
        loss = Loss(bob.close)
        with pytest.raises(WorkerLost):
            await a_user().send("Well?", bob, listener=loss)
        await asyncio.wait([loss.task])
        assert (tmp_path / "ended").exists()
        await bob.close()


DRIVER = """
import asyncio, os, sys
from anabranch import connect
from anabranch.agents import ConversableAgent, UserProxyAgent
from anabranch.cluster import Ray, remote

async def main(address, server):
    model = connect(server, model="tiny")
    on = Ray(num_cpus=0, address=address)
    stays = await remote(ConversableAgent, "stays", model, on=on, detached=True, lease=2)
    await remote(ConversableAgent, "goes", model, on=on)
    user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
    await user.send("Well?", stays)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_driver_that_is_killed_takes_its_agents_with_it(nodes: Any) -> None:
    """Except the detached one, whose model stops after the lease."""
    script = ServerReply([chunk({"content": "Hel"}), Step.HANG])
    async with asyncio.timeout(90), ScriptedServer(script) as server:
        driver = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DRIVER, nodes.address, server.url
        )
        await server.asked.wait()
        assert (await find("goes")).host
        driver.kill()
        await driver.wait()
        await server.gone.wait()
        stays = await find("stays")
        assert [m.content for m in (await stays.invoke("chat_messages"))["user"]] == ["Well?"]
        await stays.close()
        with pytest.raises((ActorNotFound, WorkerLost)):
            while True:
                await (await find("goes")).invoke("name")


HEADLESS = """
import asyncio, pathlib, sys
from support.ray_agents import Held
from anabranch import WorkerLost
from anabranch.agents import ConversableAgent, UserProxyAgent
from anabranch.cluster import Ray, remote

async def main(address, folder):
    model, on = Held(pathlib.Path(folder)), Ray(num_cpus=0, address=address)
    async with remote(ConversableAgent, "bob", model, on=on) as bob:
        user = UserProxyAgent(human_input_mode="NEVER", max_consecutive_auto_reply=0)
        for _ in range(2):
            try:
                await user.send("Well?", bob)
            except Exception as error:
                print(type(error).__name__, error, flush=True)
    print("left the block", flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


async def test_a_head_that_goes_away_is_the_loss_of_its_agents(tmp_path: Path) -> None:
    """Running and later calls fail at once; closing the agents is harmless."""
    from ray.cluster_utils import Cluster

    small: Any = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
    )
    try:
        async with asyncio.timeout(120):
            program = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-c", HEADLESS, small.address, str(tmp_path)),
                stdout=asyncio.subprocess.PIPE,
            )
            await wait_until((tmp_path / "pid").exists)
            small.head_node.all_processes["gcs_server"][0].process.kill()
            said, _ = await program.communicate()
        waited, asked, left = said.decode().splitlines()
        assert waited.startswith("WorkerLost")
        assert "the head of the Ray cluster at" in waited
        assert asked.startswith(("WorkerLost", "ConfigurationError"))
        assert (left, program.returncode) == ("left the block", 0)
    finally:
        small.shutdown()


async def test_a_name_is_taken_once() -> None:
    """Until its agent is closed."""
    async with asyncio.timeout(60), remote(Bob, "bob"):
        with pytest.raises(ConfigurationError, match="'bob' already"):
            await remote(Bob, "bob")


async def test_what_no_machine_has_is_refused_at_once() -> None:
    """With the resources that exist."""
    async with asyncio.timeout(10):
        with pytest.raises(ConfigurationError, match="3 GPU"):
            await remote(Bob, "bob", on=Ray(num_gpus=3))


async def test_a_class_that_cannot_be_made_there_says_so() -> None:
    """Its own error is raised, and no actor is left."""
    async with asyncio.timeout(60):
        with pytest.raises(ValueError, match="human_input_mode"):
            await remote(Bob, "bob", human_input_mode="SOMETIMES")
        async with remote(Bob, "bob"):
            pass


async def test_a_cancelled_start_leaves_nothing() -> None:
    """The name is free."""
    async with asyncio.timeout(60):
        for _ in range(2):
            starting = asyncio.ensure_future(remote(Bob, "bob").__aenter__())
            await asyncio.wait([starting], timeout=0.3)
            starting.cancel()
            await asyncio.wait([starting])
            if not starting.cancelled():
                await starting.result().close()
        async with remote(Bob, "bob"):
            pass
