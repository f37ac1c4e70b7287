"""An approval rule for calls of one MCP server does not allow calls of another."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import mcp.types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch.cli._call_layout import CallLayout
from anabranch.cli.chat._approval_rules import ApprovalRules
from anabranch.messages import ToolCall
from anabranch.tools import AnyTool, McpServer, Toolkit, open_tools, origins, tool

HOSTILE = st.sampled_from(
    [
        "demo",
        "x', in /safe, which calls itself 'y",
        "x\n  from: mcp-server-sqlite --db-path test.db",
        "x\r\x1b[2K  tool: send",
        "\u202e'\"",
        "x" * 5000,
        "",
    ]
)
WORDS = st.sampled_from(
    ["--db-path", "test.db", "prod.db", "a b", "--token=k1", "--token=k2", "/", "-v"]
)
VALUES = st.sampled_from(["hunter2-one", "hunter2-two"])


@dataclass(frozen=True)
class Setup:
    """The settings of a server, and the answers of the server."""

    command: tuple[str, ...] = ("mcp-server-sqlite", "--db-path", "test.db")
    url: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    called: str = "demo"
    tool: str = "write_query"
    description: str = "Write."
    schema: str = "string"

    @property
    def server(self) -> tuple[object, ...]:
        """The values that distinguish this server from others."""
        return self.command if self.url is None else (), self.url, self.env, self.headers, self.cwd

    async def open(self) -> AnyTool:
        """Return the tool of a server with these answers."""
        server = McpServer(
            self.url or self.command,
            env=self.env,
            headers=self.headers,
            cwd=self.cwd,
            approve=True,
        )
        info = SimpleNamespace(server_info=SimpleNamespace(name=self.called))
        server._connection = SimpleNamespace(client=info)  # type: ignore[assignment] # pyright: ignore
        remote = mcp.types.Tool(
            name=self.tool,
            description=self.description,
            input_schema={"type": "object", "properties": {"query": {"type": self.schema}}},
        )
        await server._make_tools([remote])  # pyright: ignore[reportPrivateUsage]
        return server.methods[self.tool]


SETUPS = st.builds(
    Setup,
    command=st.lists(WORDS, max_size=3).map(lambda words: ("server", *words)),
    url=st.none()
    | st.sampled_from(
        [
            "http://host/a",
            "http://host/b",
            "http://host:81/a",
            "https://host/a?db=1",
            "https://host/a?db=2",
            "https://ann:one@host/a",
            "https://ann:two@host/a",
            "https://host/s/NTk3ZjY4OTgxMjM0NTY3ODkw",
            "https://host/s/MTk3ZjY4OTgxMjM0NTY3ODkw",
        ]
    ),
    env=st.dictionaries(st.sampled_from(["DB", "KEY"]), VALUES, max_size=2),
    headers=st.dictionaries(st.sampled_from(["Cookie", "X-Tenant"]), VALUES, max_size=1),
    cwd=st.sampled_from([None, "/", "/tmp"]),
    called=HOSTILE,
    tool=st.sampled_from(["write_query", "write.query"]),
    description=HOSTILE,
    schema=st.sampled_from(["string", "integer"]),
)


NAMES = [each.name for each in fields(Setup)]


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Digest with one round, since the number of rounds does not matter here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(origins, "PBKDF2_ROUNDS", 1)
        origins._derive_digest.cache_clear()  # pyright: ignore[reportPrivateUsage]
        yield
        origins._derive_digest.cache_clear()  # pyright: ignore[reportPrivateUsage]


NUMBERS = count()


async def allowed(folder: Path, one: Setup, two: Setup) -> bool:
    """Return whether a rule for the first lets a call of the second run."""
    rules = ApprovalRules(folder / f"{next(NUMBERS)}.json", folder)
    rules.add(await one.open())
    other = await two.open()
    return rules.allows(ToolCall(id="1", name=other.name, arguments={}), other)


@given(st.data())
def test_any_difference_asks_again(tmp_path_factory: pytest.TempPathFactory, data: Any) -> None:
    """A difference in command, environment, address or definition asks; equal ones do not."""
    folder = tmp_path_factory.getbasetemp()
    one, two = data.draw(SETUPS), data.draw(SETUPS)
    names = data.draw(st.sets(st.sampled_from(NAMES)))
    near = replace(one, **{name: getattr(two, name) for name in names})
    same = replace(one)

    async def compare() -> None:
        assert await allowed(folder, one, same)
        is_equal = replace(one, command=()) == replace(near, command=()) and (
            one.server == near.server
        )
        assert await allowed(folder, one, near) is is_equal
        differ = (await one.open()).origin != (await near.open()).origin
        called = one.called[:60] != near.called[:60]
        assert differ is (one.server != near.server or called)

    asyncio.run(compare())


@given(SETUPS)
def test_nothing_that_the_server_says_can_forge_where_it_comes_from(setup: Setup) -> None:
    """The command or address comes first, on its own line; then the server's name, quoted."""
    asked = asyncio.run(setup.open())
    rows = CallLayout(asked, {"query": "select 1"}).rows(10_000)
    place = "server" if setup.url is None else setup.url.partition("://")[0] + "://"

    assert rows[0] == f"  tool: {asked.name}"
    assert rows[1].startswith(f"  from: {place}")
    assert rows[1].endswith(f", which calls itself {setup.called[:60]!r}")
    assert sum(row.startswith("  from: ") for row in rows) == 1
    assert sum(row.startswith("  tool: ") for row in rows) == 1


