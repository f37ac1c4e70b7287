"""The engine: a tree of nodes, their scheduling, failures and cancellation.

It needs only the standard library and anyio, and nothing of language models.

The path of a node:

- `_node`: the public class; `_options`: the options of a put
- `_record`: the engine's state of a node; `_state`: the table of states
- `_entry`: `enter`, which adds each node to the tree and starts it
- `_queue`, `_slot`: jobs wait for a turn and for a slot under `max_concurrency`
- `_task`, `_body`: the task that runs the callbacks before the body, and the body
- `_end`: the last child or the body ends the node: callbacks, retry, and the way up the tree
- `_policy`: the names of policies, retries and restarts
- `_failure`: applies a policy: where a failure goes, and what it cancels
- `_cancel`: cancellation of a subtree; `abort`, which makes a node fail
- `_settle`: wait for several nodes

The root: `_commander`; `_run` for programs without a loop; `_threadsafe` for other threads.
Work outside of the loop: `_blocking` and `_worker` (threads, processes), `_place` (other machines).

Observation:

- `_event`, `_events`: events and their listeners; `_wait_events` publishes the nodes' waits
- `_started`: a running job with the text of its tree, for `commander.start`
- `_snapshot`, `_explain`: the tree as text, with an explanation of each node's wait
- `_task_waits`, `_frames`: the futures and nodes that a suspended coroutine waits for
- `_usage`: charges and CPU time; `_block_detector`: bodies that block the loop
- `_report`: notes, descriptions and log entries of users' exceptions

For other packages:

- `context`: `Context`, a value that a caller passes to all code below
- `errors`; `kinds` (checks of arguments); `plugins` (entry points, names imported on demand)
- `other_names` (names of other frameworks, and what to write instead)
- `waiting`, `body_waits` (wait for nodes); `durable` (journals); `remote` (places); `tap` (tracing)
- `pattern` (edges start nodes again); `process`, `thread` (cancellation reaches them)
- `stored_names` (classes in stored data); `private` (private names of asyncio)
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
from ._node import Node as Node
from ._node import current_node as current_node
from ._options import HandlerOptions as HandlerOptions
from ._options import JobOptions as JobOptions
from ._options import NodeLimits as NodeLimits
from ._options import SyncOptions as SyncOptions
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
from ._record import outermost_commander as outermost_commander
from ._record import parent_here as parent_here
from ._run import run as run
from ._settle import settle as settle
from ._snapshot import NodeSnapshot as NodeSnapshot
from ._snapshot import TreeSnapshot as TreeSnapshot
from ._started import Started as Started
from ._usage import charge as charge
from ._usage import limits_around as limits_around
from ._usage import payer as payer
from ._usage import payers as payers
from .context import Context as Context
from .context import current_context as current_context
from .errors import AnabranchError as AnabranchError
from .errors import AuthenticationError as AuthenticationError
from .errors import BackendError as BackendError
from .errors import BackendUnavailable as BackendUnavailable
from .errors import BadResponse as BadResponse
from .errors import BudgetExceeded as BudgetExceeded
from .errors import ConfigurationError as ConfigurationError
from .errors import ContentFiltered as ContentFiltered
from .errors import ContextError as ContextError
from .errors import ContextTooLong as ContextTooLong
from .errors import MissingExtra as MissingExtra
from .errors import ModelNotFound as ModelNotFound
from .errors import ModelRetry as ModelRetry
from .errors import NodeCancelled as NodeCancelled
from .errors import NodeClosed as NodeClosed
from .errors import NotDurable as NotDurable
from .errors import OutputInvalid as OutputInvalid
from .errors import QuorumNotMet as QuorumNotMet
from .errors import RateLimited as RateLimited
from .errors import Refused as Refused
from .errors import ReplyTruncated as ReplyTruncated
from .errors import StreamInterrupted as StreamInterrupted
from .errors import ToolError as ToolError
from .errors import WorkerLost as WorkerLost
