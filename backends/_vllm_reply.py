"""One request on the vLLM engine: its prompt, its sampling, and the deltas of the reply."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ContextTooLong,
)
from ..messages import Delta, Message, Request, ToolSchema, Usage, request_body
from ._local_tools import _conversation
from ._vllm_engine import Loaded, vllm_module
from ._vllm_tools import MARK, Reader, instruction, marked_call, structural_tag

__all__ = ["answer", "check_options"]

_SAMPLING = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
    *("allowed_token_ids", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
    *("thinking_token_budget", "extra_args"),
}
_OPTIONS = {
    *_SAMPLING,
    *("max_completion_tokens", "tool_choice", "parallel_tool_calls", "response_format"),
    *("structured_outputs", "chat_template_kwargs", "continue_final_message"),
}
_TOO_LONG = re.compile(r"maximum (model|context) length")


def check_options(options: Iterable[str]) -> None:
    """Raise `ConfigurationError` if there is an option that is not known."""
    if unknown := set(options) - _OPTIONS:
        raise ConfigurationError(
            f"vLLM has no option {', '.join(sorted(unknown))}; it has"
            f" {', '.join(sorted(_OPTIONS))}; what the engine is started with goes into engine={{}}"
        )


@dataclass(slots=True)
class _Question:
    """A request made ready: `body` in the wire's terms, and the tools that may be called now."""

    body: dict[str, Any]
    tools: Sequence[ToolSchema]
    messages: Sequence[Message]
    template: str
    tool_choice: Any

    @property
    def knows_calls(self) -> bool:
        """Whether the chat template writes calls as the grammar does."""
        return MARK in self.template

    def wire_messages(self) -> list[dict[str, Any]]:
        """Write the conversation for the template; one that knows no calls is told of them."""
        if self.knows_calls:
            return self.body["messages"]
        messages = [_with_marks(message) for message in self.messages]
        if self.tools:
            about = instruction(self.body["tools"])
            messages.insert(0, Message(role="system", content=about))
        return cast("list[dict[str, Any]]", _conversation(messages))

    def template_options(self) -> dict[str, Any]:
        """Return what the template is rendered with, besides the messages."""
        go_on = bool(self.body.get("continue_final_message"))
        options = {"add_generation_prompt": not go_on, "continue_final_message": go_on}
        if self.tools and self.knows_calls:
            options["tools"] = self.body["tools"]
        return {**options, **self.body.get("chat_template_kwargs", {}), "tokenize": False}

    def constraint(self) -> dict[str, Any] | None:
        """Return what bounds the reply, in the terms of vLLM's StructuredOutputsParams."""
        told: dict[str, Any] | None = self.body.get("structured_outputs")
        told = told or _format(self.body.get("response_format"))
        if not self.tools:
            return told
        if told:
            raise ConfigurationError("response_format and tools in one request: vLLM bounds one")
        # A model that was not taught to call knows no end of it.
        parallel = self.body.get("parallel_tool_calls", self.knows_calls)
        return {"structural_tag": structural_tag(self.tools, self.tool_choice, parallel=parallel)}


async def answer(
    loaded: Loaded, request: Request, defaults: Mapping[str, Any], template: str | None
) -> AsyncGenerator[Delta, None]:
    """Answer `request`, in the engine's loop. Closing the generator aborts it in the engine."""
    question = _question(request, defaults, template or loaded.chat_template)
    params = _params(loaded, question)
    try:
        prompt = await _prompt(loaded.llm, question, template)
        thinking = prompt.get("prompt", "").rstrip().endswith("<think>")
        reader = Reader(question.tools, thinking=thinking)
        async with aclosing(loaded.llm.generate(prompt, params, uuid.uuid4().hex)) as outputs:
            async for delta in _read(outputs, reader):
                yield delta
    except vllm_module("vllm.v1.engine.exceptions").EngineDeadError:
        raise  # the engine's own affair
    except vllm_module("vllm.exceptions").VLLMError as error:
        raise _failure(error) from error


def _question(request: Request, defaults: Mapping[str, Any], template: str) -> _Question:
    body = request_body("", request, defaults, stream=False)
    check_options(body.keys() - {"model", "messages", "tools"})
    choice = body.get("tool_choice", "auto")
    answered = bool(request.messages) and request.messages[-1].role == "tool"
    # A model that was not taught to call would call for the same thing again and again.
    silent = choice == "none" or (answered and choice == "auto" and MARK not in template)
    return _Question(body, () if silent else request.tools, request.messages, template, choice)


def _params(loaded: Loaded, question: _Question) -> Any:
    vllm = vllm_module("vllm.sampling_params")
    given = {key: value for key, value in question.body.items() if key in _SAMPLING}
    if (most := question.body.get("max_completion_tokens")) is not None:
        given["max_tokens"] = most
    constraint = question.constraint()
    try:
        return vllm.SamplingParams(
            **{"max_tokens": None, **loaded.sampling, **given},
            output_kind=vllm.RequestOutputKind.DELTA,
            skip_special_tokens=not question.tools,  # to some models the marks are special
            structured_outputs=constraint and vllm.StructuredOutputsParams(**constraint),
        )
    except (TypeError, ValueError, vllm.VLLMValidationError) as error:
        raise ConfigurationError(f"vLLM refuses these options: {error}") from error


async def _prompt(llm: Any, question: _Question, template: str | None) -> Any:
    params = vllm_module("vllm.renderers.params").ChatParams(
        chat_template=template, chat_template_kwargs=question.template_options()
    )
    _, (prompt,) = await llm.renderer.render_chat_async([question.wire_messages()], params)
    return prompt


async def _read(outputs: Any, reader: Reader) -> AsyncGenerator[Delta, None]:
    tokens = 0
    async for output in outputs:
        piece = output.outputs[0]
        tokens += len(piece.token_ids)
        for delta in reader.read(piece.text):
            yield delta
        if piece.finish_reason is not None:
            for delta in reader.end():
                yield delta
            yield Delta(
                usage=_usage(output, tokens),
                finish_reason=_finish_reason(piece.finish_reason, reader),
                done=True,
            )


def _usage(output: Any, tokens: int) -> Usage:
    return Usage(
        input_tokens=len(output.prompt_token_ids or ()),
        output_tokens=tokens,
        cached_input_tokens=output.num_cached_tokens or 0,
    )


def _finish_reason(reason: str, reader: Reader) -> str:
    if reason in {"abort", "error"}:
        raise BackendUnavailable("the vLLM engine broke the reply off")
    if reason == "stop" and reader.calls:
        return "tool_calls"
    return "length" if reason == "length" else "stop"


def _with_marks(message: Message) -> Message:
    """Write the calls of a message into its text."""
    calls = [marked_call(call.name, call.text) for call in message.tool_calls]
    text = "\n".join([*([message.content] if message.content else []), *calls])
    return Message(role=message.role, content=text)


def _format(response_format: Mapping[str, Any] | None) -> dict[str, Any] | None:
    kind = (response_format or {"type": "text"})["type"]
    if kind == "text":
        return None
    if kind == "json_object":
        return {"json_object": True}
    return {"json": (response_format or {})["json_schema"]["schema"]}


def _failure(error: Exception) -> Exception:
    vllm = vllm_module("vllm.exceptions")
    if isinstance(error, vllm.VLLMClientError):
        return (ContextTooLong if _TOO_LONG.search(str(error)) else BackendError)(str(error))
    return BackendUnavailable(str(error) or type(error).__name__)
