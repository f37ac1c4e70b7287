"""OpenTelemetry's conventions for generative AI: attribute names, formats of content, metrics.

A test compares the names with the package `opentelemetry-semantic-conventions`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from opentelemetry.metrics import MeterProvider

from ..commander import Actor
from ..messages import Message, ReplyEvent, RequestEvent, ToolCall, Usage
from .records import masked_json, masked_text, reply_message, safe_finish_reason

OPERATION_NAME = "gen_ai.operation.name"
CHAT_OPERATION = "chat"
INVOKE_AGENT = "invoke_agent"
EXECUTE_TOOL = "execute_tool"
INVOKE_WORKFLOW = "invoke_workflow"

AGENT_NAME = "gen_ai.agent.name"
CONVERSATION_ID = "gen_ai.conversation.id"
WORKFLOW_NAME = "gen_ai.workflow.name"
PROVIDER_NAME = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
REQUEST_TEMPERATURE = "gen_ai.request.temperature"
REQUEST_TOP_P = "gen_ai.request.top_p"
REQUEST_TOP_K = "gen_ai.request.top_k"
REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
REQUEST_SEED = "gen_ai.request.seed"
REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
REQUEST_STOP_SEQUENCES = "gen_ai.request.stop_sequences"
OUTPUT_TYPE = "gen_ai.output.type"
RESPONSE_MODEL = "gen_ai.response.model"
RESPONSE_ID = "gen_ai.response.id"
RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
RESPONSE_TIME_TO_FIRST_CHUNK = "gen_ai.response.time_to_first_chunk"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
CACHED_TOKENS = "gen_ai.usage.cache_read.input_tokens"
REASONING_TOKENS = "gen_ai.usage.reasoning.output_tokens"
TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - a name
TOOL_NAME = "gen_ai.tool.name"
TOOL_TYPE = "gen_ai.tool.type"
TOOL_CALL_ID = "gen_ai.tool.call.id"
TOOL_CALL_ARGUMENTS = "gen_ai.tool.call.arguments"
TOOL_CALL_RESULT = "gen_ai.tool.call.result"
TOOL_DEFINITIONS = "gen_ai.tool.definitions"
INPUT_MESSAGES = "gen_ai.input.messages"
OUTPUT_MESSAGES = "gen_ai.output.messages"
ERROR_TYPE = "error.type"
UNKNOWN_TYPE = "_OTHER"
EXCEPTION_TYPE = "exception.type"
EXCEPTION_MESSAGE = "exception.message"
EXCEPTION_STACKTRACE = "exception.stacktrace"
HOST_NAME = "host.name"
SERVER_ADDRESS = "server.address"
SERVER_PORT = "server.port"
OPERATION_DURATION = "gen_ai.client.operation.duration"
TOKEN_USAGE = "gen_ai.client.token.usage"  # noqa: S105 - a name

# Anabranch's names, where the conventions lack one.
NODE_ID = "anabranch.node.id"  # the node's number, as in its log lines and in recordings
RUN_ID = "anabranch.run.id"
PENDING_SECONDS = "anabranch.pending"  # seconds until its body started
NODE_CANCELLED = "anabranch.cancelled"
CANCEL_REASON = "anabranch.cancel.reason"
REPLY_LEFT = "anabranch.left"  # the reply was not read to its end
INCOMPLETE_SPAN = "anabranch.incomplete"  # its start or its end was not seen
CODE_LINE = "anabranch.at"  # a line of code
BLOCKED_SECONDS = "anabranch.seconds"

# Providers with another name in the conventions.
PROVIDER_NAMES = {"mistral": "mistral_ai"}

# Options of the wire that are numbers.
_NUMERIC_OPTIONS = {
    "temperature": REQUEST_TEMPERATURE,
    "top_p": REQUEST_TOP_P,
    "top_k": REQUEST_TOP_K,
    "max_tokens": REQUEST_MAX_TOKENS,
    "max_completion_tokens": REQUEST_MAX_TOKENS,
    "seed": REQUEST_SEED,
    "presence_penalty": REQUEST_PRESENCE_PENALTY,
    "frequency_penalty": REQUEST_FREQUENCY_PENALTY,
    "n": REQUEST_CHOICE_COUNT,
}
# Attributes that are floats in the conventions.
_FLOAT_ATTRIBUTES = {
    REQUEST_TEMPERATURE,
    REQUEST_TOP_P,
    REQUEST_TOP_K,
    REQUEST_PRESENCE_PENALTY,
    REQUEST_FREQUENCY_PENALTY,
}
_OUTPUT_TYPES = {"text": "text", "json_object": "json", "json_schema": "json"}


@lru_cache(4096)
def masked(name: str) -> str:
    """Return a name; everything in it that looks like a key is masked."""
    return masked_text(name)


def node_attributes(
    number: int, parent_id: int | None, name: str, actor: Actor | None
) -> tuple[str, dict[str, Any]]:
    """Return the name of a node's span, and its attributes."""
    attributes: dict[str, Any] = {NODE_ID: number}
    if actor is not None:
        attributes[OPERATION_NAME] = INVOKE_AGENT
        attributes |= actor_attributes(actor)
        return f"{INVOKE_AGENT} {attributes[AGENT_NAME]}", attributes
    if parent_id == 0:  # a child of the commander
        attributes[OPERATION_NAME] = INVOKE_WORKFLOW
        attributes[WORKFLOW_NAME] = name
        return f"{INVOKE_WORKFLOW} {name}", attributes
    return name, attributes


