"""Agents and their parts. Agents are layers of larger agents.

A call stores its messages in the memory. An aggregator makes a request of the memory,
`handlers.respond` asks the model and runs its tools, and a parser reads the reply.

An agent:

- `_agent`: `Agent`; `_call`: one call as a node, and its usage; `_answer`: how an agent answers
- `_step_agent`: an agent whose model writes calls as text; `_sequential`: a chain of agents
- `_hooks`: functions that see and change messages; `_executor`: runs the calls in a message
- `_guards`: checks of messages beside the first request; `_as_tool`: an agent as a tool
- `_handoff`: a tool that passes the conversation on to another agent

Messages:

- `_message`: `AgentMessage`; `_memory`: the memory of each session; `_state`: saved memories
- `_prompt`: `@prompt`; `_instructions`: an agent's instructions, also as a function
- `_aggregators`: from a memory to a request
- `_output`: the type of an agent's output; `_parsers`: from a reply to a value
- `_actions`: from a reply to a tool call written as text

Around a call:

- `_override`: replace the models that agents ask; `_history`: messages that an application stores

During and after a call:

- `_stream`: messages of a call while they grow; `_agent_stream`: one call with its reader
- `_steer`: messages to a call while it runs
- `_sessions`: sessions that a journal stores; `_interrupted`: the result of an interrupted call
- `_resume`: resume the interrupted calls of all sessions
"""

from ...dispatch.formats import FencedCall as FencedCall
from ...dispatch.formats import TextCall as TextCall
from ._actions import AgentStep as AgentStep
from ._actions import ToolAction as ToolAction
from ._actions import ToolParser as ToolParser
from ._agent import Agent as Agent
from ._agent_stream import AgentStream as AgentStream
from ._aggregators import Aggregator as Aggregator
from ._aggregators import FewShotAggregator as FewShotAggregator
from ._aggregators import System as System
from ._aggregators import ToolAggregator as ToolAggregator
from ._call import AgentCall as AgentCall
from ._executor import ToolExecutor as ToolExecutor
from ._guards import Guard as Guard
from ._handoff import Handoff as Handoff
from ._handoff import handoff as handoff
from ._hooks import AgentHook as AgentHook
from ._hooks import AgentHookHandle as AgentHookHandle
from ._hooks import Hook as Hook
from ._hooks import HookHandle as HookHandle
from ._hooks import Hooks as Hooks
from ._instructions import Instructions as Instructions
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
