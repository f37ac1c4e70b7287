"""The attribute names of spans equal the released conventions."""

from __future__ import annotations

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes, host_attributes
from opentelemetry.semconv._incubating.metrics import gen_ai_metrics
from opentelemetry.semconv.attributes import (
    error_attributes,
    exception_attributes,
    server_attributes,
)

from anabranch.backends._providers import HOSTED_PROVIDERS
from anabranch.tracing import _genai

pytestmark = pytest.mark.contract("S2")

NAMES = {
    "OPERATION_NAME": gen_ai_attributes.GEN_AI_OPERATION_NAME,
    "AGENT_NAME": gen_ai_attributes.GEN_AI_AGENT_NAME,
    "CONVERSATION_ID": gen_ai_attributes.GEN_AI_CONVERSATION_ID,
    "WORKFLOW_NAME": gen_ai_attributes.GEN_AI_WORKFLOW_NAME,
    "PROVIDER_NAME": gen_ai_attributes.GEN_AI_PROVIDER_NAME,
    "REQUEST_MODEL": gen_ai_attributes.GEN_AI_REQUEST_MODEL,
    "REQUEST_TEMPERATURE": gen_ai_attributes.GEN_AI_REQUEST_TEMPERATURE,
    "REQUEST_TOP_P": gen_ai_attributes.GEN_AI_REQUEST_TOP_P,
    "REQUEST_TOP_K": gen_ai_attributes.GEN_AI_REQUEST_TOP_K,
    "REQUEST_MAX_TOKENS": gen_ai_attributes.GEN_AI_REQUEST_MAX_TOKENS,
    "REQUEST_SEED": gen_ai_attributes.GEN_AI_REQUEST_SEED,
    "REQUEST_PRESENCE_PENALTY": gen_ai_attributes.GEN_AI_REQUEST_PRESENCE_PENALTY,
    "REQUEST_FREQUENCY_PENALTY": gen_ai_attributes.GEN_AI_REQUEST_FREQUENCY_PENALTY,
    "REQUEST_CHOICE_COUNT": gen_ai_attributes.GEN_AI_REQUEST_CHOICE_COUNT,
    "REQUEST_STOP_SEQUENCES": gen_ai_attributes.GEN_AI_REQUEST_STOP_SEQUENCES,
    "OUTPUT_TYPE": gen_ai_attributes.GEN_AI_OUTPUT_TYPE,
    "RESPONSE_MODEL": gen_ai_attributes.GEN_AI_RESPONSE_MODEL,
    "RESPONSE_ID": gen_ai_attributes.GEN_AI_RESPONSE_ID,
    "RESPONSE_FINISH_REASONS": gen_ai_attributes.GEN_AI_RESPONSE_FINISH_REASONS,
    "RESPONSE_TIME_TO_FIRST_CHUNK": gen_ai_attributes.GEN_AI_RESPONSE_TIME_TO_FIRST_CHUNK,
    "INPUT_TOKENS": gen_ai_attributes.GEN_AI_USAGE_INPUT_TOKENS,
    "OUTPUT_TOKENS": gen_ai_attributes.GEN_AI_USAGE_OUTPUT_TOKENS,
    "CACHED_TOKENS": gen_ai_attributes.GEN_AI_USAGE_CACHE_READ_INPUT_TOKENS,
    "REASONING_TOKENS": gen_ai_attributes.GEN_AI_USAGE_REASONING_OUTPUT_TOKENS,
    "TOKEN_TYPE": gen_ai_attributes.GEN_AI_TOKEN_TYPE,
    "TOOL_NAME": gen_ai_attributes.GEN_AI_TOOL_NAME,
    "TOOL_TYPE": gen_ai_attributes.GEN_AI_TOOL_TYPE,
    "TOOL_CALL_ID": gen_ai_attributes.GEN_AI_TOOL_CALL_ID,
    "TOOL_CALL_ARGUMENTS": gen_ai_attributes.GEN_AI_TOOL_CALL_ARGUMENTS,
    "TOOL_CALL_RESULT": gen_ai_attributes.GEN_AI_TOOL_CALL_RESULT,
    "TOOL_DEFINITIONS": gen_ai_attributes.GEN_AI_TOOL_DEFINITIONS,
    "INPUT_MESSAGES": gen_ai_attributes.GEN_AI_INPUT_MESSAGES,
    "OUTPUT_MESSAGES": gen_ai_attributes.GEN_AI_OUTPUT_MESSAGES,
    "ERROR_TYPE": error_attributes.ERROR_TYPE,
    "EXCEPTION_TYPE": exception_attributes.EXCEPTION_TYPE,
    "EXCEPTION_MESSAGE": exception_attributes.EXCEPTION_MESSAGE,
    "EXCEPTION_STACKTRACE": exception_attributes.EXCEPTION_STACKTRACE,
    "HOST_NAME": host_attributes.HOST_NAME,
    "SERVER_ADDRESS": server_attributes.SERVER_ADDRESS,
    "SERVER_PORT": server_attributes.SERVER_PORT,
    "OPERATION_DURATION": gen_ai_metrics.GEN_AI_CLIENT_OPERATION_DURATION,
    "TOKEN_USAGE": gen_ai_metrics.GEN_AI_CLIENT_TOKEN_USAGE,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_name_equals_the_conventions(name: str) -> None:
    """Character by character."""
    assert getattr(_genai, name) == NAMES[name]


def test_every_other_name_is_anabranchs() -> None:
    """The table above is complete."""
    constants = {name: value for name, value in vars(_genai).items() if name.isupper()}
    values = {name: value for name, value in constants.items() if isinstance(value, str)}
    rest = {value for name, value in values.items() if name not in NAMES}
    other = error_attributes.ErrorTypeValues.OTHER.value
    operations = {each.value for each in gen_ai_attributes.GenAiOperationNameValues}
    ours = {value for value in rest if value.startswith("anabranch.")}
    assert rest - ours == {"chat", "invoke_agent", "execute_tool", "invoke_workflow", other}
    assert rest - ours <= operations | {other}


def test_providers_have_the_conventions_names() -> None:
    """All providers with known hosts."""
    known = {each.value for each in gen_ai_attributes.GenAiProviderNameValues}
    assert {_genai.PROVIDER_NAMES.get(host.name, host.name) for host in HOSTED_PROVIDERS} <= known


def test_token_types_and_output_types_have_the_conventions_names() -> None:
    """Input and output tokens; types of output."""
    kinds = {each.value for each in gen_ai_attributes.GenAiTokenTypeValues}
    assert kinds == {"input", "output"}
    formats = {each.value for each in gen_ai_attributes.GenAiOutputTypeValues}
    assert {*_genai._OUTPUT_TYPES.values()} <= formats
