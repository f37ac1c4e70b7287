"""Agents and what they are made of; agents are layers of larger agents.

Messages come in by a call of an agent and are remembered; an aggregator makes a request of the
memory, `handlers.respond` asks the model and runs its tools, a parser reads the reply.

- `_agent`: `Agent`; `_describe`: it in words; `_call`: one call as a node; `_answer`: its steps
- `_sessions`: sessions that a journal keeps; `_cut`: what a call had said when it was cut
- `_steer`: what calls are told while they are made
- `_usage`: what calls take, counted for their agents and sessions
- `_state`: the saved memories of an agent and all below it
- `_sequential`: agents one after the other, as one
- `_message`: what is handed on; `_memory`: what is kept; `_aggregators`: what the model reads of it
- `_parsers`: what a reply means; `_strict`: schemas that servers follow strictly
- `_actions`: calls that are found in a reply; `_prompt`: `@prompt`
- `_hooks`: what sees messages pass; `_stream`: what is said, as it grows
- `_knowledge`: documents that are searched before the model is asked, and what an answer cites
- `_executor`: runs the calls in a message; `_step_agent`: thinks, acts and thinks again
"""

from ._actions import AgentStep as AgentStep
from ._actions import FencedCall as FencedCall
from ._actions import TextCall as TextCall
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
