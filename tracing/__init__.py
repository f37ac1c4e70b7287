"""Tracing: record a run, show it live or afterwards, compare two runs, export to other systems.

Events pass from the tree through a feed to a thread (`_feed`), which makes records (`records`) or
spans (`_spans`) of them. All views read records into a trace (`_trace`) and show that:

- `_feed`: from a tree to a thread; the handle that follows a tree
- `records`: events as records, in recordings and on other packages' wires
- `_record`: `record`, into a file, and `live`, in this process
- `_trace`, `_trace_node`: records as a tree of nodes
- `_read`: `read` and `follow`, a recording that is complete or still grows
- `pages`: pages of HTML from their parts; `_page`, `page/`: a trace as such a page
- `_perfetto`: a trace in Chrome's format; `_replace`: pages and such traces as files
- `_match`, `_diff`: pairs of nodes in two traces, and their differences
- `_otel`, `_spans`: OpenTelemetry spans of the events; `_genai`: its conventions, and metrics
"""

from ._diff import Change as Change
from ._diff import Difference as Difference
from ._diff import DurationChange as DurationChange
from ._diff import UsageChange as UsageChange
from ._diff import diff as diff
from ._otel import Spans as Spans
from ._otel import otel as otel
from ._read import follow as follow
from ._read import read as read
from ._recorder import LiveTrace as LiveTrace
from ._recorder import Recorder as Recorder
from ._recorder import live as live
from ._recorder import record as record
from ._trace import Trace as Trace
from ._trace_node import TraceError as TraceError
from ._trace_node import TraceNode as TraceNode
from ._trace_node import TraceRequest as TraceRequest
