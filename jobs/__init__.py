"""`Job`, edges between jobs, and ready-made jobs.

- `_job`: `Job`, a node that waits in the commander's queue, with its inputs as fields
- `_edge`: edges, which start a job when another one has completed; `Graph` runs a graph of them
- `_chat`: `ResponseJob`, one reply of a model with its tools; `ChatJob`, a chat with a person
- `fields`: the fields of a job class or a handler, and their values from JSON or text

Jobs that need a model are imported at first use.
"""

from typing import TYPE_CHECKING

from ..commander.plugins import lazy_names
from ._edge import Graph as Graph
from ._edge import add_conditional_edge as add_conditional_edge
from ._edge import add_edge as add_edge
from ._job import Job as Job

if TYPE_CHECKING:
    from ._chat import ChatJob as ChatJob
    from ._chat import ResponseJob as ResponseJob
    from ._chat import read_line as read_line
else:
    __getattr__ = lazy_names(__name__, {"_chat": "ChatJob ResponseJob read_line"})
