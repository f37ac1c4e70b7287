"""What other rooms need of waiting: waits that the tree knows of, and ends that are waited out.

Whoever waits for something that the tree brings awaits a `Wait`, which names the node that will
bring it: so places under a limit, full branches and `explain` know what a task waits for.
"""

from __future__ import annotations

from ._observe import observe as observe
from ._observe import outlast as outlast
from ._waits import LocalFuture as LocalFuture
from ._waits import Wait as Wait
from ._waits import begin_wait as begin_wait
from ._waits import drives as drives
from ._waits import frames as frames
from ._waits import sleeps as sleeps
from ._waits import waits_for_tree as waits_for_tree
