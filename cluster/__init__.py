"""Jobs, agents and backends on the machines of a Ray cluster.

`put_job(job, on=Ray(...))`, or `on="ray"`, runs a job there. `remote` makes an agent in an actor.
`serve` puts a backend in an actor that `connect("ray:NAME")` reaches. "Home" in this package is the
process that put the job or called the agent.

Between processes:
- `_protocol`: the messages between the processes, with a table of senders and receivers
- `_payload`: values as bytes; refuses secrets
- `_subtree`: both ends of a subtree that runs in another process: its reports, and its nodes at
  home
- `_mailbox`: brings reports home, and asks home for turns under the tree's limits

Jobs:
- `_placement`: `Ray`, and the machines that can run it
- `_job`: the job in the home process, and the Ray task that runs it

Actors:
- `_actor`, `_stream`: named actors with their handles, and the streams that they return
- `_agent`, `_agent_actor`: an agent as its callers see it, and in its actor
- `_engine`: a backend in an actor

Ray:
- `_cluster`: joins a cluster, notices the loss of its head, leaves it
- `_ray`: imports Ray, translates its errors, lends the CPUs of a task that waits

Ray itself brings the output of workers home, because `_cluster` joins with `log_to_driver`.
"""

from ._actor import PendingActor as PendingActor
from ._agent import RemoteAgent as RemoteAgent
from ._agent import find as find
from ._agent import remote as remote
from ._agent_actor import ClusterDirectory as ClusterDirectory
from ._engine import Engine as Engine
from ._engine import RayBackend as RayBackend
from ._engine import serve as serve
from ._placement import Ray as Ray
from ._ray import ActorNotFound as ActorNotFound
