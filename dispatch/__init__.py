"""Forking a reply: the incremental JSON reader, text formats, channels, assembly."""

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
