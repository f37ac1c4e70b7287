"""When Python kernels start and end, and which sessions share them (Linux, to count processes)."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.executor_agent import ExecutorAgent, call_message
from support.leaks import child_processes, find_leaks, has_exited
from support.waiting import wait_until

from anabranch import Agent, AgentMessage, Commander, Message, ToolCall, ToolError
from anabranch.agents import StepAgent, ToolExecutor
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tools import PythonKernel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")

NEW = "[a new session, earlier variables are lost: "


def doing(code: str) -> AgentMessage:
    return call_message("python", code=code)


def obedient() -> ScriptedBackend:
    """A model that runs the user's code, and replies with the result."""

    def reply(request: Request) -> Message | str:
        last = request.messages[-1]
        if last.role == "tool":
            return last.content or ""
        call = ToolCall(id="1", name="python", arguments={"code": last.content})
        return Message(role="assistant", tool_calls=[call])

    return ScriptedBackend(otherwise=reply)


async def test_sessions_of_one_agent_run_at_once_and_share_nothing():
    """Each session has separate variables and output."""
    code = "n = {}\nimport time\nfor _ in range(5): print(n); time.sleep(0.01)"
    async with Agent(obedient(), tools=[PythonKernel()]) as agent:
        said = await asyncio.gather(*(agent(code.format(n), session_id=n) for n in range(2)))
        assert [each.content for each in said] == ["0\n0\n0\n0\n0", "1\n1\n1\n1\n1"]
        said = await asyncio.gather(*(agent("n", session_id=n) for n in range(2)))
        assert [each.content for each in said] == ["0", "1"]


async def test_a_call_that_names_no_session_leaves_no_kernel():
    """Its variables and its memory are used for that call only."""
    before, agent = child_processes(), Agent(obedient(), tools=[PythonKernel()])
    await agent("x = 1")
    assert "NameError" in (await agent("x")).content
    assert not find_leaks(child_processes, before)


def test_a_session_outlives_calls_commanders_and_loops():
    """With `run_sync`, within one commander, under several, and in another thread's loop."""
    agent = Agent(obedient(), tools=[PythonKernel()])

    async def in_one_commander() -> list[str]:
        async with Commander():
            return [(await agent("x += 1; x", session_id=1)).content for _ in range(2)]

    agent.run_sync("x = 1", session_id=1)
    assert agent.run_sync("x", session_id=1).content == "1"
    assert asyncio.run(in_one_commander()) == ["2", "3"]

    async def from_a_thread() -> str:
        answer = await asyncio.to_thread(agent.run_sync, "x", session_id=1)
        return answer.content

    assert asyncio.run(from_a_thread()) == "3"
    asyncio.run(agent.aclose())


async def test_an_executor_keeps_sessions_and_forgets_them_when_told():
    """A second call finds the variables of its session only; `reset` deletes them."""
    async with ToolExecutor([PythonKernel()]) as executor:
        await executor(doing("x = 5"))
        assert (await executor(doing("x"))).content == "5"
        assert (await executor(doing("x"), session_id=0)).content == "5"
        assert "NameError" in (await executor(doing("x"), session_id="other")).content
        executor.reset()
        assert "NameError" in (await executor(doing("x"))).content


class Solver(ExecutorAgent):
    """Runs the code in a message."""

    tool, argument = "python", "code"


async def test_an_executor_in_an_agent_works_for_the_agents_session():
    """Unless the caller names another session."""
    async with Solver(PythonKernel()) as agent:
        await agent("x = 'a'", session_id="a")
        assert "NameError" in (await agent("x", session_id="b")).content
        assert (await agent("x", session_id="a")).content == "'a'"


async def test_the_kernel_of_a_block_is_one_for_all_and_ends_with_it():
    """Agents, sessions and the block share its variables, even if some of them are closed."""
    before = child_processes()
    async with PythonKernel(idle=0.001) as kernel:
        async with Agent(obedient(), tools=[kernel]) as agent:
            await agent("x = 7", session_id=1)
        assert (await agent("x", session_id=2)).content == "7"
        agent.reset(2)
        assert await kernel.tools[0].run({"code": "x"}) == "7"
    assert not find_leaks(child_processes, before)


