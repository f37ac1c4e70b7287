"""Forking a reply: the incremental JSON reader, text formats, channels, assembly."""

from ._format import Body as Body
from ._format import Format as Format
from ._format import Output as Output
from ._formats import BareJSON as BareJSON
from ._formats import FencedCode as FencedCode
from ._formats import Hermes as Hermes
from ._formats import InternLMInterpreter as InternLMInterpreter
from ._formats import InternLMPlugin as InternLMPlugin
from ._formats import Llama as Llama
from ._formats import Mistral as Mistral
from ._formats import ReAct as ReAct
from ._formats import Think as Think
from ._reply import Reply as Reply
from ._reply import fork as fork
