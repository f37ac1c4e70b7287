"""Speaker policies: who of a group speaks next."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ...backends import Backend
from ...commander.scope import scope_here
from ..layers import prompt

if TYPE_CHECKING:
    from ._talk import Talk

__all__ = ["choose_by_model", "random_speaker", "round_robin"]

logger = logging.getLogger("anabranch.agents")


def round_robin(talk: Talk) -> str:
    """Name the member after the last speaker, in the order of the members."""
    names = talk.names
    if talk.last_speaker not in names:
        return names[0]
    return names[(names.index(talk.last_speaker) + 1) % len(names)]


def random_speaker(seed: int | None = None) -> Callable[[Talk], str]:
    """Make a policy that names any member but the last speaker, always the same with a `seed`.

    Without one, each life of a durable run names the same.
    """
    chance = random.Random(seed)  # noqa: S311 - not for secrets

    def choose(talk: Talk) -> str:
        if seed is None and (scope := scope_here()) is not None:
            chance.seed(scope.own_name("speaker"))
        return chance.choice(_others(talk))

    return choose


def choose_by_model(backend: Backend, **options: Any) -> Callable[[Talk], Awaitable[str]]:
    """Make a policy that lets a model read the talk and choose; members' `description`s help it.

    If it names none of them, or more than one, the next in turn speaks, which is logged.
    """
    ask = choose_speaker.with_backend(backend, **options)

    async def choose(talk: Talk) -> str:
        names = _others(talk)
        if len(names) == 1:
            return names[0]
        roles = (
            f"{name}: {getattr(member, 'description', '') or 'a member'}"
            for name, member in talk.members.items()
        )
        lines = (f"{message.sender}: {message.text}" for message in talk.messages)
        reply = await ask("\n".join(roles), "\n".join(lines), ", ".join(names))
        # The longest first: a longer name is not also the shorter one in it.
        by_length = sorted(names, key=len, reverse=True)
        pattern = "|".join(rf"(?<!\w){re.escape(name)}(?!\w)" for name in by_length)
        found = {each.lower() for each in re.findall(pattern, reply, re.IGNORECASE)}
        mentioned = [name for name in names if name.lower() in found]
        if len(mentioned) == 1:
            return mentioned[0]
        name = round_robin(talk)
        logger.warning("the model named no speaker of %s: %.200r; %s is next", names, reply, name)
        return name

    return choose


@prompt
def choose_speaker(roles: str, talk: str, names: str) -> None:
    """Several people talk with each other:
    {roles}

    This was said so far:
    {talk}

    Who should speak next: {names}? Answer with the name alone.
    """


def _others(talk: Talk) -> list[str]:
    return [name for name in talk.names if name != talk.last_speaker] or talk.names
