"""Write the files beside this one: `python tests/data/journals/make.py [NAME ...]`.

A file that a release has written is never made again: it stands for what users have.
"""

from __future__ import annotations

import asyncio
import json
import re
import signal
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

DATA, TESTS = Path(__file__).parents[1:3]
PATHS = [str(TESTS), str(DATA)]
sys.path[:0] = PATHS

from _killed_runs import FOLDER, KILLED, cassette, recording  # noqa: E402
from _old_journals import _numbers, _readable  # noqa: E402

# A process far in the past, so that each pause in it is over.
CHILD = """
import sys, time
sys.path[:0] = sys.argv[1:3]
from _killed_runs import main
real, began = time.time, time.time()
time.time = lambda: 1_700_000_000 + real() - began
main(*sys.argv[3:])
"""


def kill(name: str) -> None:
    """Let a program be killed, and write down the journal that it leaves."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "runs.db")
        command = [sys.executable, "-c", CHILD, *PATHS, name, str(path)]
        status = subprocess.run(command, check=False, timeout=60).returncode
        if status != -signal.SIGKILL:
            raise SystemExit(f"{name} ended with {status}")
        with closing(sqlite3.connect(path)) as sql:
            sql.execute("update anabranch_run set owner = 'host:1' where owner != ''")
            sql.commit()
            lines = [*sql.iterdump(), *_numbers(sql)]
    text = "\n".join(re.sub("X'([0-9A-F]+)'", _readable, line) for line in lines)
    (FOLDER / f"{name}.sql").write_text(text + "\n")


def main(names: list[str]) -> None:
    for name in names or [*KILLED, "recording", "cassette"]:
        if name == "recording":
            file = FOLDER / "recording.jsonl"
            asyncio.run(recording(file))
            head, _, rest = file.read_text().partition("\n")
            head = json.dumps({**json.loads(head), "pid": 1, "host": "host"})
            file.write_text(f"{head}\n{rest}")
        elif name == "cassette":
            (FOLDER / "cassette.jsonl").unlink(missing_ok=True)
            asyncio.run(record_cassette())
        else:
            kill(name)
        print(name)


async def record_cassette() -> None:
    from anabranch import Message, RateLimited, StreamInterrupted, ToolCall
    from anabranch.testing import ScriptedBackend

    call = ToolCall(id="c", name="send", arguments={"text": "a mail"})
    asks = Message(role="assistant", content="I do it.", tool_calls=[call])
    replies = asks, "It is sent.", RateLimited("too many", retry_after=3), StreamInterrupted("cut")
    await cassette(FOLDER / "cassette.jsonl", record=ScriptedBackend(*replies))


if __name__ == "__main__":
    main(sys.argv[1:])
