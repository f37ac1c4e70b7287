"""Tracing: record a run, show it live or afterwards, compare two runs, export to other systems.

An event thread (`_event_thread`) passes a tree's events to a sink, which makes records (`records`)
or spans (`_spans`) of them. All views read records into a trace (`_trace`):

- `_recorder`: `record`, into a file, and `live`, in this process
- `_recording_file`: the files of recordings with their locks, and the files of views
- `_read`: `read` and `follow`, a recording that is complete or still grows
- `_trace`, `_trace_node`: records as a tree of nodes
- `_page`: a trace as a page of HTML; `pages`: pages from their parts
- `page/`: the parts; `base.css` has the colors of this page and of the server's chat page
- `_perfetto`: a trace in Chrome's format
- `_match`, `_diff`: pairs of nodes in two traces, and their differences
- `_otel`, `_spans`, `_genai`: OpenTelemetry spans, with its conventions and metrics
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
