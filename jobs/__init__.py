"""`Job`, edges between jobs, and the ready-made jobs.

- `_job`: `Job`, a node that waits in the commander's queue, its inputs declared as fields
- `_edge`: what runs when a job has ended, put together outside the jobs; `Graph`, all of it
- `fields`: the fields of a class of jobs or a handler, and their values from JSON or text
- `_response`: `ResponseJob`, one answer of a model with its tools
- `_chat`, `_read_line`: `ChatJob`, a conversation with a person, and the line that was typed

A job comes in by `put_job` or `run`; what it returns is its result. The jobs that need a model are
imported when they are first used.
"""

from typing import TYPE_CHECKING

from ..commander.plugins import lazy_names
from ._edge import Graph as Graph
from ._edge import add_conditional_edge as add_conditional_edge
from ._edge import add_edge as add_edge
from ._job import Job as Job

if TYPE_CHECKING:
    from ._chat import ChatJob as ChatJob
    from ._read_line import read_line as read_line
    from ._response import ResponseJob as ResponseJob
else:
    __getattr__ = lazy_names(
        __name__, {"_chat": "ChatJob", "_read_line": "read_line", "_response": "ResponseJob"}
    )