def actor_attributes(actor: Actor | None) -> dict[str, str]:
    """Return the attributes of a node's agent."""
    if actor is None:
        return {}
    attributes = {AGENT_NAME: masked(actor.agent)}
    if actor.session_id is not None:
        attributes[CONVERSATION_ID] = masked(str(actor.session_id))
    return attributes


def error_type(error: BaseException) -> str:
    """Return the full name of an error's type, as the conventions require."""
    kind = type(error)
    module = kind.__module__
    return kind.__qualname__ if module == "builtins" else f"{module}.{kind.__qualname__}"


def request_attributes(asked: RequestEvent, *, content: bool) -> dict[str, Any]:
    """Return the attributes of a request when it is sent."""
    provider = masked(asked.provider)
    attributes: dict[str, Any] = {
        OPERATION_NAME: CHAT_OPERATION,
        PROVIDER_NAME: PROVIDER_NAMES.get(provider, provider),
        REQUEST_MODEL: masked(asked.model),
    }
    if asked.server is not None:
        attributes[SERVER_ADDRESS], attributes[SERVER_PORT] = (
            masked(asked.server[0]),
            asked.server[1],
        )
    for option, value in asked.options.items():
        if option in _NUMERIC_OPTIONS and isinstance(value, (int, float)):
            name = _NUMERIC_OPTIONS[option]
            attributes[name] = float(value) if name in _FLOAT_ATTRIBUTES else value
    match asked.options.get("response_format"):
        case {"type": str(kind)} if kind in _OUTPUT_TYPES:
            attributes[OUTPUT_TYPE] = _OUTPUT_TYPES[kind]
        case _:
            pass
    if content:
        match asked.options.get("stop"):
            case str(stop):
                attributes[REQUEST_STOP_SEQUENCES] = [masked_text(stop)]
            case [*stops]:
                attributes[REQUEST_STOP_SEQUENCES] = [masked_text(str(stop)) for stop in stops]
            case _:
                pass
        if asked.request is not None:
            attributes[INPUT_MESSAGES] = input_messages(asked.request.messages)
            if asked.request.tools:
                attributes[TOOL_DEFINITIONS] = tool_definitions(asked.request.tools)
    return attributes


