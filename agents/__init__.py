"""Agents over the tree: memory, aggregators, parsers, hooks, and agents made of agents."""

from ._agent import Agent as Agent
from ._aggregator import Aggregator as Aggregator
from ._aggregator import FewShotAggregator as FewShotAggregator
from ._aggregator import System as System
from ._aggregator import ToolAggregator as ToolAggregator
from ._call import AgentCall as AgentCall
from ._hook import AgentHook as AgentHook
from ._hook import AgentHookHandle as AgentHookHandle
from ._hook import text_action as text_action
from ._memory import TOOLS as TOOLS
from ._memory import Memory as Memory
from ._memory import SessionId as SessionId
from ._memory import message_tokens as message_tokens
from ._parser import JsonParser as JsonParser
from ._parser import Parser as Parser
from ._parser import StringParser as StringParser
from ._sequential import Sequential as Sequential
from ._step_agent import StepAgent as StepAgent
from ._steps import Step as Step
from ._summary import SummaryMemory as SummaryMemory
from ._tool_parser import InterpreterParser as InterpreterParser
from ._tool_parser import MixedToolParser as MixedToolParser
from ._tool_parser import PluginParser as PluginParser
from ._tool_parser import ToolAction as ToolAction
from ._tool_parser import ToolParser as ToolParser
