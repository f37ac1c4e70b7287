"""Whoever is named as `module:name` and lives in this process: all that can be served."""

from __future__ import annotations

from typing import Any, cast

from ...agents import Agent
from ...commander import AnabranchError, Node
from ...handlers import View, handler
from ...serve.talk import (
    BadQuestion,
    Entry,
    Gone,
    Question,
    Served,
    Talk,
    serve_thing,
)
from ...tools import Approval, Decision
from .._fields import AskLine, fill
from .._named import import_named
from ._partner import Partner
from ._run_partner import Questions, Refused, RunPartner
from ._telling import Telling

__all__ = ["CannotAnswer", "ServedPartner", "find_partner"]


class CannotAnswer(AnabranchError):
    """What was asked has no answer; the message says why."""


def find_partner(
    place: str, ask: AskLine | None = None, *, raw: bool = False
) -> Partner | Agent[Any]:
    """Find what `place` names: a partner for whatever can be served, an agent as it is.

    `ask` puts a line to the person, for the fields of a job; None: there is nobody to ask. With
    `raw` results are shown as they came. An agent's sessions belong to whoever keeps them. Raises
    `ConfigurationError` for what is not there, or cannot be served.
    """
    served = serve_thing(import_named(place, place))
    return served.agent or ServedPartner(served, ask, raw=raw)


class ServedPartner(RunPartner):
    """Answers by a run of what can be served, below the node that answers."""

    def __init__(self, served: Served, ask: AskLine | None = None, *, raw: bool = False) -> None:
        super().__init__(served.name, raw=raw)
        self._served = served
        self._ask = ask
        self._filled: dict[str, Any] = {}  # the fields as they were given last

    async def converse(self, node: Node[Any], telling: Telling) -> str:
        """Let it answer; an error is its own, as it was raised."""
        try:
            talk = Talk(self._served, await self._question())
        except BadQuestion as bad:
            raise Refused(f"{bad.field}: {bad.text}" if bad.field else bad.text) from None
        questions = Questions(node)
        node.call_handler(talk)
        status = "stop"
        try:
            async with talk.reading() as entries:
                async for entry in entries:
                    await telling.tell(entry.kind, entry.data)
                    if entry.kind == "asked":
                        _put(questions, talk, entry, telling.view)
                    if entry.kind == "completed":
                        status = str(entry.data["status"])
        except Gone:
            raise CannotAnswer("more was said than can be kept until it is shown") from None
        finally:
            questions.close()
        await talk
        if talk.failure is not None:
            raise _plain(talk.failure)
        if talk.status != "completed":
            raise CannotAnswer(f"{self.name} was stopped")
        return "stop" if status == "ok" else status

    async def _question(self) -> Question:
        said = self._messages[-1]
        if not self._served.fields:
            return Question(self._messages)
        if said.parts:
            raise Refused("it takes fields, and neither images nor files as such")
        self._filled = await fill(self._served.fields, said.content or "", self._filled, self._ask)
        return Question((), self._filled)


def _put(questions: Questions, talk: Talk, entry: Entry, view: View) -> None:
    number: int = entry.data["question"]
    approval = talk.approval(number)
    if approval is None:
        return
    questions.put(number, ask_person(approval, view))
    approval.at_done(lambda _: questions.settle(number))


@handler
async def ask_person(node: Node[Any], approval: Approval, view: View) -> None:
    """Put a call to the person, and let it run or not."""
    decision = Decision.of(await view.ask(approval.call, approval.tool))
    if decision.approved:
        approval.approve(decision.arguments)
    else:
        approval.deny(decision.reason or "the user said no")


def _plain(error: BaseException) -> BaseException:
    """Return the one error that a group is about."""
    if isinstance(error, BaseExceptionGroup):
        inner = cast("BaseExceptionGroup[BaseException]", error).exceptions
        if len(inner) == 1:
            return _plain(inner[0])
    return cast("BaseException", error)
