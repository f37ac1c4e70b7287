"""Agents that take turns as a function decides and act on an environment; ready-made strategies.

An observation comes in by `Orchestrator.forward`. The transition names the next agent, whose prompt
engineer makes a prompt of the state and reads the answer. An action for the environment goes out.

- `_orchestrator`: `Orchestrator`, environments, and `Episode`, which plays one to the end
- `_state`: the state that agents share; `_engineer`: prompts of the state, answers into it
- `_modules`: what happens before a prompt and after an answer
- `_single_agent`, `_reflexion`, `_planner`: the strategies; `_strategy`: what they share
- `prompts/`: the texts of their prompts
"""

from ._engineer import JsonEngineer as JsonEngineer
from ._engineer import PromptedAgent as PromptedAgent
from ._engineer import PromptEngineer as PromptEngineer
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
from ._planner import PlannerState as PlannerState
from ._planner import planner_reviewer_executor as planner_reviewer_executor
from ._reflexion import ReflexionState as ReflexionState
from ._reflexion import find_repetition as find_repetition
from ._reflexion import reflexion as reflexion
from ._single_agent import SingleAgentState as SingleAgentState
from ._single_agent import single_agent as single_agent
from ._state import Mistake as Mistake
from ._state import Namespace as Namespace
from ._state import State as State
from ._strategy import PastAction as PastAction
from ._strategy import Prompts as Prompts
