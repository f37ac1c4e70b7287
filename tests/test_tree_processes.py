"""Work in a process: programs as users write them, and every way in which a process ends."""

import asyncio
import signal
import subprocess
import sys

import pytest

from anabranch.commander import Commander, WorkerLost
from anabranch.commander._blocking import ProcessCall, describe_exit

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
    """Its file is run there only as far as its own tree: that begins once."""
    ended = python(tmp_path, start)
    assert ended.stdout == "begins\nresult 8\n"
    assert ended.stderr.count("works") == 1
    assert ended.returncode == 0


def test_a_program_run_as_a_module_is_found_by_its_name(tmp_path):
    """`python -m` names no file."""
    ended = python(tmp_path, "print('result', run(Main()).number)", "-m", "program")
    assert ended.stdout == "begins\nresult 8\n"


@pytest.mark.parametrize(
    ("work", "said"),
    [
        ("def work(x): return later(x)", "name 'later'"),
        (
            "del work\nif __name__ == '__mp_main__': run(Main())\ndef work(x): pass",
            "not found 'work'",
        ),
    ],
)
def test_what_stands_below_the_programs_start_is_missed_with_a_word_on_what_to_do(
    tmp_path, work, said
):
    """The main guard is named, beside the usual error."""
    ended = python(tmp_path, f"{work}\nrun(Main())\ndef later(x): pass\n")
    assert ended.returncode == 1
    assert said in ended.stderr
    assert "if __name__ == '__main__'" in ended.stderr


def test_a_program_that_is_no_file_is_told_so(tmp_path):
    """It cannot be run again."""
    assert "no file" in python(tmp_path, "", "-c", f"{PROGRAM}\nrun(Main())").stderr


async def test_the_main_file_is_left_alone_where_nothing_of_it_is_asked_for():
    """A function of another module needs none of it."""
    async with asyncio.timeout(60), Commander() as commander:
        assert not await commander.in_process(eval, "hasattr(__import__('__main__'), '__file__')")


ENDS = {
    "import sys; sys.exit(3)": "status 3",
    "import sys; sys.exit()": "status 0",
    "raise KeyboardInterrupt": "signal SIGINT",
    "import os; os.kill(os.getpid(), 37)": "signal 37",
}


async def test_a_process_that_ends_by_itself_is_lost_and_its_parent_goes_on():
    """Whatever ended it, `sys.exit` and real-time signals too: the node fails, and says how."""
    async with asyncio.timeout(60), Commander() as commander:
        nodes = [commander.in_process(exec, body) for body in ENDS]
        errors = await asyncio.gather(*nodes, return_exceptions=True)
    for error, how in zip(errors, ENDS.values(), strict=True):
        assert isinstance(error, WorkerLost)
        assert f"by {how} without a result" in str(error)


def test_every_end_of_a_process_has_a_name():
    """Signals without a name of their own are numbered."""
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
    """Or what stands for it; and nothing waits for input that nobody gives."""
    bodies = {ODD: RuntimeError, "raise StopIteration": RuntimeError, "input()": EOFError}
    async with asyncio.timeout(60), Commander() as commander:
        nodes = [commander.in_process(exec, body, {}) for body in bodies]
        errors = await asyncio.gather(*nodes, return_exceptions=True)
    assert [type(error) for error in errors] == [*bodies.values()]


@pytest.mark.parametrize("size", [0, 1, 8, 9, 20])
def test_an_answer_that_is_cut_off_is_none(size):
    """Killed while it wrote: the node is lost, whatever has come."""
    answer = (100).to_bytes(8, "big") + b"x" * 12
    with pytest.raises(WorkerLost):
        ProcessCall(int, (), {}, grace=1)._n_answer(answer[:size], -9)
