"""`ResponseJob`: one exchange with a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from ..backends import Backend
from ..commander.kinds import require
from ..dispatch import Format
from ..handlers import View, respond
from ..messages import Conversation, Message
from ..messages.options import check_options
from ..tools import AnyTool
from ._job import Job

__all__ = ["ResponseJob"]


class ResponseJob(Job[Message]):
    """Let the model answer the conversation, tools included; the result is its last message.

    It adds to `conversation` what `respond` adds. `options` have the wire's names, any other is a
    `ConfigurationError`. `formats` are the ways in which the model writes calls into its text, if
    not as the backend knows of it.
    """

    backend: Backend
    conversation: Conversation
    tools: Sequence[AnyTool] = ()
    view: View = field(default_factory=View)
    narrate: bool = False
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    formats: Sequence[Format] | None = None

    def __post_init__(self) -> None:
        require(self.backend, Backend, "backend must be one that connect(...) makes", like="stream")
        require(self.conversation, Conversation, "conversation must be a Conversation")
        require(self.view, View, "view must be a View", like="ended")
        check_options(self.options, "a ResponseJob")

    async def task(self) -> Message:
        """Hand the work to `respond`."""
        return await respond(
            self.backend,
            self.conversation,
            self.tools,
            self.view,
            narrate=self.narrate,
            formats=self.formats,
            **self.options,
        )
