"""What a room needs that lets people elsewhere talk to agents.

`APPROVE`, set in a context, is asked about the calls of all agents below that name nobody.
`OwnSession` is a session that ends with whoever has made it.
"""

from __future__ import annotations

from .layers._memory import OwnSession as OwnSession
from .layers._stream import APPROVE as APPROVE
