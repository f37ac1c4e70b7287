"""Resume the calls of an agent that the end of the process interrupted, in all sessions."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from typing_extensions import TypeVar

from ...commander import Node, parent_here
from ...commander.context import INHERITED
from ...commander.errors import ConfigurationError
from ...commander.waiting import observe
from ...store import Journal, RunBusy, RunView
from ...tools import Approval, Approvals
from ._call import AgentCall
from ._memory import SessionId

if TYPE_CHECKING:
    from ._agent import Agent

__all__ = ["resume_interrupted"]

F = TypeVar("F", default=Any)
OVER = ("cancelled", "completed", "failed")


async def resume_interrupted(
    agent: Agent[F], parent: Node[Any] | None, context: Callable[[Any], object] | None
) -> dict[SessionId, AgentCall[F]]:
    """Start the interrupted calls below `parent`, and wait until their questions wait again."""
    if context is not None and not callable(context):
        raise ConfigurationError(
            "the context= of resume_interrupted() must be a function of the session's id, as all"
            f" sessions would share a value, not {type(context).__name__}. Write"
            " context=lambda session_id: load_user(session_id)"
        )
    parent = parent_here() if parent is None else parent
    if parent is None:
        raise ConfigurationError(
            "resume_interrupted() starts calls, so it needs a tree. Call it inside a commander, or"
            " give it parent="
        )
    calls: dict[SessionId, AgentCall[F]] = {}
    questions: dict[SessionId, int] = {}
    async with _opened(agent) as journal:
        prefix = f"{agent.name}/"
        for run in reversed(await journal.runs(prefix=prefix)):
            if run.state in OVER or not _is_interrupted(await journal.look(run.run_id)):
                continue
            session_id = read_session_id(run.run_id.removeprefix(prefix))
            sessions = agent.journal_sessions()
            try:
                found = await sessions.find_interrupted_inputs(session_id)
            except RunBusy:
                continue  # another process is in the session, and resumes it or not
            if found is None:
                continue
            value: Any = INHERITED if context is None else context(session_id)
            if isawaitable(value):
                value = await value
            messages, options = found
            questions[session_id] = len(await journal.approvals(run.run_id))
            calls[session_id] = agent.call(
                *messages, session_id=session_id, context=value, **options
            )
    for call in calls.values():
        parent.call_handler(call)
    lists = _approvals_below(agent)
    if lists:
        waits = (_until_asked(call, lists, questions[key]) for key, call in calls.items())
        await asyncio.gather(*waits)
    return calls


def read_session_id(text: str) -> SessionId:
    """Return the session of the last part of a run's name, which `run_id_of` wrote."""
    if text[:1] in "'\"":
        return str(ast.literal_eval(text))
    return int(text) if text.lstrip("+-").isdigit() else text


@asynccontextmanager
async def _opened(agent: Agent[Any]) -> AsyncGenerator[Journal]:
    journal = agent.journal_sessions().journal
    if isinstance(journal, Journal):
        yield journal
    else:
        async with Journal(journal) as opened:
            yield opened


def _is_interrupted(view: RunView) -> bool:
    """Return whether the last call of a session is not over."""
    roots = [row.ident for row in view.rows if row.kind == "root"]
    return bool(roots) and not any(
        row.kind == "over" and row.ident == roots[-1] for row in view.rows
    )


def _approvals_below(agent: Agent[Any]) -> list[Approvals]:
    """Return the lists in which an agent and the agents below it put their questions."""
    agents = agent.named_agents().values()
    found = [each.approve for each in agents]
    found += [getattr(each.view, "approvals", None) for each in agents]
    return list({id(each): each for each in found if isinstance(each, Approvals)}.values())


async def _until_asked(call: Node[Any], lists: list[Approvals], questions: int) -> None:
    """Wait until a call has asked this number of questions, or has ended."""
    ended = asyncio.ensure_future(observe(call))
    asked = set[tuple[int, int]]()
    try:
        while not ended.done():
            for each in lists:
                mine = (one for one in each.pending if _is_below(one, call))
                asked.update((id(each), one.number) for one in mine)
            if len(asked) >= questions:
                return
            added = [asyncio.ensure_future(each.wait_for_next()) for each in lists]
            try:
                await asyncio.wait([ended, *added], return_when=asyncio.FIRST_COMPLETED)
            finally:
                for waiter in added:
                    waiter.cancel()
    finally:
        ended.cancel()


def _is_below(question: Approval, call: Node[Any]) -> bool:
    node: Node[Any] | None = question
    while node is not None and node is not call:
        node = node.parent
    return node is call
