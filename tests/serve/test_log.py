"""The log of a run, and the run, without sockets: readers that arrive, leave, and arrive late."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.seeds import example_count, seeds
from support.waiting import settle_loop, turn_until

from anabranch import Agent
from anabranch.messages import Message
from anabranch.serve import Server, serve
from anabranch.serve._run import OnLeave, Run
from anabranch.serve._run_log import MAX_BATCH, OVERHEAD_CHARS, EntriesExpired, Entry, RunLog
from anabranch.serve._served_model import RunInput
from anabranch.testing import ScriptedBackend, explore, pause, run_seeded

QUESTION = RunInput([Message(role="user", content="hi")])


def _start(app: Server, leave: OnLeave = "cancel", owner: str = "") -> Run:
    return app.runs.start(app.served["writer"], QUESTION, owner, leave)


def _writer(*replies: Any, **options: Any) -> tuple[ScriptedBackend, Agent[Any]]:
    backend = ScriptedBackend(*replies, size=3, otherwise="a long answer, in pieces", **options)
    return backend, Agent(backend, "You answer.", name="writer")


def test_each_reader_gets_all_entries_once_or_an_error() -> None:
    """S10, S12, S13: in order, without a gap, from any start; else `EntriesExpired`."""

    async def main() -> None:
        chance = random.Random(random.random())
        log = RunLog(max_chars=chance.choice((4, 40, 4000)) * OVERHEAD_CHARS)
        count = chance.randint(1, 3 * MAX_BATCH)

        async def write() -> None:
            for number in range(count):
                log.append("text", text=str(number))
                if chance.random() < 0.3:
                    await pause()
            log.append("completed")

        async def read(patience: float | None) -> None:
            await pause(50)
            after = chance.randint(0, log.last)
            seen = after
            gone: EntriesExpired | None = None
            try:
                async for batch in log.batches(after, patience):
                    for entry in batch:
                        assert entry.number == seen + 1
                        assert entry.is_last or entry.data["text"] == str(seen)
                        seen = entry.number
                    if chance.random() < 0.3:
                        await pause(20)
            except EntriesExpired as error:
                gone = error
            if gone is None:
                assert seen == count + 1
            else:
                assert log.first == gone.first > seen + 1

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            for _ in range(4):
                group.create_task(read(chance.choice((None, 1.0))))
        assert not log._waiting

    explore(main, seeds(example_count(100, 2000)))


def test_a_log_stores_no_more_than_its_limit() -> None:
    """S13: the oldest entries are dropped, the newest stays, and the numbers stay."""
    log = RunLog(max_chars=10 * OVERHEAD_CHARS)
    for _ in range(100):
        log.append("text", text="x" * OVERHEAD_CHARS)
    assert log.first == 96
    assert log.last == 100
    with pytest.raises(EntriesExpired) as caught:
        list(log.entries())
    assert caught.value.first == 96
    log.append("text", text="x" * 1000 * OVERHEAD_CHARS)
    assert (log.first, log.last) == (101, 101)


def test_a_reader_that_leaves_while_it_waits_leaves_nothing_behind() -> None:
    """S12: neither a future nor a timer."""

    async def main() -> None:
        log = RunLog()
        reading = asyncio.ensure_future(anext(log.batches(0, 15.0)))
        await settle_loop()
        reading.cancel()
        await asyncio.wait((reading,))
        assert not log._waiting
        assert all(timer.cancelled() for timer in asyncio.get_running_loop()._scheduled)  # type: ignore[attr-defined]

    run_seeded(main)


def test_many_entries_wake_a_reader_once() -> None:
    """S12: all entries of one step of the loop are one batch."""

    async def main() -> None:
        log = RunLog()
        batches = log.batches()
        first = asyncio.ensure_future(anext(batches))
        await settle_loop()
        for number in range(5):
            log.append("text", text=str(number))
        assert len(await first) == 5
        await batches.aclose()

    run_seeded(main)


def test_a_reader_that_never_waits_lets_others_run() -> None:
    """S12: a late reader of a long log lets other tasks run between its batches."""

    async def main() -> None:
        log = RunLog()
        for number in range(3 * MAX_BATCH):
            log.append("text", text=str(number))
        log.append("completed")
        turns = 0

        async def count() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        counting = asyncio.ensure_future(count())
        sizes = [len(batch) async for batch in log.batches()]
        counting.cancel()
        assert sizes == [MAX_BATCH, MAX_BATCH, MAX_BATCH, 1]
        assert turns >= 3

    run_seeded(main)


def test_a_reader_gets_an_empty_batch_after_a_silence() -> None:
    """S12: one for each interval without entries; the log itself has none."""

    async def main() -> list[Any]:
        log = RunLog()
        loop = asyncio.get_running_loop()
        loop.call_later(25, log.append, "completed")
        return [[entry.kind for entry in batch] async for batch in log.batches(0, 10.0)]

    assert run_seeded(main) == [[], [], ["completed"]]


def test_the_last_reader_that_leaves_cancels_the_run() -> None:
    """S11: at any moment, in cancel mode; the backend's connection is closed."""

    async def main() -> None:
        backend, agent = _writer()
        app = serve(agent)
        async with app.running():
            run = _start(app)

            async def read() -> list[Entry] | None:
                most = random.randint(0, 12)
                async with run.reading() as entries:
                    found: list[Entry] = []
                    async for entry in entries:
                        if len(found) == most:
                            return None
                        found.append(entry)
                    return found

            read_by = [asyncio.ensure_future(read()) for _ in range(random.randint(1, 3))]
            if random.random() < 0.3:
                await pause(30)
                read_by[0].cancel()
            await asyncio.wait(read_by)
            async for _ in run.log.batches(run.log.last):
                pass
            whole = [task.result() for task in read_by if not task.cancelled()]
            if any(found is not None for found in whole):
                assert run.status == "completed"
            assert run.status in ("completed", "cancelled")
            await settle_loop()
            assert backend.opened == backend.closed
            assert not agent.memory._sessions
        assert asyncio.all_tasks() == {asyncio.current_task()}

    explore(main, seeds(example_count(100, 2000)))


