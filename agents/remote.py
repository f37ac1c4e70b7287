"""What a place where agents live needs: on the side of the caller, and on that of the agent.

The caller's side is a `Participant`. It asks with `run_in_tree`, so that the question is a node of
the caller's tree. The conversation goes along as two numbers, `limit` and `left` of
`current_scope()`, and as `current_session()`; parts of the answer that come back go to
`audible_scope()`, which is None if nobody listens. There, `continue_scope` continues the
conversation for what the agent says. The caller's side then subtracts from `left` what was spent
there.
"""

from __future__ import annotations

from .conversation._scope import Scope as Scope
from .conversation._scope import audible_scope as audible_scope
from .conversation._scope import continue_scope as continue_scope
from .conversation._scope import current_scope as current_scope
from .conversation._scope import current_session as current_session
from .layers._call import run_in_tree as run_in_tree
