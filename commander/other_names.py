"""Names of other frameworks that Anabranch refuses, and the names to write instead.

For people who move a program here. docs/from-other-frameworks.md has all concepts.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CLASS_ADVICE",
    "NO_TEXT_ADVICE",
    "OPTION_ADVICE",
    "OTHER_OPTIONS",
    "PAIR_ADVICE",
    "class_advice",
]

OTHER_OPTIONS: Mapping[str, str] = {
    "deps": "context",
    "finish_condition": "finished",
    "functions": "tools",
    "is_termination_msg": "is_termination",
    "llm": "backend",
    "llm_adapter": "backend",
    "llm_config": "backend",
    "max_new_tokens": "max_tokens",
    "max_turn": "max_rounds",
    "max_turns": "max_rounds",
    "meta_prompt": "instructions",
    "response_model": "output_type",
    "result_type": "output_type",
    "retrieval": "knowledge",
    "stop_words": "stop",
    "system": "instructions",  # also of earlier versions
    "system_message": "instructions",
    "system_prompt": "instructions",
    "template": "instructions",
}
"""The argument to write instead of an option, where an agent or a call has that argument."""

OPTION_ADVICE: Mapping[str, str] = {
    "api_base": "connect('openai:MODEL', base_url=...) takes the address",
    "api_key": "connect('openai:MODEL', api_key=...) takes the key",
    "base_url": "connect('openai:MODEL', base_url=...) takes the address",
    "history": "each call takes history=, such as agent(question, history=stored)",
    "code_execution_config": "code runs in a tool: tools=[PythonKernel()]",
    "context": "each call takes context=, such as agent(question, context=user)",
    "deps_type": (
        "a call takes context=, and functions with a parameter of type Context[...] read it"
    ),
    "model": "the first argument of an agent is the model's name; a call takes backend=",
    "model_settings": "options of the model are arguments, such as temperature=0",
    "model_type": "connect('openai:MODEL') names the model",
    # Options of a node, which people pass to an agent or its call.
    "limits": "limits of a call are an option of run_sync, stream, run and call_handler",
    "timeout": "the time of a call is an option of run_sync, stream, run and call_handler",
}
"""What to write instead of an option that is no argument."""

_KERNEL = "anabranch.tools.PythonKernel"
_EXECUTOR = "anabranch.agents.ToolExecutor"
_STEPS = "anabranch.agents.StepAgent"
_CONNECT = "anabranch.backends.connect"

CLASS_ADVICE: Mapping[str, str] = {
    # Agere
    "CommanderAsync": "anabranch.commander.Commander",
    "LLMAsyncAdapter": _CONNECT,
    "PromptTemplate": "anabranch.agents.prompt",
    "ToolsManager": "anabranch.tools.Toolkit",
    "async_dispatcher_tools_call_for_openai": "anabranch.dispatch.fork",
    "run_auto": "anabranch.commander.run",
    "self_handler": "anabranch.handlers.handler",
    "tasker": "anabranch.jobs.Job",
    # Lagent
    "ActionExecutor": _EXECUTOR,
    "AgentForInternLM": _STEPS,
    "AsyncActionExecutor": _EXECUTOR,
    "AsyncAgent": "anabranch.agents.Agent",
    "BaseAction": "anabranch.tools.tool",
    "BingSearch": "anabranch.tools.search_engine",
    "DefaultAggregator": "anabranch.agents.Aggregator",
    "GPTAPI": _CONNECT,
    "IPythonInteractive": _KERNEL,
    "IPythonInterpreter": _KERNEL,
    "InternLMToolAggregator": "anabranch.agents.ToolAggregator",
    "JSONParser": "anabranch.agents.JsonParser",
    "LMDeployClient": _CONNECT,
    "MathCoder": _STEPS,
    "ReAct": _STEPS,
    "StrParser": "anabranch.agents.StringParser",
    "VllmModel": _CONNECT,
    "tool_api": "anabranch.tools.tool",
    # Byzer-Agent
    "ByzerLLM": _CONNECT,
    "GroupChatManager": "anabranch.agents.GroupChat",
    "PythonSandboxAgent": _KERNEL,
    # TinyAgentSmith
    "CustomAPIAdapter": _CONNECT,
    "GroqAPIAdapter": _CONNECT,
    "MaxContextError": "anabranch.commander.ContextTooLong",
    "MistralAPIAdapter": _CONNECT,
    "OpenAiAPIAdapter": _CONNECT,
    "RAGMemory": "anabranch.agents.orchestration.Retrieval",
    "RagWithQueryGenerator": "anabranch.agents.orchestration.Retrieval",
}
"""What to import instead of a class or a function."""

PAIR_ADVICE = (
    "Return the answer alone instead of (True, answer), None instead of (True, None), and NOT_MINE"
    " instead of (False, None)"
)
"""For a reply function that returns (final, message), as in Byzer-Agent."""

NO_TEXT_ADVICE = "Return the agent's answer, such as `response`, and change the state besides"
"""For a `process_response` that only changes the state, as in TinyAgentSmith."""


def class_advice(package: str, name: str) -> str | None:
    """Return the message for the import of a name from a package; None for an unknown name."""
    if name not in CLASS_ADVICE:
        return None
    home, _, meant = CLASS_ADVICE[name].rpartition(".")
    return f"{package} has no {name}. Use {meant}: from {home} import {meant}"
