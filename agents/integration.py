"""For packages that serve agents or run them on other machines.

Serving: a feed in the context variable `MESSAGE_FEED` receives all messages of the agents below,
also replies that broke off. `APPROVE` decides on tool calls of agents below without `approve=`.
A `TemporarySession` ends with its owner.

Other machines: the caller's side is a `Participant`. It asks with `run_in_tree`, so that the
question is a node of the caller's tree. It sends `limit` and `left` of `current_scope()`, and
`current_session()`, and passes parts of the answer to `audible_scope()`, which is None without
listeners. The agent's side continues the conversation with `continue_scope`. Afterwards the caller
subtracts the messages sent there from `left`.
"""

from __future__ import annotations

from .conversation._scope import ConversationScope as ConversationScope
from .conversation._scope import audible_scope as audible_scope
from .conversation._scope import continue_scope as continue_scope
from .conversation._scope import current_scope as current_scope
from .conversation._scope import current_session as current_session
from .layers._call import run_in_tree as run_in_tree
from .layers._memory import TemporarySession as TemporarySession
from .layers._stream import APPROVE as APPROVE
from .layers._stream import MESSAGE_FEED as MESSAGE_FEED
from .layers._stream import Feed as Feed
from .layers._stream import StreamedReply as StreamedReply
