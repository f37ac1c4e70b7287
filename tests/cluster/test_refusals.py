"""Impossible requests are refused within seconds, by a message with a remedy."""

from __future__ import annotations

import asyncio
import math
import socket
import subprocess
import sys
import threading
from dataclasses import field
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr
from support.ray_agents import Bob
from support.ray_jobs import Ask, Double

from anabranch import Commander, ConfigurationError, Job, MissingExtra, connect
from anabranch.cluster import Ray, remote, serve

KEY = 'sk-01\\\\23"45'  # its repr and its JSON differ from the text


class Take(Job[Any]):
    value: Any
    other: Any = None

    async def task(self) -> Any:
        return self.value


class Hidden(Job[None]):
    def __init__(self) -> None:
        self.lock = threading.Lock()

    async def task(self) -> None:
        pass


async def refused(job: Job[Any], on: Any = "ray") -> Exception:
    """Return the error of `put_job`; nothing has started."""
    async with Commander() as commander:
        with pytest.raises((ConfigurationError, TypeError, ValueError)) as caught:
            commander.put_job(job, on=on)
        assert len(commander.tree()) == 1
    return caught.value


async def test_what_cannot_be_sent_is_named() -> None:
    """The error names the field, before anything starts."""
    error = await refused(Take(1, other=threading.Lock()))
    assert isinstance(error, TypeError)
    assert "Take.other cannot be sent to another machine" in str(error)
    assert "Hidden.lock is not a declared field" in str(await refused(Hidden()))


async def test_a_secret_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """In any encoding; the message names the field and the variable, not the key."""
    monkeypatch.setenv("MY_API_KEY", "sk-0123456789")
    for value in ("sk-0123456789", {"header": ["Bearer sk-0123456789"]}, SecretStr("sk-other")):
        error = await refused(Take("x", other=value))
        assert isinstance(error, ConfigurationError)
        assert "Take.other cannot be sent" in str(error)
        assert "sk-" not in str(error)
    backend = connect("http://127.0.0.1:1/v1", model="tiny", api_key="sk-given-0123")
    error = await refused(Ask(backend))
    assert "Ask.backend cannot be sent" in str(error)
    assert "sk-" not in str(error)


@pytest.mark.parametrize(
    "runtime_env",
    [
        {"env_vars": {"ANY": KEY}},
        {"env_vars": {"HF_TOKEN": "hf_literal"}},
        {"env_vars": {"DB_PASSWORD": "short"}},
        {"pip": {"packages": ["x"], "pip_install_options": [f"--key={KEY}"]}},
        {"pip": ["--extra-index-url https://me:pass@example.org/simple"]},
        {"env_vars": {"ANY": SecretStr("wrapped")}},
    ],
)
async def test_a_secret_is_not_sent_in_a_runtime_env(
    runtime_env: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither for a job, an agent nor an engine: Ray would log it."""
    monkeypatch.setenv("MY_API_KEY", KEY)
    place = Ray(runtime_env=runtime_env)
    errors = [await refused(Double(1), place)]
    for make in (partial(remote, Bob, "bob"), partial(serve, "llm", "local")):
        with pytest.raises(ConfigurationError) as caught:
            make(on=place)
        errors.append(caught.value)
    for error in errors:
        assert "runtime_env cannot be sent" in str(error)
    assert not any(secret in repr((errors, place)) for secret in ("sk-", "hf_", "short", "pass@"))


async def test_what_is_no_key_is_sent_in_a_runtime_env(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with KEY or TOKEN inside a word, or a harmless value."""
    monkeypatch.setenv("KEYCLOAK_URL", "https://keycloak.example")
    runtime_env = {
        "env_vars": {
            "KEYCLOAK_URL": "https://keycloak.example",
            "TOKENIZERS_PARALLELISM": "false",
            "MAX_TOKENS": "512",
            "HF_TOKEN": "${TEAM_TOKEN}",
        },
        "pip": ["--extra-index-url https://${USER}:${PASS}@example.org/simple"],
    }
    assert Ray(runtime_env=runtime_env).options()["runtime_env"] == runtime_env


async def test_a_secret_is_not_sent_in_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of a script is sent by value, with the variables that it uses."""
    monkeypatch.setenv("MY_API_KEY", KEY)
    script: dict[str, Any] = {"Job": Job, "KEY": KEY, "__name__": "__main__"}
    exec("class Study(Job[str]):\n    async def task(self):\n        return KEY\n", script)
    error = await refused(script["Study"]())
    assert "the class Study cannot be sent: it contains the value of MY_API_KEY" in str(error)


@pytest.mark.parametrize("name", ["num_cpus", "num_gpus", "memory", "grace", "resources"])
@pytest.mark.parametrize("amount", [math.nan, -1, "5", None])
async def test_an_amount_is_a_number(name: str, amount: Any) -> None:
    """For resources, and for `grace`, whose cancel would fail later."""
    place: Any = {name: {"left": amount} if name == "resources" else amount}
    assert "must be a number of at least 0" in str(await refused(Double(1), Ray(**place)))


@pytest.mark.parametrize("name", ["", "\ud800", "two\nlines"])
async def test_a_name_is_one_that_can_be_written(name: str) -> None:
    """Before anything starts."""
    for use in (partial(remote, Bob, name), partial(serve, name, "local")):
        with pytest.raises(ConfigurationError, match="is not a valid name for an"):
            use()


@pytest.mark.parametrize("package", [False, True])
async def test_another_that_is_called_ray_is_named(
    package: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder is ignored; a package with Ray's name is refused."""
    (tmp_path / "ray").mkdir()
    expected = r"anabranch\[ray\]"
    if package:
        (tmp_path / "ray/__init__.py").touch()
        expected = "takes the name of Ray's own package"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for name in [each for each in sys.modules if each.partition(".")[0] == "ray"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [PathFinder])  # an editable Ray is not found by it
    import_module("ray")
    async with Commander() as commander:
        with pytest.raises((MissingExtra, ConfigurationError), match=expected):
            commander.put_job(Double(1), on="ray")
    sys.modules.pop("ray")


async def test_no_such_place_is_told() -> None:
    """The error lists the known places."""
    assert "unknown place 'spark'" in str(await refused(Double(1), "spark"))
    assert "on= must be" in str(await refused(Double(1), Ray))


async def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """When the job is put, the agent made, the backend put there or connected."""
    monkeypatch.setitem(sys.modules, "ray", None)
    async with Commander() as commander:
        for use in (
            partial(commander.put_job, Double(1), on="ray"),
            partial(remote, Bob, "bob"),
            partial(serve, "llm", "local"),
            partial(connect, "ray:llm"),
        ):
            with pytest.raises(MissingExtra, match=r"anabranch\[ray\]"):
                use()


PROGRAM = """
import asyncio, sys
from support.ray_jobs import Double
from anabranch import Commander, ConfigurationError
from anabranch.cluster import Ray

async def main(*addresses):
    async with Commander() as commander:
        for address in addresses:
            try:
                await commander.run(Double(1), on=Ray(address=address))
            except ConfigurationError as error:
                print(*str(error).split())

if sys.argv[1] == "other":
    from ray._private import utils
    utils.compute_version_info = lambda: ("0.1", "3.99.9", "")
asyncio.run(main(*sys.argv[2:]))
"""


async def told(*addresses: str, version: str = "own") -> str:
    """Return the error of a separate program."""
    import os

    paths = os.pathsep.join(path for path in sys.path if "tests" in path)
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        version,
        *addresses,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": paths},
    )
    said, _ = await program.communicate()
    return said.decode()


