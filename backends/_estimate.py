"""Estimate tokens: of a request before it is sent, and of a reply without usage."""

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
"""Counts the tokens of a text as a model does."""

_MAX_REPLY_TOKENS = 10**12
# Tokens that a chat template adds to a prompt, to each message, and to each call or tool.
_PROMPT_FRAME, _MESSAGE_FRAME, _CALL_FRAME = 3, 4, 12
# Upper bounds of these. Some servers put a system message or instructions for tools before a
# prompt.
_MAX_PROMPT_FRAME, _MAX_FRAME = 64, 16
# Expected errors of a correction's factor and offset, as variances: a long prompt corrects the
# factor, a short one the offset.
_FACTOR_VARIANCE, _OFFSET_VARIANCE = 0.3**2, 100.0**2


@dataclass(frozen=True, slots=True)
class Estimate:
    """The tokens that a request may take.

    `tokens` includes its prompt and the longest reply it allows. `most` is an upper bound,
    None without `max_tokens`. `uncorrected` are the prompt's tokens before the correction.
    """

    tokens: int
    most: Usage | None
    uncorrected: int


class Estimator:
    """Estimates the tokens of one model's requests and replies.

    Texts are counted by classes of characters, or by `count`, the model's tokenizer. The overhead
    of a chat template is added. The usage in each reply corrects later estimates, by a factor and
    an offset that make the estimate of the last prompt exact.

    The correction is the update of a Kalman filter without measurement noise, which is recursive
    least squares: the error is shared out by the gain `P h / (h' P h)`, with `h = (tokens, 1)`. In
    contrast to these, the covariance `P` stays constant, at `_FACTOR_VARIANCE` and
    `_OFFSET_VARIANCE`, so that later prompts count as much as earlier ones: the model behind a name
    may change. With a constant `P` this is the normalised least mean squares filter.
    """

    def __init__(self, count: CountTokens | None = None) -> None:
        self._tokenizer = count
        self._count = self._count_checked if count else estimate_tokens
        self._count_most = self._count_checked if count else most_tokens
        # One tuple, replaced atomically: event loops in several threads may share a backend.
        self._correction = 1.0, 0.0

    def estimate(self, request: Request, options: Mapping[str, Any]) -> Estimate:
        """Estimate the tokens of `request`. `options` are the backend's defaults."""
        uncorrected, reply = self._prompt(request), _max_tokens(request, options)
        prompt = self._correct(uncorrected)
        if reply is None:
            return Estimate(prompt, None, uncorrected)
        most = Usage(input_tokens=max(prompt, self._most_prompt(request)), output_tokens=reply)
        return Estimate(prompt + reply, most, uncorrected)

    def usage_of(
        self, request: Request, deltas: Sequence[Delta], estimate: Estimate | None = None
    ) -> Usage:
        """Return the usage of a reply from its deltas, and learn from it.

        It is the last usage among the deltas, plus an estimate of the text after it. Without one,
        all is estimated. A usage of 0 tokens counts as none. Impossible counts (negative, or more
        than `_MAX_REPLY_TOKENS`) are clipped. `estimate` is that of the request.
        """
        usage, start = _last_usage(deltas)
        if usage is None:
            usage = Usage(input_tokens=self._correct(self._prompt(request)))
        elif estimate is not None and usage.input_tokens:
            self._learn(estimate.uncorrected, usage.input_tokens)
        text = _reply_text(deltas[start:])
        return usage + Usage(output_tokens=self._count(text)) if text else usage

    def _count_checked(self, text: str) -> int:
        """Count with the user's function. Raises `ConfigurationError` if it returns no number."""
        assert self._tokenizer is not None
        tokens: object = self._tokenizer(text)
        if not (isinstance(tokens, Real) and 0 <= tokens <= _MAX_REPLY_TOKENS):
            raise ConfigurationError(
                f"count_tokens= must return a number of tokens, not {quote(tokens)}"
            )
        return int(tokens)

    def _correct(self, tokens: int) -> int:
        factor, offset = self._correction
        return max(1, round(tokens * factor + offset))

    def _learn(self, tokens: int, counted: int) -> None:
        """Make the smallest change of the correction that turns `tokens` into `counted`."""
        factor, offset = self._correction
        error = counted - (tokens * factor + offset)
        error /= tokens * tokens * _FACTOR_VARIANCE + _OFFSET_VARIANCE
        factor += error * tokens * _FACTOR_VARIANCE
        self._correction = max(0.0, factor), offset + error * _OFFSET_VARIANCE

    def _prompt(self, request: Request) -> int:
        """Count the texts, calls, tools and parts of a prompt, with their frames."""
        calls = sum(len(message.tool_calls) for message in request.messages)
        frames = _PROMPT_FRAME + _MESSAGE_FRAME * len(request.messages)
        frames += _CALL_FRAME * (calls + len(request.tools))
        return frames + self._content(request, self._count)

    def _most_prompt(self, request: Request) -> int:
        calls = sum(len(message.tool_calls) for message in request.messages)
        frames = len(request.messages) + calls + len(request.tools)
        content = self._content(request, self._count_most)
        return _MAX_PROMPT_FRAME + _MAX_FRAME * frames + content

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


def _last_usage(deltas: Sequence[Delta]) -> tuple[Usage | None, int]:
    """Return the last usage that counts, and the index of the delta after it."""
    for place in range(len(deltas) - 1, -1, -1):
        usage = deltas[place].usage
        if usage is not None:
            counts = {
                name: min(max(0, n), _MAX_REPLY_TOKENS) for name, n in usage.model_dump().items()
            }
            if counts["input_tokens"] + counts["output_tokens"] > 0:
                return Usage(**counts), place + 1
    return None, 0


def _reply_text(deltas: Iterable[Delta]) -> str:
    texts: list[str] = []
    for delta in deltas:
        texts.append(delta.text)
        if delta.reasoning or delta.refusal:
            texts += delta.reasoning, delta.refusal
        for call in delta.tool_calls:
            texts += call.name or "", call.arguments
    return "".join(texts)
