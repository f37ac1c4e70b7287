"""Small nodes for tests of the tree, which return, fail, wait or hang, and helpers for them."""

import asyncio

import pytest

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.jobs import Job

__all__ = [
    "NOTE_PREFIX",
    "Idle",
    "Root",
    "SlowCleanup",
    "cancel_running",
    "drop",
    "fail",
    "failure_notes",
    "give",
    "hang",
    "name_parent",
    "wait_for",
]

NOTE_PREFIX = "anabranch: failed in "


@handler
async def give(node, value=None):
    return value


@handler
async def fail(node, error, after=None):
    """Raise `error`, after the event `after` if there is one."""
    if after is not None:
        await after.wait()
    raise error


@handler
async def hang(node, running=None):
    """Set `running`, then wait until cancelled."""
    if running is not None:
        running.set()
    await asyncio.Event().wait()


@handler
async def drop(node, value=None):
    """Await the value; ignore its result or failure."""
    try:
        await value
    except Exception:
        return


@handler
async def wait_for(node, event):
    await event.wait()


@handler
async def name_parent(node):
    return node.parent.name_of_tree


class Root(Commander):
    """A commander whose children can identify it by `name_of_tree`."""

    def __init__(self, name_of_tree="root", **options):
        super().__init__(**options)
        self.name_of_tree = name_of_tree


def failure_notes(error):
    """Return the notes of an error that name the nodes where it failed."""
    return [note for note in getattr(error, "__notes__", []) if note.startswith(NOTE_PREFIX)]


class Idle(Job[None]):
    async def task(self):
        return None


class SlowCleanup:
    """A body that hangs. After a cancellation its cleanup waits for `release`."""

    def __init__(self):
        self.running, self.cleaning, self.release = (asyncio.Event() for _ in range(3))
        self.cleaned = False

    async def hang(self):
        self.running.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cleaning.set()
            await self.release.wait()
            self.cleaned = True


async def cancel_running(node, running, reason=""):
    """Cancel a node after it has set `running`, and wait for its end."""
    await running.wait()
    node.cancel(reason)
    with pytest.raises(NodeCancelled):
        await node
