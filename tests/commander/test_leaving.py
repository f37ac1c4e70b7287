"""Leaving a tree: exit, drain, the blocking `run`, and signals."""

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from support.nodes import Idle, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, NodeClosed, run
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T14")

# --- exit


async def test_exit_takes_no_new_jobs_and_cancels_the_rest():
    """Nodes are cancelled with the reason "exit". A put at the top raises `NodeClosed`."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(hang(running))
        await running.wait()
        commander.exit()
        with pytest.raises(NodeClosed):
            commander.put_job(Idle())
        with pytest.raises(NodeCancelled) as caught:
            await node
        assert caught.value.reason == "exit"


async def test_pending_runs_return_exits_result():
    """Every pending `run` of a job or handler returns the result of the first `exit` call."""
    async with asyncio.timeout(5), Commander() as commander:
        events = [asyncio.Event(), asyncio.Event()]
        runs = [asyncio.create_task(commander.run(hang(event))) for event in events]
        for event in events:
            await event.wait()
        commander.exit("result")
        commander.exit("another")
        assert await asyncio.gather(*runs) == ["result", "result"]


async def test_exit_from_inside_a_node_ends_that_node_too():
    """The calling node is cancelled too, and its `run` returns the result of `exit`."""

    @handler
    async def leaves(node):
        node.commander.exit(3)
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = leaves()
        assert await commander.run(node) == 3
        assert node.state == "cancelled"


async def test_the_block_itself_goes_on_after_exit():
    """The code in the block continues, and the commander has completed."""
    after = []
    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(hang())
        commander.exit()
        await asyncio.sleep(0)
        after.append(True)
    assert after == [True]
    assert commander.state == "completed"


# --- drain


async def test_drain_finishes_what_runs_and_takes_nothing_new():
    """Running nodes may still put children. All of them complete."""
    release = asyncio.Event()

    @handler
    async def work(node):
        await release.wait()
        return await give("child")

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(work())
        draining = asyncio.create_task(commander.drain())
        await settle_loop()
        with pytest.raises(NodeClosed):
            commander.call_handler(give())
        release.set()
        assert await draining is True
        assert node.result == "child"


async def test_drain_cancels_what_is_left_after_its_timeout():
    """After the timeout, drain cancels the rest, waits for the clean-up and returns False."""
    cleaned = []

    @handler
    async def careful(node):
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            cleaned.append(True)

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(careful())
        await settle_loop()
        assert await commander.drain(0.01) is False
        assert cleaned == [True]
        with pytest.raises(NodeCancelled, match="drain"):
            await node


async def test_drain_of_an_empty_commander_returns_at_once():
    """An empty commander drains at once, also with a timeout of zero."""
    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.drain() is True
        assert await commander.drain(0) is True


async def test_drain_from_inside_a_node_does_not_wait_for_that_node():
    """drain waits for the other nodes only."""
    order = []

    @handler
    async def other(node):
        await asyncio.sleep(0)
        order.append("other")

    @handler
    async def drains(node):
        await node.commander.drain()
        order.append("drained")

    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(other())
        commander.call_handler(drains())
    assert order == ["other", "drained"]


# --- run


def test_run_returns_the_jobs_result_when_the_commander_is_empty():
    """`run` also waits for the rounds that the job put under other parents."""
    ended = []

    class Round(Job[str]):
        number: int

        async def task(self):
            await asyncio.sleep(0)
            ended.append(self.number)
            if self.number < 3:
                self.put_job(Round(self.number + 1), parent=self.commander)
            return f"result {self.number}"

    assert run(Round(0)) == "result 0"
    assert ended == [0, 1, 2, 3]


def test_run_raises_the_jobs_failure():
    """The failure is raised without a group, after all nodes have ended."""

    @handler
    async def fail(node):
        node.call_handler(hang(), parent=node.commander).cancel()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run(fail())


def test_run_ends_a_job_after_its_timeout():
    """The job fails with `TimeoutError`. A timeout that is not a number is refused."""
    with pytest.raises(TimeoutError):
        run(hang(), timeout=0.01)
    assert run(give(1), timeout=10) == 1
    with pytest.raises(TypeError, match="timeout must be a number"):
        run(give(1), timeout="10")


def test_run_returns_exits_value_if_that_was_called():
    """The value of `exit` wins over a result that the job already had."""

    class Leaves(Job[str]):
        async def task(self):
            self.call_handler(hang(), parent=self.commander)
            asyncio.get_running_loop().call_soon(self.commander.exit, "by exit")
            return "own"

    assert run(Leaves()) == "by exit"


def test_run_without_auto_exit_stays_open_for_thread_safe_puts_until_exit():
    """After the job has ended, other threads can put jobs until `exit` returns its value."""
    results = []

    class First(Job[None]):
        async def task(self):
            self.at_done(lambda node: threading.Thread(target=puts, args=[node]).start())

    def puts(node):
        commander = node.commander
        results.append(commander.call_handler_threadsafe(give("late")).result(5))
        results.append(commander.put_job_threadsafe(Idle()).result(5))
        record_of(commander).tree.loop.call_soon_threadsafe(commander.exit, "left")

    assert run(First(), auto_exit=False) == "left"
    assert results == ["late", None]


async def test_run_inside_a_running_loop_is_an_error():
    """The error names the alternative, and the job stays unstarted."""
    job = Idle()
    with pytest.raises(RuntimeError, match="async with Commander"):
        run(job)
    assert job.state == "pending"


def test_run_may_be_called_again_and_again():
    """Each call has its own loop and commander, and restores the signal handlers."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert [run(give(number)) for number in range(3)] == [0, 1, 2]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_run_works_outside_the_main_thread():
    """Outside the main thread `run` installs no signal handlers."""
    results = []
    thread = threading.Thread(target=lambda: results.append(run(give(1))))
    thread.start()
    thread.join(5)
    assert results == [1]


