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
