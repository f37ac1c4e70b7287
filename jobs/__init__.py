"""`Job`, edges between jobs, and the ready-made jobs."""

from ._chat import ChatJob as ChatJob
from ._edge import add_conditional_edge as add_conditional_edge
from ._edge import add_edge as add_edge
from ._job import Job as Job
from ._read_line import read_line as read_line
from ._response import ResponseJob as ResponseJob
