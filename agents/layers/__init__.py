"""Agents and what they are made of; agents are layers of larger agents.

A call brings messages, which the memory stores. An aggregator makes a request of the memory,
`handlers.respond` asks the model and runs its tools, and a parser reads the reply.

- `_agent`: `Agent`; `_call`: one call as a node, and its usage; `_answer`: how an agent answers
- `_sessions`: sessions that a journal stores; `_cut`: what an interrupted call had done
- `_steer`: messages to a call while it runs
- `_message`: messages between agents; `_memory`: the memory of each session
- `_state`: saved memories; `_aggregators`: from a memory to a request
- `_parsers`: from a reply to a value; `_actions`: calls in a reply's text; `_prompt`: `@prompt`
- `_hooks`: functions that see messages pass; `_stream`: messages of a call while they grow
- `_executor`: runs the calls in a message; `_step_agent`: thinks, acts and thinks again
- `_sequential`: agents one after the other, as one
"""

from ...dispatch.formats import FencedCall as FencedCall
from ...dispatch.formats import TextCall as TextCall
from ._actions import AgentStep as AgentStep
from ._actions import ToolAction as ToolAction
from ._actions import ToolParser as ToolParser
from ._agent import Agent as Agent
from ._aggregators import Aggregator as Aggregator
from ._aggregators import FewShotAggregator as FewShotAggregator
from ._aggregators import System as System
from ._aggregators import ToolAggregator as ToolAggregator
from ._call import AgentCall as AgentCall
from ._executor import ToolExecutor as ToolExecutor
from ._hooks import AgentHook as AgentHook
from ._hooks import AgentHookHandle as AgentHookHandle
from ._hooks import Hook as Hook
from ._hooks import HookHandle as HookHandle
from ._hooks import Hooks as Hooks
from ._memory import Memory as Memory
from ._memory import SessionId as SessionId
from ._memory import SummaryMemory as SummaryMemory
from ._memory import message_tokens as message_tokens
from ._message import TOOLS as TOOLS
from ._message import AgentMessage as AgentMessage
from ._message import StreamState as StreamState
from ._parsers import JsonParser as JsonParser
from ._parsers import Parser as Parser
from ._parsers import StringParser as StringParser
from ._prompt import Prompt as Prompt
from ._prompt import prompt as prompt
from ._sequential import Sequential as Sequential
from ._step_agent import StepAgent as StepAgent
