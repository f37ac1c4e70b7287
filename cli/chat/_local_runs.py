"""Runs of the person's own agents, groups and jobs in this process: `--agent module:name`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

from ...agents import Agent
from ...commander import AnabranchError, Node
from ...messages import Message
from ...serve.local import (
    EntriesExpired,
    Entry,
    InvalidInput,
    LocalRun,
    RunInput,
    ServedModel,
    served_model_of,
)
from ...tools import Decision
from .._fields import AskLine, fill_fields
from .._user_code import import_named
from ._partner import MessageRefused, PendingCall, RunEvent, RunPartner, RunSource

__all__ = ["CannotAnswer", "find_partner", "local_partner"]


class CannotAnswer(AnabranchError):
    """A run ended without an answer."""


def find_partner(
    place: str, ask: AskLine | None = None, *, raw: bool = False
) -> RunPartner | Agent[Any]:
    """Import `module:name`; return an agent unchanged, and a partner for anything else.

    `ask` asks the person for the fields of a job, one line each. Raises `ConfigurationError` if the
    object does not exist or cannot be served.
    """
    served = served_model_of(import_named(place, place))
    return served.agent or local_partner(served, ask, raw=raw)


def local_partner(
    served: ServedModel, ask: AskLine | None = None, *, raw: bool = False
) -> RunPartner:
    """Return a partner whose runs execute in this process."""
    return RunPartner(_LocalRuns(served, ask), raw=raw)


class _LocalRuns(RunSource):
    def __init__(self, served: ServedModel, ask: AskLine | None) -> None:
        self.name = self.place = served.name
        self._served = served
        self._ask = ask
        self._last_fields: dict[str, Any] = {}  # the defaults of the next turn

    async def run(self, node: Node[Any], messages: Sequence[Message]) -> AsyncGenerator[RunEvent]:
        try:
            talk = LocalRun(self._served, await self._question(messages))
        except InvalidInput as bad:
            raise MessageRefused(f"{bad.field}: {bad.text}" if bad.field else bad.text) from None
        node.call_handler(talk)
        try:
            async with talk.reading() as entries:
                async for entry in entries:
                    pending = _pending(talk, entry) if entry.kind == "asked" else None
                    yield RunEvent(entry.kind, entry.data, pending)
        except EntriesExpired:
            raise CannotAnswer("the run wrote text faster than the screen could show it") from None
        await talk
        if talk.failure is not None:
            raise _single(talk.failure)
        if talk.status != "completed":
            raise CannotAnswer(f"{self.name} was stopped")

    async def _question(self, messages: Sequence[Message]) -> RunInput:
        last = messages[-1]
        if not self._served.fields:
            return RunInput(messages)
        if last.parts:
            raise MessageRefused(f"{self.name} takes fields, and not images or files")
        self._last_fields = await fill_fields(
            self._served.fields, last.content or "", self._last_fields, self._ask
        )
        return RunInput((), self._last_fields)


def _pending(talk: LocalRun, entry: Entry) -> PendingCall | None:
    number: int = entry.data["question"]
    if (approval := talk.approval(number)) is None:
        return None

    async def decide(decision: Decision) -> None:
        if decision.approved:
            approval.approve(decision.arguments)
        else:
            approval.deny(decision.reason or "the user said no")

    return PendingCall(number, approval.call, approval.tool, decide, approval)


def _single(error: BaseException) -> BaseException:
    """Return the only error of a group."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if len(inner) == 1:
            return _single(inner[0])
    return cast("BaseException", error)
