"""Save the conversation after a crash."""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

from ..messages import Conversation
from ._terminal import complain

__all__ = ["rescue"]


def rescue(conversation: Conversation) -> None:
    """Save a conversation and print its path; print the conversation if it cannot be saved."""
    if not any(message.role == "user" for message in conversation):
        return
    folders = [Path(tempfile.gettempdir())]
    with suppress(Exception):
        from platformdirs import user_state_path

        folders.insert(0, user_state_path("anabranch", ensure_exists=True))
    with suppress(OSError):  # standard error may be closed
        for folder in folders:
            with suppress(Exception):
                path = folder / f"chat-{conversation.thread_id}.json"
                conversation.save(path)
                complain(f"the conversation is saved: --load {path} goes on with it")
                return
        complain("the conversation could not be saved; this is what was said:")
        for message in conversation:
            sys.stderr.write(f"{json.dumps([message.role, message.content])}\n")
