"""Orchestrators: agents that share a state and act in an environment.

`Orchestrator.forward` takes an observation. A transition function chooses the next agent. The
agent's `PromptEngineer` makes a prompt from the state, and writes the answer into the state. An
action goes to the environment.

- `_orchestrator`: `Orchestrator`, environments, and `Episode`, which runs both to the end
- `_state`: the state that agents share; `_engineer`: prompt engineers, and agents that have one
- `_modules`: work before a prompt and after an answer
- `_strategies`: a single agent, Reflexion, and a planner with a reviewer and an executor;
  `prompts/`: their prompts
"""

from ._engineer import JsonEngineer as JsonEngineer
from ._engineer import PromptedAgent as PromptedAgent
from ._engineer import PromptEngineer as PromptEngineer
from ._engineer import Prompts as Prompts
from ._modules import ListMemory as ListMemory
from ._modules import Module as Module
from ._modules import Retrieval as Retrieval
from ._modules import RunningSummary as RunningSummary
from ._orchestrator import Action as Action
from ._orchestrator import Environment as Environment
from ._orchestrator import Episode as Episode
from ._orchestrator import EpisodeResult as EpisodeResult
from ._orchestrator import EpisodeStatus as EpisodeStatus
from ._orchestrator import EpisodeStep as EpisodeStep
from ._orchestrator import Observation as Observation
from ._orchestrator import Orchestration as Orchestration
from ._orchestrator import Orchestrator as Orchestrator
from ._orchestrator import Transition as Transition
from ._state import Mistake as Mistake
from ._state import Namespace as Namespace
from ._state import State as State
from ._strategies import PastAction as PastAction
from ._strategies import PlannerState as PlannerState
from ._strategies import ReflexionState as ReflexionState
from ._strategies import SingleAgentState as SingleAgentState
from ._strategies import find_repetition as find_repetition
from ._strategies import planner_reviewer_executor as planner_reviewer_executor
from ._strategies import reflexion as reflexion
from ._strategies import single_agent as single_agent