def reply_attributes(replied: ReplyEvent, model: str, *, content: bool) -> dict[str, Any]:
    """Return the attributes of a complete reply to a request to `model`."""
    attributes: dict[str, Any] = {}
    if (reason := safe_finish_reason(replied, content=content)) is not None:
        attributes[RESPONSE_FINISH_REASONS] = [reason]
    if replied.response_id is not None:
        attributes[RESPONSE_ID] = masked_text(replied.response_id)
    if replied.response_model is not None:
        attributes[RESPONSE_MODEL] = masked(replied.response_model)
    if replied.usage:
        # A server may answer with another model than the requested one, and charge that.
        charged_model = masked(next(iter(replied.usage)))
        if len(replied.usage) == 1 and charged_model != model and RESPONSE_MODEL not in attributes:
            attributes[RESPONSE_MODEL] = charged_model
        usage = sum(replied.usage.values(), Usage())
        attributes[INPUT_TOKENS] = usage.input_tokens
        attributes[OUTPUT_TOKENS] = usage.output_tokens
        if usage.cached_input_tokens:
            attributes[CACHED_TOKENS] = usage.cached_input_tokens
        if usage.reasoning_tokens:
            attributes[REASONING_TOKENS] = usage.reasoning_tokens
    return attributes


# --- content


def input_messages(messages: Sequence[Message]) -> str:
    """Return the messages of a request in the form of the conventions."""
    return _json([_message(each) for each in messages])


def output_messages(replied: ReplyEvent) -> str | None:
    """Return the message of a reply in the form of the conventions; None if there is none."""
    message = reply_message(replied)
    if message is None:
        return None
    return _json([_message(message) | {"finish_reason": masked(replied.finish_reason or "")}])


def call_arguments(call: ToolCall) -> str:
    """Return the arguments of a call as JSON."""
    return _json(masked_json(call.arguments))


def tool_definitions(tools: Sequence[Any]) -> str:
    """Return the tools of a request in the form of the conventions."""
    return _json(
        [
            {
                "type": "function",
                "name": masked(tool.name),
                "description": masked_text(tool.description),
                "parameters": masked_json(tool.parameters),
            }
            for tool in tools
        ]
    )


def _message(message: Message) -> dict[str, Any]:
    parts: list[Mapping[str, Any]] = []
    if message.reasoning:
        parts.append({"type": "reasoning", "content": masked_text(message.reasoning)})
    if message.role == "tool":
        answer = {"type": "tool_call_response", "id": masked_text(message.tool_call_id or "")}
        parts.append(answer | {"response": masked_text(message.content or "")})
    elif message.content:
        parts.append({"type": "text", "content": masked_text(message.content)})
    parts += [{"type": each.kind, "content": masked_text(each.about)} for each in message.parts]
    for call in message.tool_calls:
        arguments = masked_json(call.arguments)
        about = {"type": "tool_call", "id": masked_text(call.id), "name": masked(call.name)}
        parts.append(about | {"arguments": arguments})
    return {"role": message.role, "parts": parts}


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


# --- metrics


class Meter:
    """The two metrics that the conventions define for clients of models."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("anabranch")
        self._duration = meter.create_histogram(
            OPERATION_DURATION,
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=[0.01 * 2**power for power in range(14)],
        )
        self._tokens = meter.create_histogram(
            TOKEN_USAGE,
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
        )

    def count(
        self,
        asked: dict[str, Any],
        replied: dict[str, Any],
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Record the duration and the tokens of an ended request, with attributes of its span."""
        every = asked | replied
        common = (
            *(OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, RESPONSE_MODEL),
            *(SERVER_ADDRESS, SERVER_PORT),
        )
        attributes = {name: every[name] for name in common if name in every}
        for kind, name in (("input", INPUT_TOKENS), ("output", OUTPUT_TOKENS)):
            if name in replied:
                self._tokens.record(replied[name], attributes | {TOKEN_TYPE: kind})
        if error is not None:
            attributes[ERROR_TYPE] = error_type(error)
        self._duration.record(seconds, attributes)
