"""A journal's codec: values in the file are encoded, and reading them needs the key."""

import asyncio
import hashlib
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from anabranch import ToolCall, ToolError, run, tool
from anabranch.handlers import call_tools
from anabranch.store import Durable, Journal, JournalError, Live, live

pytestmark = pytest.mark.contract("D18")

WORDS = [b"a secret", b"tusk", b"Hello", b"by letter", b"because of", b"large large", b"oh no"]


class Toy:
    """A toy encryption: a key rotates the text, and a checksum detects a wrong key."""

    def __init__(self, key: str) -> None:
        self.key = hashlib.sha256(key.encode()).digest()

    def encode(self, data: bytes) -> bytes:
        data = hashlib.sha256(self.key + data).digest() + data
        stream = (self.key * (len(data) // 32 + 1))[: len(data)]
        return bytes(a ^ b for a, b in zip(data, stream, strict=True))

    def decode(self, data: bytes) -> bytes:
        stream = (self.key * (len(data) // 32 + 1))[: len(data)]
        whole = bytes(a ^ b for a, b in zip(data, stream, strict=True))
        if hashlib.sha256(self.key + whole[32:]).digest() != whole[:32]:
            raise ValueError(f"wrong key for {whole!r}")
        return whole[32:]


@tool(effect="keyed")
def fails() -> str:
    """Fail."""
    raise ToolError("oh no, it fails")


async def calls() -> Any:
    yield ToolCall(id="c", name="fails", arguments={}, index=0)


def large() -> str:
    return "large large " * 10_000


class Keeps(Durable[str]):
    word: str
    gone: Live[bool] = live()

    async def task(self) -> str:
        self.durable.conversation("talk").add("Hello there")
        await self.call_handler(call_tools(calls(), [fails]))
        await self.durable.step(large)
        return f"{self.word} {await self.durable.signal('go', str)}"


def content(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.rglob("*") if each.is_file())


async def begun(path: Path, codec: Any) -> None:
    """Leave three runs: one that waits, one that has failed, one that was cancelled."""
    async with Journal(path, codec=codec) as journal:
        await journal.start(Keeps("a secret tusk"), run_id="waits")
        await journal.signal("waits", "go", "by letter")
        await journal.start(Keeps("tusk"), run_id="cancelled")
        await journal.cancel("cancelled", "because of that")
        assert (
            await journal.run(Keeps("a secret tusk"), run_id="waits", live={"gone": False})
            == "a secret tusk by letter"
        )
        assert (await journal.look("cancelled")).error == "cancelled: because of that"


async def test_what_is_kept_is_not_in_the_file(tmp_path: Path) -> None:
    """Neither while it is open, nor after; without a codec the values are there."""
    (tmp_path / "plain").mkdir()
    (tmp_path / "coded").mkdir()
    await begun(tmp_path / "plain" / "runs.db", None)
    async with Journal(tmp_path / "coded" / "runs.db", codec=Toy("key")):
        await begun(tmp_path / "coded" / "runs.db", Toy("key"))
        open_file = content(tmp_path / "coded")
    for word in WORDS:
        assert word in content(tmp_path / "plain")
        assert word not in open_file
        assert word not in content(tmp_path / "coded")


def test_a_run_goes_on_with_its_key(tmp_path: Path) -> None:
    """In another execution; the codec does not influence the run."""
    path = tmp_path / "runs.db"
    asyncio.run(begun(path, Toy("key")))
    journal = Journal(path, codec=Toy("key"))
    job = Keeps("a secret tusk")
    assert run(job, journal=journal, run_id="waits") == "a secret tusk by letter"


@pytest.mark.parametrize(
    ("made", "opened", "why"),
    [
        (Toy("key"), Toy("other"), "its codec cannot read"),
        (Toy("key"), None, "was created with a codec"),
        (None, Toy("key"), "its codec cannot read"),
    ],
    ids=["another key", "no codec", "a codec for a plain file"],
)
async def test_a_wrong_key_is_said_at_the_open(
    made: Any, opened: Any, why: str, tmp_path: Path
) -> None:
    """In one error with a remedy and without the key; the file is unchanged."""
    path = tmp_path / "runs.db"
    await begun(path, made)
    before = path.read_bytes()
    with pytest.raises(
        JournalError, match=f"{why}.*open it with the codec and the key that it was created with"
    ) as error:
        async with Journal(path, codec=opened):
            pass
    assert "wrong key" not in str(error.value)
    assert path.read_bytes() == before
    async with Journal(path, codec=made) as journal:
        assert len(await journal.runs()) == 2


class Odd(Toy):
    def decode(self, data: bytes) -> bytes:
        return data


class Raises(Toy):
    def encode(self, data: bytes) -> bytes:
        if b"tusk" in data:
            raise OSError("no key server")
        return super().encode(data)


async def test_a_codec_that_does_not_work(tmp_path: Path) -> None:
    """Open refuses one that does not decode its data; one that fails makes all callers fail."""
    with pytest.raises(JournalError, match="does not return the encoded data"):
        async with Journal(tmp_path / "odd.db", codec=Odd("key")):
            pass
    async with Journal(tmp_path / "runs.db", codec=Raises("key")) as journal:
        with pytest.raises(JournalError, match="no key server"):
            await journal.start(Keeps("tusk"), run_id="r")
        await journal.start(Keeps("other"), run_id="r")


async def test_a_fork_and_a_purge_need_no_key_of_their_own(tmp_path: Path) -> None:
    """Values are copied unchanged, large ones once, and removed with the last run that has them."""
    path = tmp_path / "runs.db"
    await begun(path, Toy("key"))
    async with Journal(path, codec=Toy("key")) as journal:
        rows = (await journal.look("waits")).rows
        await journal.fork("waits", "fork", at=len(rows))
        assert [row.value for row in (await journal.look("fork")).rows] == [
            row.value for row in rows
        ]
        assert await journal.purge(2e10) == 2
        assert len((await journal.look("fork")).rows) == len(rows)
        await journal.cancel("fork")
        assert await journal.purge(2e10) == 1
    with sqlite3.connect(path) as raw:
        assert raw.execute("select count(*) from anabranch_blob").fetchone() == (0,)
    raw.close()


def test_a_codec_that_is_none_is_refused() -> None:
    """Before the file is opened; the error names its methods."""
    with pytest.raises(TypeError, match=r"codec= must have the methods encode and decode"):
        Journal(":memory:", codec=len)  # type: ignore[arg-type]
