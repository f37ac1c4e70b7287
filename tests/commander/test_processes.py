"""Work in a process: realistic programs, and every kind of process end."""

import asyncio
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.paths import TESTS
from support.waiting import wait_until

from anabranch.commander import Commander, NodeCancelled, WorkerLost
from anabranch.commander._blocking import ProcessCall, _read_answer
from anabranch.commander.process import describe_exit
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T15")

PROGRAM = """
import asyncio, sys
from anabranch import Commander, Job, run
print("begins")
class Main(Job):
    async def task(self):
        return await self.in_process(work, 4)
class Answer:
    def __init__(self, number):
        self.number = number
async def main():
    async with Commander() as commander:
        return await commander.run(Main())
def work(number):
    print("works", file=sys.stderr)
    return Answer(2 * number)
"""


def python(folder, program, *how):
    path = folder / "program.py"
    path.write_text(PROGRAM + program)
    return subprocess.run(
        [sys.executable, *(how or [path])],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    "start",
    [
        "print('result', run(Main()).number)",
        "print('result', asyncio.run(main()).number)",
        "if __name__ == '__main__':\n    print('result', run(Main()).number)",
    ],
)
def test_a_program_with_or_without_a_main_guard_works_in_another_process(tmp_path, start):
    """The child process runs the main file up to its own tree, which starts once."""
    ended = python(tmp_path, start)
    assert ended.stdout == "begins\nresult 8\n"
    assert ended.stderr.count("works") == 1
    assert ended.returncode == 0


def test_a_program_run_as_a_module_is_found_by_its_name(tmp_path):
    """`python -m` gives a module name in place of a file name."""
    ended = python(tmp_path, "print('result', run(Main()).number)", "-m", "program")
    assert ended.stdout == "begins\nresult 8\n"


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("def work(x): return later(x)", "name 'later'"),
        (
            "del work\nif __name__ == '__mp_main__': run(Main())\ndef work(x): pass",
            "did not find 'work'",
        ),
    ],
)
def test_what_stands_below_the_programs_start_is_missed_with_a_word_on_what_to_do(
    tmp_path, work, said
):
    """The error suggests a main guard, next to Python's own message."""
    ended = python(tmp_path, f"{work}\nrun(Main())\ndef later(x): pass\n")
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "if __name__ == '__main__'" in ended.stderr


def test_a_program_that_is_no_file_is_told_so(tmp_path):
    """The error says that a program without a file cannot be run again."""
    assert (
        "a program without a file" in python(tmp_path, "", "-c", f"{PROGRAM}\nrun(Main())").stderr
    )


async def test_the_main_file_is_left_alone_where_nothing_of_it_is_asked_for():
    """A function of another module does not need the main file."""
    async with asyncio.timeout(60), Commander() as commander:
        assert not await commander.in_process(eval, "hasattr(__import__('__main__'), '__file__')")


SUBINTERPRETER = """
import sys
try:
    import _interpreters as module
except ImportError:
    import _xxsubinterpreters as module
program = '''
import sys
sys.path[:] = {path}
from anabranch.commander import run
from anabranch.jobs import Job
class Child(Job):
    async def task(self):
        return await self.in_thread(pow, 2, 3)
class Main(Job):
    async def task(self):
        return await self.put_job(Child()) + 1
print(run(Main()), run(Main()))
import threading
for thread in threading.enumerate():
    # anyio does not wait for its threads to end; before 3.13 `destroy` does not either.
    thread is threading.main_thread() or thread.daemon or thread.join(10)
'''
for isolated in ISOLATED:
    made = "isolated" if isolated else "legacy"
    new = module.create(made) if hasattr(module, "new_config") else module.create(isolated=isolated)
    failure = module.run_string(new, program.format(path=sys.path))
    assert failure is None, failure
    module.destroy(new)
"""


@pytest.mark.skipif(
    not any(map(find_spec, ("_interpreters", "_xxsubinterpreters"))),
    reason="this Python has no module for subinterpreters",
)
def test_a_program_runs_in_a_subinterpreter(tmp_path):
    """A subinterpreter gets no signals, and cannot end while a daemon thread runs in it."""
    # An isolated one cannot start threads in 3.11; in 3.12 it crashes when a loop is closed.
    isolated = [False, True] if sys.version_info >= (3, 13) else [False]
    program = SUBINTERPRETER.replace("ISOLATED", str(isolated))
    ended = python(tmp_path, "", "-c", program)
    assert ended.stderr == ""
    assert ended.stdout == "9 9\n" * len(isolated)
    assert ended.returncode == 0


ENDS = {
    "import sys; sys.exit(3)": "status 3",
    "import sys; sys.exit()": "status 0",
    "raise KeyboardInterrupt": "signal SIGINT",
    "import os; os.kill(os.getpid(), 37)": "signal 37",
}


