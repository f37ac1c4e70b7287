"""Many machines: the same jobs on a Ray cluster.

`Ray` says where a job runs; `put_job(job, on=Ray(...))`, or `on="ray"`, runs it there.
"""

from ._ray import Ray as Ray
