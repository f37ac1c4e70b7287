"""Seeing a run: recorded, drawn while it runs and afterwards, compared, sent to other systems.

Events go one way: from the tree by a feed into a thread (`_feed`), there into lines of a file
(`_line`, `_record`) or into spans (`_otel`). All that shows a run reads lines into a trace
(`_trace`) and draws that:

- `_feed`: the way from a tree to a thread; `_handle`: what all have in common that follow one
- `_line`: events as lines of JSON
- `_record`: `record`, the file
- `lines`: the same for rooms that send them elsewhere
- `_trace`, `_trace_node`: lines read again, as a tree of nodes
- `_live`, `_follow`: a trace that grows: of a tree in this process; of another's recording
- `_page`, `page/`: a trace as one page of HTML; `_perfetto`: as a trace of Chrome's;
  `_replace`: pages and Perfetto files are written
- `_diff`: what is different between two traces: of what is compared (`_facts`), nodes are paired
  (`_match`), and what only follows from something else is left out (`_cause`); `_tell` says it
- `_otel`, `_spans`: spans of OpenTelemetry, made from the events; `_genai`, the names in them;
  `_run_ids`, the ids of those of a durable run; `_meter`, what is measured
"""

from ._diff import Change as Change
from ._diff import Difference as Difference
from ._diff import Pace as Pace
from ._diff import Spent as Spent
from ._diff import diff as diff
from ._follow import follow as follow
from ._live import LiveTrace as LiveTrace
from ._live import live as live
from ._otel import Spans as Spans
from ._otel import otel as otel
from ._record import Recorder as Recorder
from ._record import record as record
from ._trace import Trace as Trace
from ._trace import TraceError as TraceError
from ._trace import TraceNode as TraceNode
from ._trace import TraceRequest as TraceRequest
from ._trace import read as read