async def test_a_process_that_ends_by_itself_is_lost_and_its_parent_goes_on():
    """The node fails and names the cause, for exits and all signals. The parent continues."""
    async with asyncio.timeout(60), Commander() as commander:
        nodes = [commander.in_process(exec, body) for body in ENDS]
        errors = await asyncio.gather(*nodes, return_exceptions=True)
    for error, how in zip(errors, ENDS.values(), strict=True):
        assert isinstance(error, WorkerLost)
        assert f"by {how} without a result" in str(error)


def test_every_end_of_a_process_has_a_name():
    """Signals without a symbolic name appear by number."""
    for status in (*range(3), *range(-signal.NSIG, 0), -200):
        assert describe_exit(status).split()[0] == ("signal" if status < 0 else "status")


ODD = """
class Odd(Exception):
    def __str__(self): raise ValueError
    __repr__ = __str__
    def __reduce__(self): raise TypeError
raise Odd
"""


async def test_an_odd_failure_in_a_process_fails_the_node():
    """The node fails with the error or a substitute. Reading standard input does not block."""
    bodies = {ODD: RuntimeError, "raise StopIteration": RuntimeError, "input()": EOFError}
    async with asyncio.timeout(60), Commander() as commander:
        nodes = [commander.in_process(exec, body, {}) for body in bodies]
        errors = await asyncio.gather(*nodes, return_exceptions=True)
    assert [type(error) for error in errors] == [*bodies.values()]


@pytest.mark.parametrize("size", [0, 1, 8, 9, 20])
async def test_an_answer_that_is_cut_off_is_none(size):
    """A process that is killed while it writes its result counts as lost."""
    stream = asyncio.StreamReader()
    stream.feed_data(((100).to_bytes(8, "big") + b"x" * 12)[:size])
    stream.feed_eof()
    answer = await _read_answer(stream)
    with pytest.raises(WorkerLost):
        ProcessCall(int, (), {}, grace=1)._answer(answer, -9)


# --- processes that the function starts


def forks(path, then=""):
    """Fork a process that runs until it is killed, like a daemon."""
    if not os.fork():
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        Path(path).write_text(str(os.getpid()))
        time.sleep(3600)
        os._exit(0)
    while not (Path(path).exists() and Path(path).read_text()):
        time.sleep(0.01)
    exec(then)
    return 7


def starts_a_child(path):
    """Start a child process that the interpreter waits for, so it ends late."""
    multiprocessing.get_context("fork").Process(
        target=forks, args=(path, "time.sleep(3600)")
    ).start()
    while not (Path(path).exists() and Path(path).read_text()):
        time.sleep(0.01)
    return 7


def is_there(pid):
    """Return whether a process runs. A zombie does not count."""
    try:
        os.kill(pid, 0)
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


needs_fork = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@needs_fork
@pytest.mark.parametrize("function", [forks, starts_a_child])
async def test_a_result_does_not_wait_for_what_the_function_left_behind(tmp_path, function):
    """The result arrives while a forked process runs. That process is then ended."""
    path = tmp_path / "pid"
    async with asyncio.timeout(30), Commander() as commander:
        assert await commander.in_process(function, str(path), grace=0.2) == 7
        await wait_until(lambda: not is_there(int(path.read_text())))


@needs_fork
@pytest.mark.parametrize(
    ("then", "error"),
    [
        ("time.sleep(3600)", NodeCancelled),
        ("1 / 0", ZeroDivisionError),
        ("os._exit(3)", WorkerLost),
    ],
)
async def test_nothing_is_left_behind_however_the_call_ends(tmp_path, then, error):
    """A cancel, a failure and a lost process all end the remaining processes."""
    path = tmp_path / "pid"
    async with asyncio.timeout(30), Commander() as commander:
        call = commander.call_handler(calls(str(path), then))
        if error is NodeCancelled:
            await wait_until(lambda: path.exists() and path.read_text())
            call.cancel()
        with pytest.raises(error):
            await call
        await wait_until(lambda: not is_there(int(path.read_text())))


@handler
async def calls(node, path, then):
    return await node.in_process(forks, path, then, grace=0.2)


@needs_fork
def test_nothing_is_left_behind_by_a_program_that_is_killed(tmp_path):
    """The child process notices the end of its parent and ends all that the function started."""
    path = tmp_path / "pid"
    program = f"""
import sys; sys.path[:0] = {[str(TESTS), os.path.dirname(__file__)]!r}
from anabranch import run
from test_processes import calls
run(calls({str(path)!r}, "time.sleep(3600)"))
"""
    with subprocess.Popen([sys.executable, "-c", program]) as child:
        while not (path.exists() and path.read_text()):
            time.sleep(0.01)
        child.kill()
    end = time.monotonic() + 20
    while is_there(int(path.read_text())):
        assert time.monotonic() < end
        time.sleep(0.01)
