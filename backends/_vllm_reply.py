"""One request on the vLLM engine: its prompt, its sampling, and the deltas of the reply."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ContextTooLong,
)
from ..messages import Delta, Message, Request, ToolSchema, Usage, request_body
from ._prompt import plain_messages
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

    @classmethod
    def of(cls, request: Request, defaults: Mapping[str, Any], template: str) -> _Question:
        """Check the options of `request`, and which of its tools may be called."""
        body = request_body("", request, defaults, stream=False)
        check_options(body.keys() - {"model", "messages", "tools"})
        choice = body.get("tool_choice", "auto")
        answered = bool(request.messages) and request.messages[-1].role == "tool"
        # A model that was not taught to call would call for the same thing again and again.
        silent = choice == "none" or (answered and choice == "auto" and MARK not in template)
        return cls(body, () if silent else request.tools, request.messages, template, choice)

    @property
    def knows_calls(self) -> bool:
        """Whether the chat template writes calls as the grammar does."""
        return MARK in self.template

    def wire_messages(self) -> list[dict[str, Any]]:
        """Write the conversation for the template; one that knows no calls is told of them."""
        if self.knows_calls:
            return self.body["messages"]
        messages: list[Message] = []
        if self.tools:
            about = instruction(self.body["tools"])
            messages.append(Message(role="system", content=about))
        for message in self.messages:
            calls = [marked_call(call.name, call.text) for call in message.tool_calls]
            text = "\n".join([*([message.content] if message.content else []), *calls])
            parts = [] if message.role == "tool" else message.parts
            messages.append(Message(role=message.role, content=text, parts=parts))
        return [message.to_wire() for message in plain_messages(messages)]

    def template_options(self) -> dict[str, Any]:
        """Return what the template is rendered with, besides the messages."""
        go_on = bool(self.body.get("continue_final_message"))
        options = {"add_generation_prompt": not go_on, "continue_final_message": go_on}
        if self.tools and self.knows_calls:
            options["tools"] = self.body["tools"]
        return {**options, **self.body.get("chat_template_kwargs", {}), "tokenize": False}

    def constraint(self) -> dict[str, Any] | None:
        """Return what bounds the reply, in the terms of vLLM's StructuredOutputsParams."""
        bounds: dict[str, Any] | None = self.body.get("structured_outputs")
        if not bounds:
            wanted: Any = self.body.get("response_format") or {"type": "text"}
            if wanted["type"] == "json_object":
                bounds = {"json_object": True}
            elif wanted["type"] != "text":
                bounds = {"json": wanted["json_schema"]["schema"]}
        if not self.tools:
            return bounds
        if bounds:
            raise ConfigurationError("response_format and tools in one request: vLLM bounds one")
        # A model that was not taught to call knows no end of it.
        parallel = self.body.get("parallel_tool_calls", self.knows_calls)
        return {"structural_tag": structural_tag(self.tools, self.tool_choice, parallel=parallel)}

    def sampling(self, defaults: Mapping[str, Any]) -> Any:
        """Return vLLM's SamplingParams; `defaults` are the model's own."""
        vllm = vllm_module("vllm.sampling_params")
        given = {key: value for key, value in self.body.items() if key in _SAMPLING}
        if (most := self.body.get("max_completion_tokens")) is not None:
            given["max_tokens"] = most
        constraint = self.constraint()
        try:
            return vllm.SamplingParams(
                **{"max_tokens": None, **defaults, **given},
                output_kind=vllm.RequestOutputKind.DELTA,
                skip_special_tokens=not self.tools,  # to some models the marks are special
                structured_outputs=constraint and vllm.StructuredOutputsParams(**constraint),
            )
        except (TypeError, ValueError, vllm.VLLMValidationError) as error:
            raise ConfigurationError(f"vLLM refuses these options: {error}") from error


def _require_sight(loaded: Loaded, request: Request) -> None:
    """Raise `ConfigurationError` for images and audio if the model was made for text alone."""
    if getattr(getattr(loaded.llm, "model_config", None), "is_multimodal_model", True):
        return
    for message in request.messages:
        if message.role != "tool" and any(part.needs for part in message.parts):
            raise ConfigurationError("this model takes text alone, no images and no audio")


async def answer(
    loaded: Loaded, request: Request, defaults: Mapping[str, Any], template: str | None
) -> AsyncGenerator[Delta, None]:
    """Answer `request`, in the engine's loop. Closing the generator aborts it in the engine."""
    question = _Question.of(request, defaults, template or loaded.chat_template)
    params = question.sampling(loaded.sampling)
    failures = vllm_module("vllm.exceptions")
    _require_sight(loaded, request)
    try:
        chat = vllm_module("vllm.renderers.params").ChatParams(
            chat_template=template, chat_template_kwargs=question.template_options()
        )
        renderer = loaded.llm.renderer
        _, (prompt,) = await renderer.render_chat_async([question.wire_messages()], chat)
        thinking = prompt.get("prompt", "").rstrip().endswith("<think>")
        reader = Reader(question.tools, thinking=thinking)
        async with aclosing(loaded.llm.generate(prompt, params, uuid.uuid4().hex)) as outputs:
            tokens = 0
            async for output in outputs:
                piece = output.outputs[0]
                tokens += len(piece.token_ids)
                for delta in reader.read(piece.text):
                    yield delta
                reason = piece.finish_reason
                if reason is None:
                    continue
                for delta in reader.end():
                    yield delta
                if reason in {"abort", "error"}:
                    raise BackendUnavailable("the vLLM engine broke the reply off")
                if reason != "length":
                    reason = "tool_calls" if reason == "stop" and reader.calls else "stop"
                usage = Usage(
                    input_tokens=len(output.prompt_token_ids or ()),
                    output_tokens=tokens,
                    cached_input_tokens=output.num_cached_tokens or 0,
                )
                yield Delta(usage=usage, finish_reason=reason, done=True)
    except vllm_module("vllm.v1.engine.exceptions").EngineDeadError:
        raise  # the engine's own affair
    except failures.VLLMClientError as error:
        kind = ContextTooLong if _TOO_LONG.search(str(error)) else BackendError
        raise kind(str(error)) from error
    except failures.VLLMError as error:
        raise BackendUnavailable(str(error) or type(error).__name__) from error
