"""For agents on other machines: the side of the caller and that of the agent.

The caller's side is a `Participant`. It asks with `run_in_tree`, so that the question is a node of
the caller's tree, and sends `limit` and `left` of `current_scope()` and `current_session()` along.
Parts of the answer go to `audible_scope()`, which is None without listeners. On the agent's side
`continue_scope` continues the conversation. Afterwards the caller's side subtracts the messages
sent there from `left`.
"""

from __future__ import annotations

from .conversation._scope import Scope as Scope
from .conversation._scope import audible_scope as audible_scope
from .conversation._scope import continue_scope as continue_scope
from .conversation._scope import current_scope as current_scope
from .conversation._scope import current_session as current_session
from .layers._call import run_in_tree as run_in_tree