@pytest.mark.parametrize("kind", ["agent", "step agent"])
async def test_a_session_that_is_reset_leaves_no_process(kind: str):
    """The other sessions keep their kernels."""

    def stepping(request: Request) -> str:
        return "done" if request.messages[-1].content != "?" else "```python\nx = 1\n```"

    before, kernel = child_processes(), PythonKernel()
    agent = (
        StepAgent(ScriptedBackend(otherwise=stepping), interpreter=kernel)
        if kind == "step agent"
        else Agent(obedient(), tools=[kernel])
    )
    await agent("?", session_id="kept")
    kept = child_processes() - before
    for session in range(3):
        await agent("?", session_id=session)
        agent.reset(session)
    assert not find_leaks(child_processes, before | kept)
    assert child_processes() & kept == kept
    await agent.aclose()
    await agent.aclose()
    assert not find_leaks(child_processes, before)


async def test_a_closed_agent_goes_on_and_its_model_is_told():
    """The next call reports that the variables in the memory are lost."""
    async with Agent(obedient(), tools=[PythonKernel()]) as agent:
        await agent("x = 1", session_id=1)
        await agent.aclose()
        said = (await agent("1", session_id=1)).content
        assert said == f"{NEW}the earlier one was closed]\n1"
        assert (await agent("1", session_id=2)).content == "1"


async def test_a_kernel_that_is_not_used_is_dropped_and_the_model_is_told():
    """After `idle` seconds."""
    before, kernel = child_processes(), PythonKernel(idle=0.2)
    executor = ToolExecutor([kernel])
    await executor(doing("x = 1"))
    await wait_until(lambda: child_processes() <= before)
    said = (await executor(doing("1"))).content
    assert said == f"{NEW}the earlier one was not used for 0.2 s]\n1"
    await executor.aclose()


async def test_of_too_many_kernels_the_one_least_lately_used_is_dropped():
    """A kernel in use is never ended: one more session waits for the end of a call."""
    before, kernel = child_processes(), PythonKernel(max_kernels=2)
    async with ToolExecutor([kernel]) as executor:
        await asyncio.gather(*(executor(doing("x = 1"), session_id=n) for n in range(2)))
        two = child_processes() - before
        await executor(doing("1"), session_id=0)
        await executor(doing("1"), session_id=2)
        assert len(child_processes() - before) == len(two)
        assert (await executor(doing("x"), session_id=0)).content == "1"
        said = (await executor(doing("1"), session_id=1)).content
        assert said == f"{NEW}only 2 may run, and others were used since]\n1"

        calls = (executor(doing("import os; os.getpid()"), session_id=n) for n in range(6))
        pids = {each.content.splitlines()[-1] for each in await asyncio.gather(*calls)}
        assert len(pids) >= 4
        await wait_until(lambda: len(child_processes() - before) <= len(two))


async def test_a_kernel_goes_with_its_agent():
    """Kernels end when their agent is collected, also if all agents share a toolkit."""
    before, kernel = child_processes(), PythonKernel()
    agent = Agent(obedient(), tools=[kernel])
    await agent("1", session_id=1)
    assert child_processes() > before
    del agent
    gc.collect()
    await wait_until(lambda: child_processes() <= before)


async def test_a_session_closed_while_its_code_runs_says_so(tmp_path: Path):
    """The call fails with a text for the model; it is not cancelled."""
    started = tmp_path / "started"
    executor = ToolExecutor([PythonKernel()])
    code = f"open({str(started)!r}, 'w').close()\nwhile True: pass"
    running = asyncio.create_task(executor(doing(code)))
    await wait_until(started.exists)
    await executor.aclose()
    assert "the Python process ended" in (await running).content


