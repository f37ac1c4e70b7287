"""A durable run stores the passages of an agent, as the results of tools."""

from __future__ import annotations

import asyncio

from anabranch import Agent, Backend
from anabranch.knowledge import Index
from anabranch.store import Durable, Journal, Live, live
from anabranch.testing import ScriptedBackend


class Ask(Durable[str]):
    backend: Live[Backend] = live()
    notes: Live[Index] = live()
    waits: Live[asyncio.Event] = live()

    async def task(self) -> str:
        agent = Agent(self.backend, name="asked", knowledge=self.notes)
        answer = await agent("How long is the Nile?")
        self.waits.set()
        return f"{answer.text} {answer.extra['citations']} {await self.durable.signal('go', str)}"


async def test_a_later_life_has_what_was_found_though_the_documents_have_changed(tmp_path):
    """The model is called once; after a restart the answer and its citations are the same."""
    notes = Index(tmp_path / "notes.db")
    await notes.add("nile.md", "The Nile is 6,650 km long.")
    backend, waits = ScriptedBackend("6,650 km [1]."), asyncio.Event()
    given = {"backend": backend, "notes": notes, "waits": waits}
    file = tmp_path / "runs.db"
    async with Journal(file) as journal:
        first = asyncio.create_task(journal.run(Ask(), run_id="r", live=given))
        await waits.wait()
        first.cancel()
        await asyncio.wait([first])
    await notes.remove("nile.md")
    async with Journal(file) as journal:
        await journal.signal("r", "go", "on")
        said = await journal.run(Ask(), run_id="r", live=given)
    assert said == "6,650 km [1]. [{'number': 1, 'place': 'nile.md:1'}] on"
    assert len(backend.requests) == 1
    await notes.aclose()
