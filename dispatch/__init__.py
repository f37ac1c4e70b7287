"""The fork: one reply becomes branches that are read while it arrives, and a message at the end.

A source comes in by `fork` (`_reply`); text, calls and the message go out by the `Reply`.

- `_source`: what a reply is read from, async or blocking; `_pump`: the node that reads it
- `_channel`: the branches, and when a full one holds the source back; `pouring`: what comes, passed
  on item by item
- `assembly`: from deltas to branches and to the message; also of deltas that are all there
- `_call`, `_user_text`: one tool call while it arrives, and what the user is told in it
- `_scan`: the incremental reader of one JSON object
- `formats`: calls written as text, a class for each way, and where a complete reply has one;
  `_format` is their base
- `_splitter`: finds formats in text that streams
- `_body`, `_json_body`, `_marked`: read what formats hold
"""

from ._format import Body as Body
from ._format import Format as Format
from ._format import Output as Output
from ._reply import Reply as Reply
from ._reply import fork as fork
from .formats import BareJSON as BareJSON
from .formats import FencedCode as FencedCode
from .formats import Hermes as Hermes
from .formats import InternLMInterpreter as InternLMInterpreter
from .formats import InternLMPlugin as InternLMPlugin
from .formats import Llama as Llama
from .formats import Mistral as Mistral
from .formats import ReAct as ReAct
from .formats import Think as Think