async def test_an_output_of_any_length_loses_no_variables():
    """Long texts are shortened; other large output is replaced by a note."""
    async with PythonKernel(max_output=1000) as kernel:

        async def say(code: str) -> str:
            return await kernel.tools[0].run({"code": code})

        await say("x = 1")
        printed = await say("print('a' * 80_000_000 + 'z')")
        assert printed.startswith("aaa")
        assert printed.endswith("z")
        assert "left out" in printed
        shown = await say(
            "class Large:\n"
            "    def _repr_png_(self): return bytes(80_000_000)\n"
            "    def __repr__(self): return 'a picture'\n"
            "Large()"
        )
        assert shown == "a picture\n[the rest of the result is left out: too large]"
        assert "left out" in await say("'y' * 80_000_000")
        assert await say("x") == "1"


PROGRAM = """
import asyncio, sys
from anabranch.tools import PythonKernel
kernel = PythonKernel()
code = '''
import os, subprocess, sys
one = subprocess.Popen(["sleep", "1000"])
other = subprocess.Popen(["sleep", "1000"], start_new_session=True)
away = subprocess.run(["sh", "-c", "setsid sleep 1000 >&- & echo $!"], stdout=subprocess.PIPE)
os.getpid(), os.getppid(), one.pid, other.pid, int(away.stdout)
'''
print(asyncio.run(kernel.tools[0].run({"code": code})), flush=True)
"""


@pytest.mark.parametrize("number", [0, signal.SIGHUP, signal.SIGTERM, signal.SIGKILL], ids=str)
def test_all_that_a_kernel_started_ends_with_the_program(number: int):
    """However the program ends, also processes outside of the kernel's session."""
    then = "asyncio.run(asyncio.sleep(1000))" if number else ""
    program = subprocess.Popen(
        [sys.executable, "-c", PROGRAM + then], stdout=subprocess.PIPE, cwd="/"
    )
    with program:
        assert program.stdout is not None
        pids = [int(each) for each in program.stdout.readline().strip(b"()\n").split(b",")]
        assert len(pids) == 5
        if number:
            program.send_signal(number)
    assert program.returncode == -number
    assert [pid for pid in pids if not has_exited(pid)] == []


async def test_what_a_dead_kernel_started_ends_with_it():
    """The guard ends the processes, and then itself."""
    before, executor = child_processes(), ToolExecutor([PythonKernel()])
    code = "import os, subprocess\nsubprocess.Popen(['sleep', '1000'], start_new_session=True)\n"
    said = (await executor(doing(code + "os._exit(3)"))).content
    assert "the Python process ended (status 3); all variables are lost" in said
    assert not find_leaks(child_processes, before)


async def test_no_process_is_killed_by_a_number(monkeypatch: pytest.MonkeyPatch):
    """The number of a dead kernel may be reused: only the guard, its parent, kills it."""
    killed: list[int] = []

    def kill(pid: int, number: int) -> None:
        killed.append(pid)

    for name in ("kill", "killpg"):
        monkeypatch.setattr(os, name, kill)
    executor = ToolExecutor([PythonKernel()])
    await executor(doing("import os; os._exit(1)"))
    await executor(doing("1"))
    await executor.aclose()
    assert killed == []


@pytest.mark.parametrize("begun", [False, True])
async def test_calls_that_wait_when_a_kernel_is_closed_fail_and_start_no_other(
    tmp_path: Path, begun: bool
):
    """A later call starts a new kernel."""
    kernel, running = PythonKernel(), tmp_path / "running"
    first = f"open({str(running)!r}, 'w')\nimport time; time.sleep(60)"
    before = child_processes()
    calls = [asyncio.ensure_future(kernel.run.run({"code": code})) for code in (first, "1", "2")]
    if begun:
        await wait_until(running.exists)
    else:
        await wait_until(lambda: child_processes() != before)
    await kernel.aclose()
    said = await asyncio.gather(*calls, return_exceptions=True)
    assert all(isinstance(each, ToolError) for each in said)
    assert [str(each) for each in said[1:]] == ["Python was closed before this ran"] * 2
    assert find_leaks(child_processes, before) == set()
    assert await kernel.run.run({"code": "1 + 1"}) == (
        f"{NEW}the earlier one was closed]\n2" if begun else "2"
    )
    await kernel.aclose()
