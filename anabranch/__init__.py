"""Anabranch: an asyncio task-tree orchestration engine for language models.

Its packages, in layers. A package imports only from the layers below its own:

    cli                 the command `anabranch`
    testing             a scripted backend and a seeded event loop
    cluster, serve      jobs and models on Ray; an ASGI application
    agents              agents, memory, conversations, orchestrators
    store, tracing      durable runs; recordings, live views, spans
    jobs                `Job`, the chat loop, edges
    handlers            `@handler`, respond, show, call_tools
    knowledge           an index of documents
    tools, backends     tools that a model may call; models
    dispatch            the fork of a streamed reply
    messages            messages, deltas, conversations, requests
    files               SQLite files, and files that are replaced in one step
    commander           nodes, scheduling, cancellation, events, errors

This module exports the common names. It imports each package at the first use of one of its names,
so that a program pays only for the packages it uses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

try:
    from .commander.plugins import lazy_names
except ModuleNotFoundError as _error:
    if _error.name != "anabranch.commander":
        raise
    raise ImportError(
        "anabranch/ needs symbolic links, and this clone has text files instead. Run"
        " `git config core.symlinks true` and `git checkout -- anabranch`."
    ) from _error

if TYPE_CHECKING:
    from .agents import Agent as Agent
    from .agents import AgentMessage as AgentMessage
    from .agents import Memory as Memory
    from .agents import ToolExecutor as ToolExecutor
    from .agents import handoff as handoff
    from .backends import Backend as Backend
    from .backends import Limits as Limits
    from .backends import connect as connect
    from .commander import AnabranchError as AnabranchError
    from .commander import AuthenticationError as AuthenticationError
    from .commander import BackendError as BackendError
    from .commander import BackendUnavailable as BackendUnavailable
    from .commander import BadResponse as BadResponse
    from .commander import BudgetExceeded as BudgetExceeded
    from .commander import Commander as Commander
    from .commander import ConfigurationError as ConfigurationError
    from .commander import ContentFiltered as ContentFiltered
    from .commander import Context as Context
    from .commander import ContextError as ContextError
    from .commander import ContextTooLong as ContextTooLong
    from .commander import MissingExtra as MissingExtra
    from .commander import ModelNotFound as ModelNotFound
    from .commander import ModelRetry as ModelRetry
    from .commander import Node as Node
    from .commander import NodeCancelled as NodeCancelled
    from .commander import NodeClosed as NodeClosed
    from .commander import NotDurable as NotDurable
    from .commander import OutputInvalid as OutputInvalid
    from .commander import QuorumNotMet as QuorumNotMet
    from .commander import RateLimited as RateLimited
    from .commander import Refused as Refused
    from .commander import ReplyTruncated as ReplyTruncated
    from .commander import Restart as Restart
    from .commander import Retry as Retry
    from .commander import StreamInterrupted as StreamInterrupted
    from .commander import ToolError as ToolError
    from .commander import WorkerLost as WorkerLost
    from .commander import check_cancelled as check_cancelled
    from .commander import current_context as current_context
    from .commander import current_node as current_node
    from .commander import quorum as quorum
    from .commander import run as run
    from .commander import settle as settle
    from .dispatch import fork as fork
    from .handlers import Handler as Handler
    from .handlers import handler as handler
    from .jobs import Job as Job
    from .jobs import add_conditional_edge as add_conditional_edge
    from .jobs import add_edge as add_edge
    from .messages import Conversation as Conversation
    from .messages import Message as Message
    from .messages import Part as Part
    from .messages import ToolCall as ToolCall
    from .tools import Approvals as Approvals
    from .tools import Tool as Tool
    from .tools import describe as describe
    from .tools import open_tools as open_tools
    from .tools import tool as tool

_NAMES_BY_PACKAGE = {
    "agents": "Agent AgentMessage Memory ToolExecutor handoff",
    "backends": "Backend Limits connect",
    "commander": """AnabranchError AuthenticationError BackendError BackendUnavailable BadResponse
        BudgetExceeded Commander ConfigurationError ContentFiltered Context ContextError
        ContextTooLong MissingExtra ModelNotFound ModelRetry Node NodeCancelled NodeClosed
        NotDurable OutputInvalid QuorumNotMet RateLimited Refused ReplyTruncated Restart Retry
        StreamInterrupted ToolError WorkerLost check_cancelled current_context current_node quorum
        run settle""",
    "dispatch": "fork",
    "handlers": "Handler handler",
    "jobs": "Job add_conditional_edge add_edge",
    "messages": "Conversation Message Part ToolCall",
    "tools": "Approvals Tool describe open_tools tool",
}

__all__ = sorted(name for names in _NAMES_BY_PACKAGE.values() for name in names.split())  # pyright: ignore[reportUnsupportedDunderAll] - the names above

if not TYPE_CHECKING:
    __getattr__ = lazy_names(__name__, _NAMES_BY_PACKAGE)


def __dir__() -> list[str]:
    return __all__