def test_a_detached_run_continues_without_readers() -> None:
    """S12: to its end, and later readers get all of it."""

    async def main() -> None:
        backend, agent = _writer()
        app = serve(agent)
        async with app.running():
            run = _start(app, "detach")
            async with run.reading() as entries:
                await anext(entries)
            await turn_until(lambda: run.log.has_ended)
            assert run.status == "completed"
            said = [each.data["text"] async for each in run.log.read() if each.kind == "text"]
            assert "".join(said) == "a long answer, in pieces"
            assert backend.opened == backend.closed == 1

    explore(main, seeds(20))


@pytest.mark.parametrize("moment", [*range(12), 40, 80])
def test_a_cancelled_run_always_has_an_end(moment: int) -> None:
    """S13: also before its start; its readers get the end, and nothing of it stays."""

    async def main() -> None:
        backend, agent = _writer()
        app = serve(agent)
        async with app.running():
            run = _start(app, "detach")
            for _ in range(moment):
                await asyncio.sleep(0)
            run.cancel("enough")
            entries = [entry async for entry in run.log.read()]
            assert entries[-1].kind == run.status
            assert run.status in ("cancelled", "completed")
            await settle_loop()
            assert backend.opened == backend.closed
            assert not agent.memory._sessions
            assert app.runs.running == 0

    run_seeded(main)


def test_a_failed_run_has_an_end_without_the_cause() -> None:
    """S13: its readers learn nothing about the exception."""

    async def main() -> None:
        _, agent = _writer(ValueError("the secret"))
        app = serve(agent)
        async with app.running():
            run = _start(app)
            entries = [entry async for entry in run.log.read()]
            assert [entry.kind for entry in entries] == ["failed"]
            assert "secret" not in str(entries)

    run_seeded(main)


def test_a_run_expires() -> None:
    """S13: `keep` seconds after its end; the server's end removes all at once."""

    async def main() -> None:
        _, agent = _writer()
        app = serve(agent, keep=60)
        async with app.running():
            run = _start(app, "detach")
            async for _ in run.log.read():
                pass
            await settle_loop()
            await asyncio.sleep(59)
            assert app.runs.find(run.id, "") is run
            await asyncio.sleep(2)
            assert app.runs.find(run.id, "") is None
            _start(app, "detach")
            await settle_loop()
            _start(app, "detach")
        loop: Any = asyncio.get_running_loop()
        assert all(timer.cancelled() for timer in loop._scheduled)

    run_seeded(main)


def test_the_number_of_ended_runs_is_bounded() -> None:
    """S13: by ten times `max_runs`; the oldest expire first."""

    async def main() -> None:
        _, agent = _writer()
        app = serve(agent, max_runs=2)
        async with app.running():
            runs: list[Run] = []
            for _ in range(25):
                runs.append(_start(app, "detach"))
                async for _ in runs[-1].log.read():
                    pass
                await settle_loop()
            assert app.runs.of("") == runs[:4:-1]

    run_seeded(main)
