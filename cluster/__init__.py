"""Many machines: the same jobs, agents and backends on a Ray cluster.

`Ray` says where a thing runs. `put_job(job, on=Ray(...))`, or `on="ray"`, runs a job there;
`remote` (in `_agent`) makes an agent there, `serve` puts a backend there that
`connect("ray:NAME")` reaches. Home is the process that put the job or made the agent.

| file | what lives there |
|---|---|
| `_protocol` | the messages between the processes, with a table of who says what to whom |
| `_payload` | what travels, as bytes; secrets are refused |
| `_ray` | Ray's errors; the main thread of a task, which lends its CPUs while the tree waits |
| `_placement`, `_cluster` | `Ray` and machines; joining and leaving |
| `_job` | a job at home, and the Ray task that drives it |
| `_remote` | both ends of a subtree that runs elsewhere: makes reports there, takes them in here |
| `_mailbox` | carries reports home, and requests to start one more model request |
| `_actor`, `_stream` | named actors and their handles; streams out of them |
| `_agent`, `_agent_service` | an agent, seen from home; in its actor |
| `_engine` | a backend in an actor, and `connect("ray:NAME")` |

In come a node and its inputs; out go events, charges, snapshots and a result, by the engine's
`commander.remote`. What a worker prints, stdout and stderr, Ray itself brings home, as `ray.init`
in `_cluster` asks by `log_to_driver`; nothing of ours catches it.
"""

from ._actor import PendingActor as PendingActor
from ._agent import RemoteAgent as RemoteAgent
from ._agent import find as find
from ._agent import remote as remote
from ._agent_service import ClusterDirectory as ClusterDirectory
from ._engine import Engine as Engine
from ._engine import RayBackend as RayBackend
from ._engine import serve as serve
from ._placement import Ray as Ray
from ._ray import ActorNotFound as ActorNotFound
