"""The directory of a cluster: who is here, who is where this was called from, who is anywhere."""

from __future__ import annotations

from contextlib import suppress

from ..agents import Directory, Participant
from ..agents.errors import UnknownAgent
from ._resident import NoResident
from ._visit import CALLER, AtHome

__all__ = ["ClusterDirectory"]


class ClusterDirectory(Directory):
    """Participants by name, wherever they live.

    First those that were added; then, for an agent that is called from elsewhere, those whom its
    caller finds; then the agents that live in the cluster under this name.
    """

    async def find(self, name: str) -> Participant:
        """Return the participant of this name; raise `UnknownAgent` if there is none."""
        if name in self:
            return await super().find(name)
        with suppress(UnknownAgent):
            return await self._at_home(name)
        return await self._anywhere(name)

    async def _at_home(self, name: str) -> Participant:
        caller = CALLER.get()
        if caller is None:
            raise UnknownAgent(name, [])
        found = await caller.ask(name, "find")
        return AtHome(name, caller) if found is None else found.known_to(self)

    async def _anywhere(self, name: str) -> Participant:
        from ._agent import find  # which knows this directory

        try:
            return await find(name, directory=self)
        except NoResident as error:
            raise UnknownAgent(name, sorted({*self, *error.known}), "the cluster") from None