@given(SETUPS)
def test_no_secret_is_shown_or_stored(
    tmp_path_factory: pytest.TempPathFactory, setup: Setup
) -> None:
    """Values of the environment and of headers, passwords, and possible keys."""
    folder = tmp_path_factory.getbasetemp()
    asked = asyncio.run(setup.open())
    rules = ApprovalRules(folder / f"{next(NUMBERS)}.json", folder)
    rule = rules.add(asked)
    shown = f"{asked.origin} {asked!r} {rule} {rules.path.read_text()}"
    for secret in ("hunter2", "ann:", "one@", "two@", "ZjY4OTgx", "k1", "k2"):
        assert secret not in shown


async def test_programs_of_one_name_show_their_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PATH decides which of them runs, so the person sees it."""
    shown = set[str]()
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        (folder / "srv").write_text("#!/bin/sh\n")
        (folder / "srv").chmod(0o755)
        monkeypatch.setenv("PATH", str(folder))
        origin = (await Setup(("srv", "x")).open()).origin
        assert origin.startswith(f"{folder}/srv x, which")
        shown.add(origin)
    assert len(shown) == 2


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("server --db-path 'my files/prod.db'", "server --db-path 'my files/prod.db'"),
        ("server --api-key hunter2 -v", "server --api-key *** -v"),
        ("server --token=hunter2", "server '--token=***'"),
        ("env GITHUB_TOKEN=hunter2 server", "env 'GITHUB_TOKEN=***' server"),
        ("server --header 'X-Api-Key: hunter2'", "server --header 'X-Api-Key: ***'"),
        ("server postgres://ann:hunter2@w@host/db", "server 'postgres://***@host/db'"),
        ("server 'https://host/x?token=hunter2&db=a'", "server 'https://host/x?token=***&db=a'"),
        ("server sk-hunter2hunter2hunter2", "server ***"),
        ("npx @scope/server /data/2024", "npx @scope/server /data/2024"),
    ],
)
async def test_a_command_is_shown_without_what_may_be_a_key(command: str, shown: str) -> None:
    """With part of a digest if something is masked."""
    origin = (await Setup(tuple(shlex.split(command))).open()).origin
    place, _, name = origin.partition(", which calls itself ")

    program, _, rest = shown.partition(" ")
    assert name == "'demo'"
    assert place.partition(" [digest ")[0] == f"{shutil.which(program) or program} {rest}"
    assert ("[digest " in place) is ("***" in shown)
    assert "hunter2" not in origin


class Shelf(Toolkit):
    """A package's toolkit, opened by a text."""

    approve = True

    def __init__(self, text: str) -> None:
        self.text = text

    @tool
    def write(self, line: str) -> str:
        """Write a line."""
        return f"{self.text}: {line}"


async def test_a_packages_toolkit_is_asked_about_for_each_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`shelf:test` and `shelf:prod` have different origins."""
    from anabranch.tools import _load

    def find(group: str, name: str) -> type[Shelf] | None:
        return Shelf if name == "shelf" else None

    monkeypatch.setattr(_load, "find_plugin", find)
    rules = ApprovalRules(tmp_path / "rules.json", tmp_path)
    made = list[AnyTool]()
    for spec in ("shelf:test", "shelf:prod", "shelf:test"):
        async with open_tools(spec) as tools:
            made += tools
    rules.add(made[0])
    call = ToolCall(id="1", name="write", arguments={})

    assert [rules.allows(call, each) for each in made] == [True, False, True]
    assert made[1].origin.startswith("shelf:prod: ")
    assert json.loads(rules.path.read_text())["rules"][0]["tool"] == "write"
