"""One request on the vLLM engine: its prompt, its sampling, its tool calls and deltas.

Models write tool calls into their text, under a grammar:

    <tool_call>
    {"name": "add", "arguments": {"a": 1, "b": 2}}
    </tool_call>

Qwen, Hermes and others were trained to write calls like this. Other models get an instruction, and
the grammar prevents any other form. It fixes every character except those of the arguments, so a
call is parsed as it arrives, by comparing strings.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, cast

from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ContextTooLong,
)
from ..messages import Delta, Message, Request, ToolCallDelta, ToolSchema, Usage, request_body
from ..messages.text import overlap
from ._request_fit import named_tool, plain_messages
from ._vllm_engine import LoadedModel, vllm_module

__all__ = ["CALL_START", "ReplyReader", "answer", "check_options", "marked_call", "structural_tag"]


_SAMPLING_OPTIONS = {
    *("temperature", "top_p", "top_k", "min_p", "seed", "stop", "max_tokens", "min_tokens"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
    *("allowed_token_ids", "stop_token_ids", "ignore_eos", "include_stop_str_in_output"),
    *("thinking_token_budget", "extra_args"),
}
_OPTIONS = {
    *_SAMPLING_OPTIONS,
    *("max_completion_tokens", "tool_choice", "parallel_tool_calls", "response_format"),
    *("structured_outputs", "chat_template_kwargs", "continue_final_message"),
}
_TOO_LONG_MESSAGE = re.compile(r"maximum (model|context) length")


def check_options(options: Iterable[str]) -> None:
    """Raise `ConfigurationError` for an unknown option."""
    if unknown := set(options) - _OPTIONS:
        raise ConfigurationError(
            f"vLLM has no option {', '.join(sorted(unknown))}; it has"
            f" {', '.join(sorted(_OPTIONS))}."
            " Pass arguments of the engine in engine={}."
        )


@dataclass(slots=True)
class _PreparedRequest:
    """A request's body in chat completions, and the tools that may be called now."""

    body: dict[str, Any]
    tools: Sequence[ToolSchema]
    messages: Sequence[Message]
    template: str
    tool_choice: Any

    @classmethod
    def of(cls, request: Request, defaults: Mapping[str, Any], template: str) -> _PreparedRequest:
        """Check the options of `request`, and decide which of its tools may be called."""
        body = request_body("", request, defaults, stream=False)
        check_options(body.keys() - {"model", "messages", "tools"})
        choice = body.get("tool_choice", "auto")
        answered = bool(request.messages) and request.messages[-1].role == "tool"
        # After a tool's result, a model that was not trained to call tools would repeat the call.
        silent = choice == "none" or (answered and choice == "auto" and CALL_START not in template)
        return cls(body, () if silent else request.tools, request.messages, template, choice)

    @property
    def knows_calls(self) -> bool:
        """Whether the chat template writes tool calls in the form that the grammar requires."""
        return CALL_START in self.template

    def wire_messages(self) -> list[dict[str, Any]]:
        """Return the messages for the template; add an instruction if it cannot write calls."""
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
        """Return the template's options, besides the messages."""
        continues = bool(self.body.get("continue_final_message"))
        options = {"add_generation_prompt": not continues, "continue_final_message": continues}
        if self.tools and self.knows_calls:
            options["tools"] = self.body["tools"]
        return {**options, **self.body.get("chat_template_kwargs", {}), "tokenize": False}

    def constraint(self) -> dict[str, Any] | None:
        """Return the reply's constraints, as arguments of vLLM's StructuredOutputsParams."""
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
            raise ConfigurationError("vLLM takes response_format or tools in a request, not both")
        # A model that was not trained to call would never stop calling.
        parallel = self.body.get("parallel_tool_calls", self.knows_calls)
        return {"structural_tag": structural_tag(self.tools, self.tool_choice, parallel=parallel)}

    def sampling(self, defaults: Mapping[str, Any]) -> Any:
        """Return vLLM's SamplingParams. `defaults` are the model's own."""
        vllm = vllm_module("vllm.sampling_params")
        given = {key: value for key, value in self.body.items() if key in _SAMPLING_OPTIONS}
        if (most := self.body.get("max_completion_tokens")) is not None:
            given["max_tokens"] = most
        constraint = self.constraint()
        try:
            return vllm.SamplingParams(
                **{"max_tokens": None, **defaults, **given},
                output_kind=vllm.RequestOutputKind.DELTA,
                skip_special_tokens=not self.tools,  # for some models the marks are special tokens
                structured_outputs=constraint and vllm.StructuredOutputsParams(**constraint),
            )
        except (TypeError, ValueError, vllm.VLLMValidationError) as error:
            raise ConfigurationError(f"vLLM rejects these options: {error}") from error


