"""S4: the recording of a process that was killed with SIGKILL at any moment."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.seeds import SEED, example_count

from anabranch.commander import ConfigurationError
from anabranch.tracing import read

pytestmark = pytest.mark.contract("S4")

PROGRAM = """
import asyncio, os, random, sys, time
from anabranch import Commander, Node, handler
from anabranch.tracing import record

done = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

@handler
async def leaf(node: Node): await asyncio.sleep(random.random() / 50)

@handler
async def branch(node: Node):
    for _ in range(5):
        child = node.call_handler(leaf())
        await child
        os.write(done, f"{time.time()} {child.node_id}\\n".encode())

@handler
async def hang(node: Node): await asyncio.Event().wait()

async def main():
    async with Commander() as c, record(c, sys.argv[1], append=True):
        c.call_handler(hang())
        print("begun", flush=True)
        while True:
            await asyncio.gather(*[c.call_handler(branch()) for _ in range(5)])

asyncio.run(main())
"""
# Events stay in memory for a twentieth of a second, and longer on a busy machine.
LATE = 0.5


def test_a_killed_process_leaves_a_readable_recording(tmp_path: Path) -> None:
    """S4: nodes that ended a moment before have ended, and open nodes are lost."""
    chance = random.Random(SEED)
    for number in range(example_count(3, 40)):
        file, done = tmp_path / f"{number}.jsonl", tmp_path / f"{number}.done"
        command = [sys.executable, "-c", PROGRAM, str(file), str(done)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(1.5 * chance.random())  # the test varies this moment
            killed = time.time()
            process.send_signal(signal.SIGKILL)
        trace = read(file)
        states = {node.number: node.state for node in trace}
        assert not trace.live
        assert not trace.executions[-1].ended
        assert not any(node.is_open for node in trace.root.walk())
        assert trace.root.state == "lost"
        for line in done.read_text().splitlines() if done.exists() else ():
            at, node = line.split()
            if float(at) < killed - LATE:
                assert states[int(node)] == "completed"
        if states:
            assert states[1] == "lost"


def test_an_incomplete_line_is_ignored(tmp_path: Path) -> None:
    """S4: the lines before it can be read, and the next execution is added after them."""
    file = tmp_path / "r"
    lines = [
        {"recording": 1, "time": 1.0, "pid": 1, "host": "h", "content": False},
        {"e": "put", "t": 0.1, "n": 1, "p": 0, "name": "a"},
        {"e": "started", "t": 0.1, "n": 1},
        {"e": "completed", "t": 0.2, "n": 1},
    ]
    whole = "".join(json.dumps(line) + "\n" for line in lines)
    head = len(whole.splitlines(keepends=True)[0])
    for size in range(len(whole) + 1):
        file.write_text(whole[:size])
        if size < head:
            with pytest.raises(ConfigurationError, match=r"no recording|empty"):
                read(file)
            continue
        found = [node.state for node in read(file)]
        assert found in ([], ["lost"], ["completed"])
        assert (found == ["completed"]) == (size == len(whole))


@pytest.mark.parametrize(
    "text",
    ["no JSON\n", "1\n", "{}\n", "[]\n", '{"recording": "x"}\n', '{"recording": 99}\n', "\udc80\n"],
)
def test_other_files_are_refused(text: str, tmp_path: Path) -> None:
    """The error names the file; that of a later version is different."""
    (tmp_path / "r").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigurationError, match="r'"):
        read(tmp_path / "r")
