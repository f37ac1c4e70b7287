"""Names of other frameworks that Anabranch refuses, and the names to write instead.

For people who move a program here. docs/from-other-frameworks.md has all concepts.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = [
    "CLASS_ADVICE",
    "NO_TEXT_ADVICE",
    "OPTION_ADVICE",
    "OTHER_FIELDS",
    "OTHER_OPTIONS",
    "PAIR_ADVICE",
    "PLACE_ADVICE",
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
    "output_parser": "output_format",
    "parser": "output_format",
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
    "handoffs": "tools=[handoff(other)]",
    "input_guardrails": "guards=[check]",
    "model_type": "connect('openai:MODEL') names the model",
    "output_guardrails": "a function with @agent.output_validator checks the output",
    "state": "agent.load_state_dict(state) restores one, and a journal= stores sessions",
    # Options of a node, which people pass to an agent or its call.
    "limits": "limits of a call are an option of run_sync, stream, run and call_handler",
    "timeout": "the time of a call is an option of run_sync, stream, run and call_handler",
}
"""What to write instead of an option that is no argument."""

PLACE_ADVICE: Mapping[str, str] = {
    "human_input_mode": "ConversableAgent takes it; approve= of an Agent asks about tools",
    "is_termination_msg": "is_termination= of ConversableAgent; an Agent ends with its answer",
}
"""Where to write an option that other classes or calls have, perhaps under another name."""

OTHER_FIELDS: Mapping[str, str] = {
    "extra_info": "extra",
    "message": "content",
    "metadata": "extra",
    "name": "sender",
    "role": "sender",
    "text": "content",
}
"""The field to write instead of one of another framework's message."""

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
    "TaskNode": "anabranch.commander.Node",
    "tasker": "anabranch.jobs.Job",
    # Lagent
    "ActionExecutor": _EXECUTOR,
    "AgentForInternLM": _STEPS,
    "AsyncActionExecutor": _EXECUTOR,
    "AsyncAgent": "anabranch.agents.Agent",
    "BaseAction": "anabranch.tools.tool",
    "BingSearch": "anabranch.tools.search_engine",
    "CustomFormatParser": "anabranch.agents.JsonParser",
    "DefaultAggregator": "anabranch.agents.Aggregator",
    "GPTAPI": _CONNECT,
    "IPythonInteractive": _KERNEL,
    "IPythonInterpreter": _KERNEL,
    "InternLMToolAggregator": "anabranch.agents.ToolAggregator",
    "InterpreterParser": "anabranch.agents.ToolParser",
    "JSONParser": "anabranch.agents.JsonParser",
    "LMDeployClient": _CONNECT,
    "MathCoder": _STEPS,
    "MixedToolParser": "anabranch.agents.ToolParser",
    "PluginParser": "anabranch.agents.ToolParser",
    "ReAct": _STEPS,
    "StrParser": "anabranch.agents.StringParser",
    "VllmModel": _CONNECT,
    "tool_api": "anabranch.tools.tool",
    # Byzer-Agent
    "ByzerLLM": _CONNECT,
    "ChatResponse": "anabranch.agents.AgentMessage",
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
    # OpenAI Agents SDK and Pydantic AI
    "RunContext": "anabranch.commander.Context",
    "RunContextWrapper": "anabranch.commander.Context",
    "Runner": "anabranch.agents.Agent",
    "function_tool": "anabranch.tools.tool",
    # Names of Anabranch itself, which people look for in its other packages.
    "GroupChat": "anabranch.agents.GroupChat",
    "InputRefused": "anabranch.agents.errors.InputRefused",
    "Journal": "anabranch.store.Journal",
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
    use = "" if meant == name else f"Use {meant}: "
    return f"{package} has no {name}. {use}from {home} import {meant}"
