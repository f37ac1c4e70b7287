"""The fork: split a streaming reply into branches, and assemble the finished message.

Reading a reply:

- `_reply`: `fork` and the `Reply` that it returns
- `_source`: open and close a source of deltas, async or blocking
- `_pump`: the node that reads the source and feeds the branches
- `_channel`: the branches, and the gate that holds the source back while one is full
- `pouring`: pass the items of a branch to a function

Assembling it:

- `assembly`: turn deltas into branches and a message, with or without a pump
- `_call`: one tool call while its arguments arrive
- `_user_text`: join the texts for the user from several origins
- `_scan`: the incremental reader of one JSON object

Tool calls that the model writes as text:

- `formats`: one class for each format, and the search for a call in a complete reply
- `_format`: their base class, and the interface of their readers
- `_splitter`: find formats in streaming text
- `_body`, `_json_body`, `_marked`: read calls with a named head, JSON calls, and their objects
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
