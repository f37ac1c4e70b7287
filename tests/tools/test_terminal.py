"""The terminal chat takes tools by name, and asks."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pexpect
from support.scripted_server import ScriptedServer, calls, text


async def test_a_person_says_yes_to_one_call_and_no_to_another(tmp_path: Path):
    """The person sees both calls completely, one after the other; only the approved one runs."""
    made = [("python", json.dumps({"code": f"print({n} * 100)"})) for n in (7, 8)]
    async with ScriptedServer(calls(*made), text("Done.")) as server:
        await asyncio.to_thread(talk, server.url, tmp_path)

    results = [each["content"] for each in server.requests[1].body["messages"][-2:]]
    assert results == ["700", "Error: the user did not allow this call"]


def talk(url: str, home: Path) -> None:
    child = pexpect.spawn(
        sys.executable,
        ["-m", "anabranch", "chat", "-m", url, "--name", "m", "--tools", "python"],
        env={**os.environ, "HOME": str(home), "TERM": "dumb"},
        encoding="utf-8",
        timeout=60,
    )
    child.expect("> ")
    child.sendline("compute")
    child.expect(r"code: print\(7 \* 100\)")
    child.expect(r"run python\? \[y/N/e\(dit\)/a\(lways here\)\] ")
    child.sendline("y")
    child.expect(r"code: print\(8 \* 100\)")
    child.expect(r"run python\? \[y/N/e\(dit\)/a\(lways here\)\] ")
    child.sendline("n")
    child.expect("Done.")
    child.expect("> ")
    child.sendeof()
    child.expect(pexpect.EOF)


def test_a_wrong_name_is_one_line_and_a_status(tmp_path: Path):
    """Before any request to a model."""
    command = [sys.executable, "-m", "anabranch", "chat", "-m", "http://127.0.0.1:9/v1"]
    command += ["--name", "m", "--tools", "web,mcp:/nowhere/server"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path)

    assert done.returncode == 2
    assert "anabranch: <McpServer /nowhere/server>" in done.stderr
    assert "Traceback" not in done.stderr
