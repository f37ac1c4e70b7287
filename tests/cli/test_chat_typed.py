"""No typed line ends the chat or loses messages."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch.backends import Backend
from anabranch.cli.chat import ChatArguments, _session_manager, _start, run_chat
from anabranch.cli.chat._commands import COMMANDS
from anabranch.cli.chat._loop import ChatLoop
from anabranch.cli.chat._plain_screen import PlainScreen
from anabranch.commander import ConfigurationError
from anabranch.messages import Conversation, Message
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool


@tool
def bare() -> str:
    return ""


@tool(description="\n\x1b[2J\u202e")
def odd() -> str:
    return ""


async def hold(
    lines: list[str], *, fault: Exception | None = None, system: str | None = "Be brief."
) -> tuple[int, Sequence[Message]]:
    """Type these lines into a chat that is kept in memory; after them it ends, or `fault` comes.

    Return the exit status, and what was said by then.
    """
    left, chats = iter(lines), list[ChatLoop]()

    class Held(ChatLoop):
        def __init__(self, *given: Any) -> None:
            super().__init__(*given)
            chats.append(self)

    async def read(self: PlainScreen) -> str | None:
        line = next(left, None)
        if line is None and fault is not None:
            raise fault
        return line

    async def edit(self: PlainScreen, label: str, text: str) -> None:
        return None

    def connect(spec: str, **options: Any) -> Backend:
        return scripted if spec == "scripted" else _connect(spec, **options)

    scripted, _connect = ScriptedBackend(otherwise="ok", size=None), _session_manager.connect
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PlainScreen, "read", read)
        patch.setattr(PlainScreen, "edit", edit)
        patch.setattr(_session_manager, "connect", connect)
        patch.setattr(_start, "ChatLoop", Held)
        tools = [f"{__name__}:bare", f"{__name__}:odd"]
        options = ChatArguments(
            model="scripted", system=system, tools=tools, plain=True, history=False
        )
        async with asyncio.timeout(60):
            status = await run_chat(options)
    assert next(left, None) is None
    return status, chats[0].partner.messages()


# No name of a real device: a chat that is at fault, run as root, would replace it.
# Names of files that there are in the folder of a chat, and of what no file can be made of.
NAMES = ["fifo", "folder", "loop", "file", "nowhere/x", ".", "/", "~", ""]
ODD = ["\x00", "a\x00b", "\ud800", "\udcff", "[", "a\nb", "x" * 5000, "x" * 100_000, "'", "-", "\t"]
ADDRESSES = ["http://[x", "http://[::1", "http://x:y/", "https://", "http://\x00 m", "openai:", ":"]
ARGUMENTS = st.one_of(
    st.sampled_from([*NAMES, *ODD, *ADDRESSES, "http://127.0.0.1:9/v1 m", "http://[x m"]),
    st.text(max_size=20).filter(lambda said: "/" not in said and "local" not in said),
)
LINES = st.one_of(
    st.builds(
        lambda name, space, argument: f"{name}{space}{argument}",
        st.sampled_from([*COMMANDS, "/", "/sav", "//", "/ save"]).filter(lambda c: c != "/exit"),
        st.sampled_from([" ", "\n", "\t", "  ", "\x00"]),
        ARGUMENTS,
    ),
    st.sampled_from(["hi", "\x00", "\ud800", "  "]),
)


@given(st.lists(LINES, min_size=1, max_size=8))
@settings(max_examples=60)
def test_no_line_ends_the_chat_or_loses_its_beginning(lines: list[str]) -> None:
    """After commands with any argument, valid or not, the chat continues to its last line."""
    with TemporaryDirectory() as folder, chdir(folder):
        os.mkfifo("fifo")
        Path("folder").mkdir()
        Path("loop").symlink_to("loop")
        Path("file").write_text("mine")
        _, said = asyncio.run(hold(lines))

        assert stat.S_ISFIFO(os.stat("fifo").st_mode)
        assert Path("folder").is_dir()
        assert Path("loop").is_symlink()
    if not any(line.startswith("/system") for line in lines):
        assert said[0].content == "Be brief."


@pytest.mark.parametrize("line", ["/tools", "/model http://[x", "/save \x00", "/retry", "/undo"])
async def test_a_command_that_fails_changes_nothing(line: str) -> None:
    """Also before the first turn; the next turn is answered."""
    status, said = await hold([line, "hi"])

    assert status == 0
    assert [each.content for each in said] == ["Be brief.", "hi", "ok"]


@pytest.fixture(params=["fifo", "device", "folder", "link"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Create one of each in the test's folder, since a fault would replace it."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("fifo")
    if request.param == "device":
        try:
            os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
        except PermissionError:
            pytest.skip("only root makes devices")
    before = set(tmp_path.iterdir())
    yield tmp_path / request.param
    assert set(tmp_path.iterdir()) == before


def test_a_conversation_takes_the_place_of_a_file_alone(no_file: Path) -> None:
    """Pipes, devices, folders and links to them are refused, and no other file stays."""
    before = os.stat(no_file)
    with pytest.raises(OSError, match="only a regular file can be replaced"):
        Conversation("x").save(no_file)

    assert os.stat(no_file).st_ino == before.st_ino


@pytest.mark.parametrize("name", ["a\x00b", "\ud800\x00"])
def test_a_name_that_no_file_can_have_is_refused(name: str) -> None:
    """An impossible name raises `ConfigurationError`."""
    with pytest.raises(ConfigurationError, match="cannot name a file"):
        Conversation("x").save(name)


def test_a_conversation_still_replaces_a_file_and_what_a_link_names(tmp_path: Path) -> None:
    """The link stays a link."""
    (tmp_path / "file").write_text("old")
    (tmp_path / "link").symlink_to("file")
    Conversation("x").save(tmp_path / "link")

    assert (tmp_path / "link").is_symlink()
    assert [each.content for each in Conversation.load(tmp_path / "file")] == ["x"]
    assert len(list(tmp_path.iterdir())) == 2


# --- crashes


def saved(folder: Path) -> list[Path]:
    return list(folder.rglob("chat-*.json"))


@pytest.mark.parametrize("fault", [RuntimeError("a fault of ours"), OSError(5, "gone")])
async def test_a_chat_that_breaks_saves_what_was_said(
    fault: Exception,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One line has the path and how to continue."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(type(fault)):
        await hold(["hi"], fault=fault)

    [path] = saved(tmp_path)
    assert f"--load {path}" in capsys.readouterr().err
    assert [each.content for each in Conversation.load(path)] == ["Be brief.", "hi", "ok"]


async def test_what_cannot_be_saved_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """If no folder is writable, the messages are printed."""

    def save(self: Conversation, path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Conversation, "save", save)
    with pytest.raises(RuntimeError):
        await hold(["hi \x1b"], system=None, fault=RuntimeError("a fault of ours"))

    err = capsys.readouterr().err
    assert '["user", "hi \\u001b"]\n["assistant", "ok"]\n' in err


async def test_an_empty_chat_that_breaks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A chat without messages saves nothing."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(RuntimeError):
        await hold([], fault=RuntimeError("a fault of ours"))

    assert saved(tmp_path) == []
