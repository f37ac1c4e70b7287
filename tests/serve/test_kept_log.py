"""The log of a run that a journal keeps: what it leaves out, as an earlier life has told it."""

from __future__ import annotations

from anabranch.serve._log import EntryKind, Log
from anabranch.store import Durable, Journal


class Nothing(Durable[None]):
    """A run of another program's."""

    async def task(self) -> None:
        pass


async def test_a_reply_that_had_failed_is_not_told_twice() -> None:
    """What broke off and was tried again in an earlier life comes again, and is told once."""
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = Log(journal=journal, run_id="serve/r")
        begun: list[tuple[EntryKind, str]] = [("text", "Hel"), ("broken", ""), ("text", "We")]
        for kind, text in begun:
            first.append(kind, **({"text": text, "speech": "4"} if text else {"agent": "writer"}))
        await first.flushed()
        again = await Log.open(journal, "serve/r")
        rest: list[tuple[EntryKind, str]] = [*begun[:2], ("text", "Wel"), ("text", "l")]
        for kind, text in rest:
            again.append(kind, **({"text": text, "speech": "9"} if text else {"agent": "writer"}))
        await again.flushed()
        told = [(entry.number, entry.kind, entry.data.get("text")) for entry in again.entries()]
        assert told == [
            (1, "text", "Hel"),
            (2, "broken", None),
            (3, "text", "We"),
            (4, "text", "ll"),
        ]


async def test_what_another_server_has_written_meanwhile_is_not_told_twice() -> None:
    """S10: the log is read again once nobody else can write, and its numbers go on from there."""
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = Log(journal=journal, run_id="serve/r")
        first.append("text", text="Hel", speech="4")
        await first.flushed()
        again = await Log.open(journal, "serve/r")
        first.append("text", text="lo", speech="4")
        await first.flushed()
        await again.begin_execution()
        again.append("text", text="Hello", speech="9")
        await again.flushed()
        told = [(each.number, each.kind, each.data.get("text")) for each in again.entries()]
        assert told == [
            (1, "text", "Hel"),
            (2, "text", "lo"),
            (3, "broken", None),
            (4, "text", "Hello"),
        ]


async def test_a_reply_that_had_called_before_it_was_whole_is_no_answer_either() -> None:
    """S10: what is asked again though a call of it has ended already is told to be broken."""
    call = {"name": "look", "arguments": "{}", "id": "c1"}
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = Log(journal=journal, run_id="serve/r")
        first.append("text", text="Hello.", speech="4")
        first.append("called", call="5", **call)
        first.append("answered", call="5", text="seen", status="ok")
        await first.flushed()
        again = await Log.open(journal, "serve/r")
        await again.begin_execution()
        again.append("text", text="Well.", speech="4")
        again.append("called", call="6", **call)
        again.append("answered", call="6", text="seen", status="ok")
        await again.flushed()
        told = [(each.kind, each.data.get("text")) for each in again.entries()]
        assert told[3:] == [("broken", None), ("text", "Well.")]


async def test_what_readers_no_longer_get_is_not_told_twice_either() -> None:
    """S13: a log that has dropped its beginning knows in a later life that it was told."""
    speeches = [("x" * 1_000_000, str(number)) for number in range(9)]
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        for again in (False, True):
            log = (
                await Log.open(journal, "serve/r")
                if again
                else Log(journal=journal, run_id="serve/r")
            )
            for text, speech in speeches:
                log.append("text", text=text, speech=speech)
            await log.flushed()
            assert (log.last, log.first > 1) == (9, True)
