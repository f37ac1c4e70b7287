"""What a room needs that lets people elsewhere talk to agents.

`APPROVE`, set in a context, is asked about the calls of all agents below that name nobody.
`LISTENER` is a `Feed` that hears what agents below say: also that a text was no answer.
`OwnSession` is a session that ends with whoever has made it.
"""

from __future__ import annotations

from .layers._memory import OwnSession as OwnSession
from .layers._stream import APPROVE as APPROVE
from .layers._stream import LISTENER as LISTENER
from .layers._stream import Feed as Feed
from .layers._stream import Speech as Speech
