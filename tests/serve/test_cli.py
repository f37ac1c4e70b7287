"""`anabranch serve` and `anabranch watch URL` as processes: start, output, signals."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from openai import AsyncOpenAI
from support.chat_command import environment
from support.forked_python import run_forked
from support.waiting import wait_until

from anabranch import Agent, MissingExtra
from anabranch.cli import main
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend

PROGRAM = [sys.executable, "-m", "anabranch"]
THINGS = """
import asyncio
from pathlib import Path
from anabranch import Agent, Job
from anabranch.testing import ScriptedBackend

class Step(Job[int]):
    number: int

    async def task(self):
        Path("begun").touch()
        while self.number and not Path("go").exists():
            await asyncio.sleep(0.01)
        return self.number

class Work(Job[str]):
    question: str
    policy = "isolate"

    async def task(self):
        self.put_job(Step(0))
        return f"did {await self.put_job(Step(1))}"

class Broken(Job[str]):
    question: str

    async def task(self):
        raise ValueError("broken with the key sk-abcdefgh12345678")

writer = Agent(ScriptedBackend(otherwise="An answer."), "Write.", name="writer")
number = 5
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "things.py").write_text(THINGS)
    return tmp_path


async def call(folder: Path, *options: str, **env: str) -> tuple[int, str, str]:
    """Run a command to its end; return its status, output and errors."""
    async with asyncio.timeout(60):
        return await run_forked(["-m", "anabranch", *options], folder, "", environment(**env))


class Program:
    """A running server: its process, its output and its address."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.said = ""
        self.url = ""

    async def line(self) -> str:
        """Read the next line of output."""
        assert self.process.stderr is not None
        line = (await self.process.stderr.readline()).decode()
        self.said += line
        return line

    async def end(self, *signals: int) -> int:
        """Send signals, and return the status that a shell would show."""
        for each in signals:
            self.process.send_signal(each)
        _, rest = await self.process.communicate()
        self.said += rest.decode()
        status = self.process.returncode or 0
        return status if status >= 0 else 128 - status

    @property
    def client(self) -> AsyncOpenAI:
        """An OpenAI client for it."""
        return AsyncOpenAI(base_url=f"{self.url}/v1", api_key="none", max_retries=0)


@asynccontextmanager
async def served(folder: Path, *options: str, **env: str) -> AsyncGenerator[Program]:
    """Start a server on a free port, and kill it at the end."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "serve", *options, "--port", "0",
        cwd=folder, env=environment(**env),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    program = Program(process)
    try:
        async with asyncio.timeout(60):
            first = await program.line()
            found = re.search(r"http://127\.0\.0\.1:[1-9]\d*", first)
            assert found, first + (await process.communicate())[1].decode()
            program.url = found[0]
            await program.line()
            yield program
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def complete(program: Program, model: str, words: str = "hi") -> str:
    """Send one request as an OpenAI client."""
    async with program.client as client:
        done = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": words}]
        )
    return done.choices[0].message.content or ""


# --- models and addresses


async def test_models_of_the_folder_are_served_and_each_answer_is_logged(folder: Path) -> None:
    """S9: several models by name; the first line has the real port for port 0."""
    (folder / "go").touch()
    async with served(folder, "things:writer", "things:Work") as program:
        assert program.said.splitlines() == [
            f"serving writer, Work at {program.url}",
            f"base URL for OpenAI clients: {program.url}/v1; chat page: {program.url}/",
        ]
        assert await complete(program, "writer") == "An answer."
        assert await complete(program, "Work") == "did 1"
        pattern = r"\d\d:\d\d:\d\d (writer|Work) completed in \d+\.\d s, \d+ \+ \d+ tokens\n"
        for name in "writer", "Work":
            line = await program.line()
            found = re.fullmatch(pattern, line)
            assert found, line
            assert found[1] == name
        async with aiohttp.ClientSession() as client, client.get(program.url) as answer:
            assert answer.status == 200
            assert answer.content_type == "text/html"


async def test_quiet_and_no_page(folder: Path) -> None:
    """Failures are still logged, with masked keys."""
    options = "--quiet", "--no-page"
    async with served(folder, "things:writer", "things:Broken", *options) as program:
        assert "page" not in program.said
        async with aiohttp.ClientSession() as client, client.get(program.url) as answer:
            assert answer.status == 404
        assert await complete(program, "writer") == "An answer."
        with pytest.raises(Exception, match="The run failed"):
            await complete(program, "Broken")
        assert await program.end(signal.SIGTERM) == 143
        assert "completed" not in program.said
        assert "broken with the key" in program.said
        assert "sk-abcdefgh" not in program.said


