"""The log of a resumed run leaves out entries that earlier executions have added."""

from __future__ import annotations

from anabranch.serve._run_log import EntryKind, RunLog
from anabranch.store import Durable, Journal


class Nothing(Durable[None]):
    """A run of another program."""

    async def task(self) -> None:
        pass


async def test_a_reply_that_broke_off_is_not_logged_twice() -> None:
    """A later execution produces it and its second attempt again; the log has each once."""
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = RunLog(journal=journal, run_id="serve/r")
        begun: list[tuple[EntryKind, str]] = [("text", "Hel"), ("broken", ""), ("text", "We")]
        for kind, text in begun:
            first.append(kind, **({"text": text, "speech": "4"} if text else {"agent": "writer"}))
        await first.flush()
        again = await RunLog.open(journal, "serve/r")
        rest: list[tuple[EntryKind, str]] = [*begun[:2], ("text", "Wel"), ("text", "l")]
        for kind, text in rest:
            again.append(kind, **({"text": text, "speech": "9"} if text else {"agent": "writer"}))
        await again.flush()
        told = [(entry.number, entry.kind, entry.data.get("text")) for entry in again.entries()]
        assert told == [
            (1, "text", "Hel"),
            (2, "broken", None),
            (3, "text", "We"),
            (4, "text", "ll"),
        ]


async def test_entries_of_another_server_are_not_logged_twice() -> None:
    """S10: the log is read again when it cannot change any more, and its numbers continue."""
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = RunLog(journal=journal, run_id="serve/r")
        first.append("text", text="Hel", speech="4")
        await first.flush()
        again = await RunLog.open(journal, "serve/r")
        first.append("text", text="lo", speech="4")
        await first.flush()
        await again.begin_execution()
        again.append("text", text="Hello", speech="9")
        await again.flush()
        told = [(each.number, each.kind, each.data.get("text")) for each in again.entries()]
        assert told == [
            (1, "text", "Hel"),
            (2, "text", "lo"),
            (3, "broken", None),
            (4, "text", "Hello"),
        ]


async def test_an_interrupted_reply_with_a_call_is_broken_too() -> None:
    """S10: a reply that is requested again is `broken`, even if one of its calls has ended."""
    call = {"name": "look", "arguments": "{}", "id": "c1"}
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = RunLog(journal=journal, run_id="serve/r")
        first.append("text", text="Hello.", speech="4")
        first.append("called", call="5", **call)
        first.append("answered", call="5", text="seen", status="ok")
        await first.flush()
        again = await RunLog.open(journal, "serve/r")
        await again.begin_execution()
        again.append("text", text="Well.", speech="4")
        again.append("called", call="6", **call)
        again.append("answered", call="6", text="seen", status="ok")
        await again.flush()
        told = [(each.kind, each.data.get("text")) for each in again.entries()]
        assert told[3:] == [("broken", None), ("text", "Well.")]


async def test_dropped_entries_are_not_logged_twice() -> None:
    """S13: a later execution also recognizes entries that the log has dropped."""
    speeches = [("x" * 1_000_000, str(number)) for number in range(9)]
    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        for again in (False, True):
            log = (
                await RunLog.open(journal, "serve/r")
                if again
                else RunLog(journal=journal, run_id="serve/r")
            )
            for text, speech in speeches:
                log.append("text", text=text, speech=speech)
            await log.flush()
            assert (log.last, log.first > 1) == (9, True)
