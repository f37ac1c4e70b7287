"""The logs of runs, for each kind of end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.page_client import GREETING, entry_kinds, serve_in_process, wait_for_status
from support.waiting import POLL_SECONDS

from anabranch import Agent
from anabranch.testing import ScriptedBackend


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("is_agent", [False, True])
@pytest.mark.parametrize("end", ["cancelled", "failed"])
async def test_the_last_message_of_an_incomplete_run_is_broken(
    tmp_path: Path, end: str, is_agent: bool, kept: bool
) -> None:
    """S10: `broken` follows an open message before each end except "completed"."""
    last: Any = asyncio.Event() if end == "cancelled" else RuntimeError("no more")
    backend = ScriptedBackend(otherwise=["Hel", last])
    thing: Any = Agent(backend, name="writer") if is_agent else {"writer": backend}
    async with serve_in_process(thing, journal=tmp_path / "runs.db" if kept else None) as client:
        run = (await client.post("/runs", json=GREETING)).json()["id"]
        async with asyncio.timeout(6):
            while not (await client.get(f"/runs/{run}")).json()["last"]:  # noqa: ASYNC110 - over HTTP
                await asyncio.sleep(POLL_SECONDS)
        if end == "cancelled":
            await client.post(f"/runs/{run}/cancel")
        await wait_for_status(client, run, end)
        assert await entry_kinds(client, run) == ["text", "broken", end]
