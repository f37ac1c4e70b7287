"""Nodes that many tests of the tree need: they give, fail, wait or hang; and a failure's notes."""

import asyncio

from anabranch.handlers import handler
from anabranch.jobs import Job

__all__ = ["NOTE", "Idle", "drop", "fail", "give", "hang", "notes", "wait_for"]

NOTE = "anabranch: failed in "


@handler
async def give(node, value=None):
    return value


@handler
async def fail(node, error, after=None):
    if after is not None:
        await after.wait()
    raise error


@handler
async def hang(node, running=None):
    if running is not None:
        running.set()
    await asyncio.Event().wait()


@handler
async def drop(node, value=None):
    """Await the value and drop what comes of it."""
    try:
        await value
    except Exception:
        return


@handler
async def wait_for(node, event):
    await event.wait()


def notes(error):
    return [note for note in getattr(error, "__notes__", []) if note.startswith(NOTE)]


class Idle(Job[None]):
    async def task(self):
        return None
