"""For servers that let people talk to agents.

`APPROVE`, set in a context, decides on the tool calls of all agents below that have no `approve`.
`LISTENER` is a `Feed` of all messages of agents below, also of replies that were no answer.
`OwnSession` is a session that ends with its owner.
"""

from __future__ import annotations

from .layers._memory import OwnSession as OwnSession
from .layers._stream import APPROVE as APPROVE
from .layers._stream import LISTENER as LISTENER
from .layers._stream import Feed as Feed
from .layers._stream import Speech as Speech
