"""Agents, conversations of agents, and agents that act in an environment.

- `layers`: an agent, and agents made of agents: memory, aggregators, parsers, hooks, tools
- `conversation`: agents that talk with each other, in pairs and groups, and with people
- `orchestration`: a function chooses the next agent, an environment reacts; strategies
- `errors`: the errors of this package; `integration`: names for servers and clusters

`layers` imports neither of the other two, and these do not import each other. This module has the
common names; each of the three packages has all of its own. A call of an agent is a node of the
tree. It stores its messages in the memory, asks the model with `handlers.respond` and returns the
answer as a message.
"""

from .conversation import NOT_MINE as NOT_MINE
from .conversation import TERMINATE as TERMINATE
from .conversation import Answer as Answer
from .conversation import Chat as Chat
from .conversation import ChatResult as ChatResult
from .conversation import ConversableAgent as ConversableAgent
from .conversation import Directory as Directory
from .conversation import GroupChat as GroupChat
from .conversation import GroupTalk as GroupTalk
from .conversation import Participant as Participant
from .conversation import Questions as Questions
from .conversation import QueueInput as QueueInput
from .conversation import ReplyResult as ReplyResult
from .conversation import UserProxyAgent as UserProxyAgent
from .conversation import reply as reply
from .layers import Agent as Agent
from .layers import AgentHook as AgentHook
from .layers import AgentMessage as AgentMessage
from .layers import AgentStream as AgentStream
from .layers import Aggregator as Aggregator
from .layers import FewShotAggregator as FewShotAggregator
from .layers import JsonParser as JsonParser
from .layers import Memory as Memory
from .layers import Sequential as Sequential
from .layers import StepAgent as StepAgent
from .layers import StringParser as StringParser
from .layers import SummaryMemory as SummaryMemory
from .layers import ToolAggregator as ToolAggregator
from .layers import ToolExecutor as ToolExecutor
from .layers import ToolParser as ToolParser
from .layers import handoff as handoff
from .layers import prompt as prompt
from .orchestration import EpisodeResult as EpisodeResult
from .orchestration import Namespace as Namespace
from .orchestration import Observation as Observation
from .orchestration import Orchestrator as Orchestrator
from .orchestration import PromptedAgent as PromptedAgent
from .orchestration import PromptEngineer as PromptEngineer
from .orchestration import State as State
from .orchestration import planner_reviewer_executor as planner_reviewer_executor
from .orchestration import reflexion as reflexion
from .orchestration import single_agent as single_agent
