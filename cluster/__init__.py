"""Many machines: the same jobs, agents and backends on a Ray cluster.

`Ray` says where a thing runs. `put_job(job, on=Ray(...))`, or `on="ray"`, runs a job there;
`remote` makes an agent there, `serve` puts a backend there that `connect("ray:NAME")` reaches.
"""

from ._agent import RemoteAgent as RemoteAgent
from ._agent import find as find
from ._agent import remote as remote
from ._directory import ClusterDirectory as ClusterDirectory
from ._engine import Engine as Engine
from ._engine import RayBackend as RayBackend
from ._engine import serve as serve
from ._ray import Ray as Ray
from ._resident import NoResident as NoResident
from ._resident import Opening as Opening