def _check_modalities(loaded: LoadedModel, request: Request) -> None:
    """Raise `ConfigurationError` for images and audio if the model takes only text."""
    if getattr(getattr(loaded.llm, "model_config", None), "is_multimodal_model", True):
        return
    for message in request.messages:
        if message.role != "tool" and any(part.needs for part in message.parts):
            raise ConfigurationError("this model takes only text, no images and no audio")


async def answer(
    loaded: LoadedModel, request: Request, defaults: Mapping[str, Any], template: str | None
) -> AsyncGenerator[Delta, None]:
    """Answer `request` in the engine's loop. Closing the generator aborts it in the engine."""
    prepared = _PreparedRequest.of(request, defaults, template or loaded.chat_template)
    params = prepared.sampling(loaded.sampling)
    failures = vllm_module("vllm.exceptions")
    _check_modalities(loaded, request)
    try:
        chat = vllm_module("vllm.renderers.params").ChatParams(
            chat_template=template, chat_template_kwargs=prepared.template_options()
        )
        renderer = loaded.llm.renderer
        _, (prompt,) = await renderer.render_chat_async([prepared.wire_messages()], chat)
        thinking = prompt.get("prompt", "").rstrip().endswith("<think>")
        reader = ReplyReader(prepared.tools, thinking=thinking)
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
                    raise BackendUnavailable("the vLLM engine aborted the reply")
                if reason != "length":
                    reason = "tool_calls" if reason == "stop" and reader.calls else "stop"
                usage = Usage(
                    input_tokens=len(output.prompt_token_ids or ()),
                    output_tokens=tokens,
                    cached_input_tokens=output.num_cached_tokens or 0,
                )
                yield Delta(usage=usage, finish_reason=reason, done=True)
    except vllm_module("vllm.v1.engine.exceptions").EngineDeadError:
        raise  # handled by the engine
    except failures.VLLMClientError as error:
        kind = ContextTooLong if _TOO_LONG_MESSAGE.search(str(error)) else BackendError
        raise kind(str(error)) from error
    except failures.VLLMError as error:
        raise BackendUnavailable(str(error) or type(error).__name__) from error


CALL_START = "<tool_call>"
CALL_END = "}\n</tool_call>"
THINK_START, THINK_END = "<think>", "</think>"


def structural_tag(tools: Sequence[ToolSchema], tool_choice: Any, *, parallel: bool) -> str:
    """Return the grammar of a reply, as xgrammar's JSON: text and calls, or only calls.

    Raises `ConfigurationError` for a wrong `tool_choice`.
    """
    if isinstance(tool_choice, Mapping):
        choice = cast("Mapping[str, Any]", tool_choice)
        tools, parallel = [named_tool(tools, choice)], False
    elif tool_choice not in {"auto", "required"}:
        raise ConfigurationError(
            f"tool_choice={tool_choice!r}: it must be 'auto', 'none', 'required' or a function"
        )
    tags = [
        {
            "type": "tag",
            "begin": call_head(tool.name),
            "content": {"type": "json_schema", "json_schema": dict(tool.parameters)},
            "end": CALL_END,
        }
        for tool in tools
    ]
    calls = {"tags": tags, "stop_after_first": not parallel}
    if tool_choice == "auto":
        reply = {"type": "triggered_tags", "triggers": [CALL_START], **calls}
    else:
        reply = {"type": "tags_with_separator", "separator": "\n", "at_least_one": True, **calls}
    return json.dumps({"type": "structural_tag", "format": reply})


