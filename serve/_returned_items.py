"""Provider items that a client has dropped from a reply, found by the calls of that reply.

Many clients of chat completions send a message back without the fields that they do not know.
Providers that want such data want them with the reply that called tools. The id of a call is the
provider's own, so the server finds its run by that id, as long as it keeps the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..messages import Message
from ._log import EntriesExpired
from ._openai_chat import chat_completion
from ._run import Run
from ._runs import Runs

__all__ = ["return_items"]


async def return_items(runs: Runs, owner: str, served: str, messages: Iterable[Message]) -> None:
    """Give replies with calls the provider items that they came with.

    A reply has to be as it was said, with its text and its calls. Its run is kept for `keep`
    seconds from now on.
    """
    for message in messages:
        if not message.tool_calls or message.provider_items:
            continue
        for run in runs.calling(owner, served, message.tool_calls[0].id):
            await asyncio.sleep(0)  # a request may have many such messages
            said = _said(run)
            if said is not None and _words(said) == _words(message):
                message.provider_items[:] = said.provider_items
                runs.renew(run)
                break


def _said(run: Run) -> Message | None:
    """Return the whole message of a run, with its items."""
    try:
        made = chat_completion("", "", 0, run.log.entries())
    except EntriesExpired:
        return None
    return Message.from_wire(made["choices"][0]["message"])


def _words(message: Message) -> tuple[str, list[tuple[Any, ...]]]:
    """Return what clients send back of a reply."""
    calls = [(call.id, call.name, call.arguments) for call in message.tool_calls]
    return message.content or "", calls
