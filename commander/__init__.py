"""The engine: nodes, the tree they make, their scheduling, failures and cancellation.

It stands on the standard library and anyio alone and knows nothing of language models.

A node comes in by `Node.put_job` or `call_handler` (`_node.py`, the public face; `_options.py` has
the options of both), passes one gate (`_entry.py`), perhaps the queue (`_queue.py`, with its seats
in `_seat.py`), and gets a task (`_task.py`) that runs its body (`_life.py`). Whoever ends last
calls its final callbacks, closes it and hands its outcome to those who await it (`_end.py`,
`waiting.py`), its failure to the parent's policy (`_failure.py`, `_policy.py`); `_cancel.py` ends
it early. `_settle.py` waits for several.
`_policy.py` also says when a node is tried again and after what pause (`Retry`, `Restart`; for
requests: `backends/_retry.py`). Callbacks are taken by `_node.py` and kept in the record;
`at_start` and `at_retry` run in `_life.py`, the final ones in `_end.py`. What all of these know of
a node is its record (`_record.py`), its state by the table in `_state.py`.

The root is the commander (`_commander.py`, with the `Tree` that its nodes share), for a program
without a loop `_run.py`, for other threads `_threadsafe.py`. Out come events (`_event.py`,
`_events.py`), drawings (`_snapshot.py`), what a tree that hangs is waiting for (`_explain.py`,
`_reach.py`, `_stack.py`; told now and then by `_waits.py`), what it has spent (`_usage.py` adds up
what others charge; `_limits.py` is the empty base of `backends/limits.py`; `_cpu.py` measures CPU
time, which the record keeps) and who blocks the loop (`_watch.py`). Blocking work: `_blocking.py`
and `_worker.py`; work elsewhere: `_place.py`. What is said of a user's exception is said in
`_report.py`, which no exception, however odd, can break.

Other rooms use what is exported here, `errors.py`, `waiting.py`, `remote.py` (for places), `tap.py`
(for those who follow a whole tree), `pattern.py` (for edges), `process.py`, `thread.py` (what a
thread does at a cancel), `awaitable.py` (a user's method that should be async), `kinds.py` (an
argument of the wrong kind), `scope.py`, `ends.py` and `kept.py` (for runs that are kept in a
journal), `plugins.py` and `lazy.py` (for names that packages bring), `stored_names.py` (for names
of classes and functions in stored data), and `private.py` (for private names of asyncio that Python
may change).
"""

from ._blocking import check_cancelled as check_cancelled
from ._commander import Commander as Commander
from ._event import Blocked as Blocked
from ._event import Event as Event
from ._event import EventKind as EventKind
from ._event import Origin as Origin
from ._events import Events as Events
from ._events import act_as as act_as
from ._events import actor_of as actor_of
from ._events import emit as emit
from ._events import is_watched as is_watched
from ._explain import Explanation as Explanation
from ._limits import NodeLimits as NodeLimits
from ._node import Node as Node
from ._node import current_node as current_node
from ._options import HandlerOptions as HandlerOptions
from ._options import JobOptions as JobOptions
from ._place import On as On
from ._place import Place as Place
from ._place import RemoteBody as RemoteBody
from ._policy import Policy as Policy
from ._policy import Quorum as Quorum
from ._policy import Restart as Restart
from ._policy import Retry as Retry
from ._policy import quorum as quorum
from ._record import Actor as Actor
from ._record import Callback as Callback
from ._record import NodeState as NodeState
from ._record import parent_here as parent_here
from ._run import run as run
from ._settle import settle as settle
from ._snapshot import NodeSnapshot as NodeSnapshot
from ._snapshot import TreeSnapshot as TreeSnapshot
from ._usage import charge as charge
from ._usage import limits_around as limits_around
from ._usage import payer as payer
from ._usage import payers as payers
from .errors import AnabranchError as AnabranchError
from .errors import AuthenticationError as AuthenticationError
from .errors import BackendError as BackendError
from .errors import BackendUnavailable as BackendUnavailable
from .errors import BadResponse as BadResponse
from .errors import BudgetExceeded as BudgetExceeded
from .errors import ConfigurationError as ConfigurationError
from .errors import ContextTooLong as ContextTooLong
from .errors import MissingExtra as MissingExtra
from .errors import ModelNotFound as ModelNotFound
from .errors import NodeCancelled as NodeCancelled
from .errors import NodeClosed as NodeClosed
from .errors import NotDurable as NotDurable
from .errors import QuorumNotMet as QuorumNotMet
from .errors import RateLimited as RateLimited
from .errors import StreamInterrupted as StreamInterrupted
from .errors import ToolError as ToolError
from .errors import WorkerLost as WorkerLost