async def test_a_key_from_the_environment_is_needed_and_never_shown(folder: Path) -> None:
    """S14: the first line does not show the key; requests without the key are refused."""
    async with served(folder, "things:writer", ANABRANCH_TOKEN="swordfish") as program:
        assert "clients must send a key" in program.said
        assert "swordfish" not in program.said
        async with aiohttp.ClientSession() as client:
            async with client.get(f"{program.url}/v1/models") as answer:
                assert answer.status == 401
            headers = {"Authorization": "Bearer swordfish"}
            async with client.get(f"{program.url}/v1/models", headers=headers) as answer:
                assert answer.status == 200
        await program.end(signal.SIGTERM)
        assert "swordfish" not in program.said
    _, helped, _ = await call(folder, "serve", "--help", ANABRANCH_TOKEN="swordfish")
    assert "swordfish" not in helped


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["things:nobody"], "module things has no nobody"),
        (["nowhere:agent"], "nowhere:agent cannot be imported"),
        (["things"], "things must have the form module:name"),
        (["things:number"], "5 cannot be served"),
        (["things:writer", "things:writer"], "two models are called 'writer'"),
        (["things:writer", "--host", "0.0.0.0"], "other machines can reach 0.0.0.0"),
        (["things:writer", "--token", ""], "--token must not be empty"),
    ],
)
async def test_an_argument_that_cannot_be_served_is_one_line(
    folder: Path, options: list[str], why: str
) -> None:
    """S14: wrong names, and an open address without a key, exit with 2 before serving starts."""
    status, out, err = await call(folder, "serve", *options)
    assert status == 2, err
    assert why in err
    assert (len(err.splitlines()), out) == (1, "")


async def test_a_used_port_is_an_error(folder: Path) -> None:
    """The status is 1, because another attempt may succeed."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        status, _, err = await call(folder, "serve", "things:writer", "--port", port)
    assert (status, len(err.splitlines())) == (1, 1)
    assert f"cannot serve at 127.0.0.1, port {port}: " in err
    assert "in use" in err


async def test_a_journal_that_cannot_be_made_is_one_line(folder: Path) -> None:
    """It is the only output: serving never starts."""
    path = str(folder / "nowhere" / "runs.db")
    status, out, err = await call(folder, "serve", "things:writer", "--journal", path)
    assert (status, out, len(err.splitlines())) == (1, "", 1), err
    assert "does not exist: create the folder" in err


def test_without_a_web_server_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if starlette is installed for another application."""
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(MissingExtra, match=r"anabranch\[serve\]"):
        serve(Agent(ScriptedBackend(), name="writer")).run()


class _Interrupted:
    """Acts like Ctrl-C during the import of a module."""

    def find_spec(self, name: str, *_: object) -> None:
        """Raise `KeyboardInterrupt`."""
        if name == "anabranch.cli._app":
            raise KeyboardInterrupt


def test_ctrl_c_during_the_import_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """The status is the one of any other Ctrl-C."""
    monkeypatch.delitem(sys.modules, "anabranch.cli._app", raising=False)
    monkeypatch.setattr(sys, "meta_path", [_Interrupted(), *sys.meta_path])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 130


# --- the end


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 0), (signal.SIGTERM, 143)])
async def test_a_signal_ends_it_with_its_status(folder: Path, number: int, status: int) -> None:
    """S15: at once if no run is open, and without a traceback."""
    async with served(folder, "things:writer") as program:
        assert await program.end(number) == status
        assert "Traceback" not in program.said


async def test_a_signal_lets_open_runs_end(folder: Path) -> None:
    """S15: the client gets its complete answer."""
    async with served(folder, "things:Work", "--drain", "60") as program:
        asking = asyncio.create_task(complete(program, "Work"))
        await wait_until((folder / "begun").exists)
        program.process.send_signal(signal.SIGTERM)
        (folder / "go").touch()
        assert await asking == "did 1"
        assert await program.end() == 143


# --- watching


async def _begin(client: aiohttp.ClientSession, url: str) -> str:
    async with client.post(f"{url}/runs", json={"model": "Work", "input": "go"}) as answer:
        return str((await answer.json())["id"])


async def test_watch_draws_a_run_of_a_server_until_its_end(folder: Path) -> None:
    """By the run's address, or the newest run by the server's; it draws while the run is open."""
    async with served(folder, "things:Work") as program, aiohttp.ClientSession() as client:
        run = await _begin(client, program.url)
        watching = await asyncio.create_subprocess_exec(
            *PROGRAM, "watch", f"{program.url}/runs/{run}",
            cwd=folder, env=environment(), stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert watching.stderr is not None
        said = await watching.stderr.readline()
        (folder / "go").touch()
        said += (await watching.communicate())[1]
        assert watching.returncode == 0
        assert b"Work" in said
        for url in program.url, f"{program.url}/runs/", f"{program.url}/runs/{run}/trace":
            status, _, err = await call(folder, "watch", url)
            assert (status, "Work" in err) == (0, True), err


async def test_watch_prints_one_line_for_an_error(folder: Path) -> None:
    """For a missing run, server, key or address, and for another kind of server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        nobody = f"http://127.0.0.1:{free.getsockname()[1]}"
    token = {"ANABRANCH_TOKEN": "swordfish"}
    async with served(folder, "things:Work", **token) as program:
        for url, env, status, why in (
            (f"{program.url}/runs/none", token, 1, "there is no such run"),
            (program.url, token, 1, "has no run to watch"),
            (program.url, {}, 1, "requires a valid key: set ANABRANCH_TOKEN"),
            (f"{program.url}/elsewhere", token, 1, "there is nothing at this address"),
            (nobody, {}, 1, "cannot read"),
            ("ftp://127.0.0.1/x", {}, 2, "is not an http address"),
        ):
            found, _, err = await call(folder, "watch", url, **env)
            assert (found, why in err, len(err.splitlines())) == (status, True, 1), err