# --- signals


def start(body, tmp_path):
    """Start a program in a new process. It prints "ready" when it can receive signals."""
    path = tmp_path / "program.py"
    path.write_text(textwrap.dedent(PROLOGUE) + textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, "-u", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


PROLOGUE = """
import asyncio, signal, sys, time
from anabranch.commander import Commander, run
from anabranch.handlers import handler

@handler
async def careful(node, pause=0.0, name="child"):
    try:
        if name == "top":
            print("ready", flush=True)  # the child waits already
        await asyncio.Event().wait()
    finally:
        print("cleaning", flush=True)
        await asyncio.sleep(pause)
        print(name, "ended", flush=True)

@handler
async def top(node, pause=0.0):
    node.call_handler(careful(pause))
    await asyncio.sleep(0)
    await careful(0.0, "top")
"""

QUIET = """
try:
    run(top(%s))
except KeyboardInterrupt:
    print("KeyboardInterrupt", flush=True)
"""


def read_until(process, line):
    lines = []
    for got in process.stdout:
        lines.append(got.strip())
        if lines[-1] == line:
            return lines
    raise AssertionError(lines)


@pytest.fixture
def program(tmp_path):
    processes, clocks = [], []

    def begin(body):
        processes.append(start(body, tmp_path))
        clocks.append(threading.Timer(120, processes[-1].kill))  # fails the test, so it cannot hang
        clocks[-1].start()
        read_until(processes[-1], "ready")
        return processes[-1]

    yield begin
    for process, clock in zip(processes, clocks, strict=True):
        clock.cancel()
        process.kill()
        process.communicate(timeout=60)


def test_the_first_sigint_cancels_the_tree_and_raises_when_it_has_ended(program):
    """All clean-ups run before `run` raises KeyboardInterrupt."""
    process = program(QUIET % "0.05")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    lines = output.split("\n")
    assert {"child ended", "top ended"} < {*lines}
    assert lines[-2:] == ["KeyboardInterrupt", ""]
    assert process.returncode == 0


def test_the_second_sigint_is_immediate(program):
    """`run` abandons an endless clean-up and prints nothing about lost tasks."""
    process = program(QUIET % "3600")
    process.send_signal(signal.SIGINT)
    read_until(process, "cleaning")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "child ended" not in output
    assert "KeyboardInterrupt" in output
    assert "destroyed" not in output
    assert process.returncode == 0


def test_the_second_sigint_leaves_no_thread_that_the_program_waits_for(program):
    """Idle anyio worker threads would otherwise keep Python from exiting."""
    process = program(
        """
        @handler
        async def works(node):
            await node.in_thread(pow, 2, 3)
            print("ready", flush=True)
            try:
                await asyncio.sleep(3600)
            finally:
                print("cleaning", flush=True)
                await asyncio.sleep(3600)

        try:
            run(works())
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        """
    )
    process.send_signal(signal.SIGINT)
    read_until(process, "cleaning")
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=20)
    assert output.split()[-1] == "KeyboardInterrupt"


def test_an_interrupt_ends_a_body_that_blocks_the_loop_at_the_second_one(program):
    """The first SIGINT cannot reach the body. The second interrupts it."""
    process = program(
        """
        @handler
        async def blocks(node):
            print("ready", flush=True)
            try:
                for _ in range(3600):
                    time.sleep(1)
            finally:
                print("broken into", flush=True)

        try:
            run(blocks(), slow_after=None)
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        """
    )
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.3)  # the test is that the loop ignores the interrupt
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert output.split() == ["broken", "into", "KeyboardInterrupt"]


def test_sigterm_cancels_the_tree_and_exits_with_143(program):
    """The program runs its clean-up and exits as a terminated program does."""
    process = program(QUIET % "0.05")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert "child ended" in output
    assert process.returncode == 143


def test_a_program_that_handles_sigterm_keeps_its_handler(program):
    """`run` does not replace a SIGTERM handler of the program."""
    process = program(
        """
        signal.signal(signal.SIGTERM, lambda *_: (print("mine", flush=True), sys.exit(7)))
        run(top())
        """
    )
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert "mine" in output
    assert process.returncode == 7


def test_signals_are_not_handled_inside_somebodys_application(program):
    """`async with Commander()` under asyncio.run leaves asyncio's SIGINT handling unchanged."""
    process = program(
        """
        async def main():
            before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
            async with Commander() as commander:
                after = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
                print("untouched" if before == after else "changed", flush=True)
                await commander.run(top())

        try:
            asyncio.run(main())
        except KeyboardInterrupt:
            print("KeyboardInterrupt", flush=True)
        """
    )
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert "child ended" in output
    assert output.rstrip().endswith("KeyboardInterrupt")
