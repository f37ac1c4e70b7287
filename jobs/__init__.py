"""`Job`, edges between jobs, and the ready-made jobs."""

from ._job import Job as Job
