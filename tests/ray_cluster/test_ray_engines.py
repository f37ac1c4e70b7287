"""Engines: backends that live in an actor, reached by their name from every tree."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from _conformance import HttpSubject, cases, pass_time_after_the_first_delta, show
from _ray_people import Held
from _server import Reply as ServerReply
from _server import ScriptedServer, Step, calls, chunk, text

from anabranch import Commander, Message, Tool, WorkerLost, connect, tool
from anabranch.backends import Backend, Limits, Timeouts
from anabranch.cluster import Engine, NoResident, Ray, serve
from anabranch.commander import BudgetExceeded, ConfigurationError, ModelNotFound
from anabranch.dispatch import Request
from anabranch.handlers import respond
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.usefixtures("nodes")

HELLO = Request([Message(role="user", content="Say hello.")])
NUMBERS = count()


class RaySubject(HttpSubject):
    """The http backend in an actor, against the scripted server here."""

    async def backend(self, case: str, **settings: Any) -> Backend:
        self.name = f"subject-{next(NUMBERS)}"
        self.wanted = {"timeouts": settings["timeouts"]} if case == "whole timeout" else {}
        await super().backend(case, **settings)
        await self.stack.enter_async_context(serve(self.name, self.served))
        backend = connect(f"ray:{self.name}", **self.wanted)
        if case == "whole timeout":
            pass_time_after_the_first_delta(backend)
        self.stack.push_async_callback(backend.aclose)
        return backend

    def connect(self, address: str, settings: dict[str, Any]) -> Backend:
        self.served = super().connect(address, {} if self.wanted else settings)
        return self.served


@pytest.mark.parametrize(("kind", "case"), cases("ray"))
async def test_an_engine_shows(kind: str, case: str, tmp_path: Path) -> None:
    """Each case of the conformance suite, through the actor."""
    await show(RaySubject(tmp_path), case, seconds=60)
