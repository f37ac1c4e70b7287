"""`partials=`: a growing reply can be read, also by another process."""

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.killed_executions import Kill, kill_everywhere, run_execution
from support.memory_journal import RUN_ID, Disk, journal_of, use_disk_clock
from support.seeds import SEED, example_count
from support.waiting import wait_until

from anabranch import Agent, BackendUnavailable
from anabranch.backends import Backend
from anabranch.messages import Delta
from anabranch.store import Durable, Journal, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, run_seeded

pytestmark = pytest.mark.contract("D22")

TEXT = "It was a dark and stormy night; the rain fell in torrents, as it does in such books. "


class Ask(Durable[str]):
    backend: Live[Backend] = later()

    async def task(self) -> str:
        return (await Agent(self.backend)("Tell me a story.")).text


def story(*, length: int = 20) -> ScriptedBackend:
    return ScriptedBackend(otherwise=TEXT * length, size=9, delay=0.01)


def test_a_run_with_partials_goes_on_like_any_other() -> None:
    """After any kill: a partial is not a reply, and is never replayed."""
    first = kill_everywhere(lambda: Ask(story()), partials=0.05)
    partials = [row for row in first.rows if row.kind == "partial"]
    assert 20 < len(partials) < 60
    assert sum(len(row.value) for row in partials) < 4 * len(TEXT * 20)
    assert first.result == TEXT * 20


def test_without_partials_nothing_of_a_reply_is_written_before_its_end() -> None:
    """Without the option they cost nothing."""
    kinds = [row.kind for row in run_execution(lambda: Ask(story())).rows]
    assert "partial" not in kinds


def test_whoever_looks_reads_a_beginning_of_the_reply_that_grows_with_it() -> None:
    """At each moment: it is a little old at most, and removed when the reply is complete."""

    async def main() -> None:
        disk = Disk()
        with use_disk_clock(disk):
            async with journal_of(disk, partials=0.1) as journal:
                running = asyncio.create_task(journal.run(Ask(story()), run_id=RUN_ID))
                await asyncio.sleep(0.5)
                seen: list[str] = []
                while not running.done():
                    seen += [each.text for each in (await journal.look(RUN_ID)).partials]
                    await asyncio.sleep(0.05)
                assert (await journal.look(RUN_ID)).partials == []
                assert await running == TEXT * 20
                assert all((TEXT * 20).startswith(text) for text in seen)
                assert sorted(seen, key=len) == seen
                assert len(set(seen)) > 10

    run_seeded(main, SEED)


def test_a_reply_that_is_asked_for_again_begins_again() -> None:
    """The text from a dead process stays until the next execution receives more."""
    first = run_execution(lambda: Ask(story()), partials=0.1)
    numbers = [row.seq for row in first.rows if row.kind == "partial"]
    disk = Kill(numbers[3], frozenset()).of(first)

    async def look() -> list[str]:
        async with journal_of(disk) as journal:
            return [each.text for each in (await journal.look(RUN_ID)).partials]

    (before,) = asyncio.run(look())
    assert 0 < len(before) < len(TEXT * 20)
    other = ScriptedBackend(otherwise="Another story, which is short. " * 9, delay=0.05)
    assert run_execution(lambda: Ask(other), disk, partials=0.1).result.startswith("Another")
    assert asyncio.run(look()) == []


def test_a_reply_that_breaks_off_is_not_shown_any_more() -> None:
    """It will never be complete."""
    broken: list[Any] = [TEXT, Delta(text=TEXT), BackendUnavailable("gone")]
    backend = ScriptedBackend(broken, delay=0.2)

    async def main() -> None:
        disk = Disk()
        with use_disk_clock(disk):
            async with journal_of(disk, partials=0.1) as journal:
                with pytest.raises(BackendUnavailable):
                    await journal.run(Ask(backend), run_id=RUN_ID)
                assert any(row.kind == "partial" for row in disk.rows[RUN_ID])
                disk.runs[RUN_ID] = disk.runs[RUN_ID]._replace(state="running")
                assert (await journal.look(RUN_ID)).partials == []

    run_seeded(main, SEED)


class Redacting(ScriptedBackend):
    """A backend with a key."""

    def redact(self, text: str) -> str:
        return text.replace("sk-secret-0123", "***")


def test_no_part_of_a_key_is_written() -> None:
    """Wherever the stream splits it."""
    for seed in range(SEED, SEED + example_count(10, 200)):
        text = "The key is sk-secret-0123 and nothing else; again: " + "sk-secret-0123" * 2
        backend = Redacting(otherwise=text * 3, size=7, seed=seed, delay=0.02)
        execution = run_execution(lambda b=backend: Ask(b), partials=0.03)  # type: ignore[misc]
        written = b"".join(row.value for row in execution.rows if row.kind == "partial")
        assert written
        assert b"secret" not in written
        assert b"sk-" not in written


READER = """
import asyncio, sys
from anabranch.store import Journal
async def main():
    said = ""
    async with Journal(sys.argv[1]) as journal:
        while True:
            view = await journal.look("story")
            for each in view.partials:
                if each.text != said:
                    assert each.text.startswith(said)
                    said = each.text
                    print(len(said), said.split()[-1], flush=True)
            if view.run.state == "completed":
                break
            await asyncio.sleep(0.01)
    print("over", flush=True)
asyncio.run(main())
"""


async def test_another_process_reads_along(tmp_path: Path) -> None:
    """It connects at any time, and gets all text so far."""
    gates = [asyncio.Event() for _ in range(3)]
    steps: list[Any] = []
    for number, gate in enumerate(gates):
        steps += [f"part {number} is said ", gate]
    backend = ScriptedBackend([*steps, Delta(finish_reason="stop"), Delta(done=True)])
    path = str(tmp_path / "runs.db")
    async with Journal(path, partials=0.01) as journal:
        running = asyncio.create_task(journal.run(Ask(backend), run_id="story"))
        await wait_until(lambda: backend.opened)
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", READER, path, stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        try:
            for number, gate in enumerate(gates):
                line = await asyncio.wait_for(child.stdout.readline(), 30)
                assert line.decode().split() == [f"{15 * (number + 1)}", "said"]
                gate.set()
            await running
            assert (await asyncio.wait_for(child.stdout.readline(), 30)) == b"over\n"
        finally:
            if child.returncode is None:
                child.kill()
            await child.wait()


@pytest.mark.parametrize("partials", [0, -1, float("nan")])
def test_partials_is_a_number_of_seconds(partials: float) -> None:
    """None turns it off."""
    with pytest.raises(ValueError, match="above 0"):
        Journal(":memory:", partials=partials)