def call_head(name: str) -> str:
    return f'{CALL_START}\n{{"name": {json.dumps(name)}, "arguments": '


def marked_call(name: str, arguments: str) -> str:
    """Return a call as the model must write it."""
    return call_head(name) + arguments + CALL_END


def instruction(tools: Sequence[Mapping[str, Any]]) -> str:
    """Return an instruction about tools, for a model whose chat template has none."""
    listed = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return (
        f"You may call functions to help with the user's request:\n<tools>\n{listed}\n</tools>\n"
        f'To call one, write:\n{CALL_START}\n{{"name": <name>, "arguments": <object>{CALL_END}'
    )


class ReplyReader:
    """Splits a model's text into text, reasoning and tool calls, as it arrives.

    The result does not depend on how the text is split. At most the beginning of a mark is held
    back. Reasoning is inside `<think>` at the beginning of the reply, or before `</think>` if the
    prompt has opened it (`thinking`). `calls` counts the calls so far.
    """

    def __init__(self, tools: Sequence[ToolSchema], *, thinking: bool = False) -> None:
        self.calls = 0
        self._names = {call_head(tool.name): tool.name for tool in tools}
        self._held = ""
        self._state = self._thinking if thinking else self._head

    def read(self, text: str) -> Iterator[Delta]:
        """Yield the deltas of some more text."""
        self._held += text
        state = None
        while self._held and state != self._state:
            state = self._state
            yield from state()

    def end(self) -> Iterator[Delta]:
        """End the reply: yield the text that was held back; drop an incomplete mark of a call."""
        if self._held and self._state in {self._head, self._text}:
            yield Delta(self._held)
        elif self._held and self._state == self._thinking:
            yield Delta(reasoning=self._held)
        self._held = ""

    # The states. Each one takes text from `_held`, and sets the next state at its end.

    def _head(self) -> Iterator[Delta]:
        start = self._held.lstrip()
        if start.startswith(THINK_START):
            self._held, self._state = start.removeprefix(THINK_START), self._thinking
        elif not THINK_START.startswith(start):
            self._state = self._text
        yield from ()

    def _thinking(self) -> Iterator[Delta]:
        thought = self._until(THINK_END, self._between)
        if thought:
            yield Delta(reasoning=thought)

    def _between(self) -> Iterator[Delta]:
        """Skip the line breaks after calls and reasoning."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = self._text
        yield from ()

    def _text(self) -> Iterator[Delta]:
        if self._names:
            text = self._until(CALL_START, self._name)
        else:
            text, self._held = self._held, ""
        if text:
            yield Delta(text)

    def _name(self) -> Iterator[Delta]:
        for begin, name in self._names.items():
            rest = begin.removeprefix(CALL_START)
            if self._held.startswith(rest):
                self._held, self._state = self._held.removeprefix(rest), self._arguments
                call_id = f"call_{uuid.uuid4().hex[:24]}"
                yield Delta(tool_calls=(ToolCallDelta(self.calls, call_id, name),))
                self.calls += 1
                return

    def _arguments(self) -> Iterator[Delta]:
        # JSON escapes line breaks in strings, so the end mark cannot be inside one.
        index = self.calls - 1
        arguments = self._until(CALL_END, self._between)
        if arguments:
            yield Delta(tool_calls=(ToolCallDelta(index, arguments=arguments),))

    def _until(self, mark: str, then: Any) -> str:
        """Return the text before `mark`. If the mark is there, skip it and set the state `then`."""
        before, found, after = self._held.partition(mark)
        if found:
            self._held, self._state = after, then
            return before
        whole = len(before) - overlap(before, mark)
        self._held = before[whole:]
        return before[:whole]