async def test_where_there_is_no_cluster_is_told() -> None:
    """Whether no server or another server listens."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        said = await told("127.0.0.1:1", "ray://127.0.0.1:1", "here", address)
    nobody, client, strange, silent = said.splitlines()
    assert "there is no Ray cluster at 127.0.0.1:1: start one" in nobody
    assert "a Ray client cannot stream" in client
    assert "must be HOST:PORT, not 'here'" in strange
    assert f"there is no Ray cluster at {address}" in silent


async def test_another_version_is_told(nodes: Any) -> None:
    """Of Ray or Python; the error has both versions."""
    said = await told(nodes.address, version="other")
    assert "ersion mismatch" in said
    assert "0.1" in said
    assert "Install the same Ray and Python" in said


async def test_another_cluster_is_refused(nodes: Any) -> None:
    """A process is in one cluster at a time."""
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="cannot join the one at"):
            await commander.run(Double(1), on=Ray(address="127.0.0.1:1"))
        assert await commander.run(Double(1), on=Ray(address=nodes.address)) == 2


async def test_a_cluster_is_known_by_all_its_addresses(nodes: Any) -> None:
    """By each name and address of its machine, any number of times."""
    port = nodes.address.rpartition(":")[2]
    addresses = [f"127.0.0.1:{port}", nodes.address, f"localhost:{port}"] * 2
    async with Commander() as commander:
        for address in addresses:
            assert await commander.run(Double(1), on=Ray(address=address)) == 2
    # Also in a program that joins it by one of them.
    assert await told(*addresses, f"{socket.gethostname()}:{port}") == ""


@pytest.mark.usefixtures("nodes")
async def test_what_no_machine_has_is_told() -> None:
    """With the existing resources."""
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="has 1 CPU and 1 GPU: 3 machines"):
            await commander.run(Double(1), on=Ray(num_gpus=1))
        with pytest.raises(ConfigurationError, match="at most 2 CPU and 100 left"):
            await commander.run(Double(1), on=Ray(num_cpus=64, resources={"left": 1}))


@pytest.mark.usefixtures("nodes")
async def test_a_class_that_the_worker_cannot_import_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the module, the machine and what to do."""
    import types

    module = types.ModuleType("only_here")

    class Lonely(Job[None]):
        values: list[int] = field(default_factory=list[int])

        async def task(self) -> None:
            pass

    Lonely.__module__, Lonely.__qualname__ = "only_here", "Lonely"
    module.Lonely = Lonely  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "only_here", module)
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match=r"Lonely cannot be made .* 'only_here'"):
            await commander.run(Lonely(), on="ray")


@pytest.mark.usefixtures("nodes")
async def test_a_worker_that_cannot_begin_is_told() -> None:
    """For example because its environment cannot be created."""
    place = Ray(runtime_env={"working_dir": "/no/such/folder"})
    async with Commander() as commander:
        with pytest.raises(ConfigurationError, match="runtime_env"):
            await commander.run(Double(1), on=place)
