"""Tokens where nobody counts them: before a reply, and of one that came without its usage."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias, cast

from ..commander.errors import ConfigurationError
from ..messages import Delta, Request, Usage
from ..messages.text import quote
from ..messages.tokens import estimate_tokens, most_tokens

__all__ = ["CountTokens", "Estimate", "Estimator"]

CountTokens: TypeAlias = Callable[[str], int]
"""Says how many tokens a model makes of a text."""

_MOST = 10**12  # tokens of one reply
# What a chat template adds, in tokens: to a prompt, to each message, to each call or tool.
_PROMPT_FRAME, _MESSAGE_FRAME, _CALL_FRAME = 3, 4, 12
# The same at most. Some servers put a system message or instructions for tools before a prompt.
_MOST_PROMPT_FRAME, _MOST_FRAME = 64, 16
# How far the factor and the offset of a correction are expected to be off, as variances: a long
# prompt corrects the factor, a short one the offset.
_FACTOR_VARIANCE, _OFFSET_VARIANCE = 0.3**2, 100.0**2


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a request may take, in tokens.

    `tokens` are those of its prompt and of the longest reply that it allows; `most` is what it may
    take at most, None without `max_tokens`. `uncorrected` is the prompt as its texts are counted.
    """

    tokens: int
    most: Usage | None
    uncorrected: int


class Estimator:
    """Estimates the tokens of one model's requests and replies.

    Texts are counted by the classes of their characters, or by `count`, the model's own tokenizer.
    A chat template adds to them. How a provider counts is learned from the usage that it reports:
    a factor and an offset, which make the estimate of the last prompt right.

    The correction is the update of a Kalman filter without measurement noise, which is recursive
    least squares: the error is shared out by the gain `P h / (h' P h)`, with `h = (tokens, 1)`.
    Unlike there, the covariance `P` stays as it began, `_FACTOR_VARIANCE` and `_OFFSET_VARIANCE`,
    so that later prompts count as much as earlier ones: a model behind a name may change. With a
    constant `P` this is the normalised least mean squares filter.
    """

    def __init__(self, count: CountTokens | None = None) -> None:
        self._own_count = count
        self._count = self._counted if count else estimate_tokens
        self._count_most = self._counted if count else most_tokens
        # Replaced as one, since event loops in several threads may share a backend.
        self._correction = 1.0, 0.0

    def estimate(self, request: Request, options: Mapping[str, Any]) -> Estimate:
        """Estimate what `request` may take; `options` are the backend's own."""
        uncorrected, reply = self._prompt(request), _max_tokens(request, options)
        prompt = self._correct(uncorrected)
        if reply is None:
            return Estimate(prompt, None, uncorrected)
        most = Usage(input_tokens=max(prompt, self._most_prompt(request)), output_tokens=reply)
        return Estimate(prompt + reply, most, uncorrected)

    def usage_of(
        self, request: Request, deltas: Sequence[Delta], estimate: Estimate | None = None
    ) -> Usage:
        """Return what the reply of which `deltas` came has taken, and learn from it.

        That is the last usage among them, and an estimate of what came after it; without one, all
        is estimated. A usage of 0 tokens counts as none. What no reply can have taken, less than
        nothing or more than `_MOST`, is set right. `estimate` is what was expected.
        """
        usage, start = _reported(deltas)
        if usage is None:
            usage = Usage(input_tokens=self._correct(self._prompt(request)))
        elif estimate is not None and usage.input_tokens:
            self._learn(estimate.uncorrected, usage.input_tokens)
        text = _text_of(deltas[start:])
        return usage + Usage(output_tokens=self._count(text)) if text else usage

    def _counted(self, text: str) -> int:
        """Count by the user's function. Raises `ConfigurationError` if that gives no number."""
        assert self._own_count is not None
        tokens: object = self._own_count(text)
        if not (isinstance(tokens, Real) and 0 <= tokens <= _MOST):
            raise ConfigurationError(
                f"count_tokens= gave {quote(tokens)} for a text: it returns a number of tokens"
            )
        return int(tokens)

    def _correct(self, tokens: int) -> int:
        factor, offset = self._correction
        return max(1, round(tokens * factor + offset))

    def _learn(self, tokens: int, counted: int) -> None:
        """Make the smallest change of the correction that makes `counted` of `tokens`."""
        factor, offset = self._correction
        error = counted - (tokens * factor + offset)
        error /= tokens * tokens * _FACTOR_VARIANCE + _OFFSET_VARIANCE
        factor += error * tokens * _FACTOR_VARIANCE
        self._correction = max(0.0, factor), offset + error * _OFFSET_VARIANCE

    def _prompt(self, request: Request) -> int:
        """Count what the model reads: texts, calls and tools in their frames, and parts."""
        calls = sum(len(message.tool_calls) for message in request.messages)
        frames = _PROMPT_FRAME + _MESSAGE_FRAME * len(request.messages)
        frames += _CALL_FRAME * (calls + len(request.tools))
        return frames + self._content(request, self._count)

    def _most_prompt(self, request: Request) -> int:
        calls = sum(len(message.tool_calls) for message in request.messages)
        frames = len(request.messages) + calls + len(request.tools)
        content = self._content(request, self._count_most)
        return _MOST_PROMPT_FRAME + _MOST_FRAME * frames + content

    def _content(self, request: Request, count: CountTokens) -> int:
        texts: list[str] = []
        tokens = 0
        for message in request.messages:
            texts.append(message.content or "")
            for call in message.tool_calls:
                texts += call.name, call.text
            if message.role != "tool":
                for part in message.parts:
                    if part.kind == "text":
                        texts.append(part.text)
                    else:
                        tokens += part.estimate_tokens()
        for tool in request.tools:
            parameters = json.dumps(tool.parameters, default=str, ensure_ascii=False)
            texts += tool.name, tool.description, parameters
        return tokens + count("\n".join(filter(None, texts)))


def _max_tokens(request: Request, options: Mapping[str, Any]) -> int | None:
    fields: dict[str, Any] = {**options, **request.options}
    for each in options, request.options:
        extra: object = each.get("extra")
        if isinstance(extra, Mapping):
            fields |= cast("Mapping[str, Any]", extra)
    given = [fields.get(name) for name in ("max_tokens", "max_completion_tokens")]
    return max((most for most in given if isinstance(most, int) and most >= 0), default=None)


def _reported(deltas: Sequence[Delta]) -> tuple[Usage | None, int]:
    """Return the last usage among the deltas that counts, and the place of what came after it."""
    for place in range(len(deltas) - 1, -1, -1):
        usage = deltas[place].usage
        if usage is not None:
            counts = {name: min(max(0, n), _MOST) for name, n in usage.model_dump().items()}
            if counts["input_tokens"] + counts["output_tokens"] > 0:
                return Usage(**counts), place + 1
    return None, 0


def _text_of(deltas: Iterable[Delta]) -> str:
    texts: list[str] = []
    for delta in deltas:
        texts.append(delta.text)
        if delta.reasoning or delta.refusal:
            texts += delta.reasoning, delta.refusal
        for call in delta.tool_calls:
            texts += call.name or "", call.arguments
    return "".join(texts)
