"""The names of a request's options, and the error for an unknown name.

Most servers ignore unknown fields of a body without an error. So a misspelt option is refused where
it is passed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from inspect import Parameter, signature
from typing import Any

from ..commander.errors import ConfigurationError
from ..commander.other_names import OPTION_ADVICE, OTHER_OPTIONS, PLACE_ADVICE
from .mask import SECRET_NAME

__all__ = ["WIRE_OPTIONS", "StrictSchema", "check_options", "nearest", "parameters_of"]

WIRE_OPTIONS = frozenset(
    {
        # The chat-completions wire.
        *("temperature", "top_p", "stop", "max_tokens", "max_completion_tokens", "seed", "n"),
        *("presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs"),
        *("response_format", "tool_choice", "parallel_tool_calls", "reasoning_effort", "verbosity"),
        *("user", "metadata", "store", "service_tier", "safety_identifier", "stream_options"),
        *("prompt_cache_key", "prompt_cache_retention", "prediction", "modalities", "audio"),
        "web_search_options",
        # Options of vLLM, SGLang and llama.cpp.
        *("top_k", "min_p", "min_tokens", "repetition_penalty", "ignore_eos", "stop_token_ids"),
        *("bad_words", "allowed_token_ids", "include_stop_str_in_output", "extra_args"),
        *("thinking_token_budget", "structured_outputs", "chat_template_kwargs"),
        *("continue_final_message", "add_generation_prompt"),
        # Options of Anabranch: further fields of the body, and images that tools returned.
        *("extra", "tool_images"),
    }
)
"""The names that an option may have."""


class StrictSchema(dict[str, Any]):
    """The `json_schema` of a `response_format` that the server must follow.

    `known_as` is the value that earlier releases sent. Journals and cassettes identify requests and
    nodes by it, so that recordings of those releases still match.
    """

    def __init__(self, sent: Mapping[str, Any], known_as: Mapping[str, Any]) -> None:
        super().__init__(sent)
        self.known_as: dict[str, Any] = dict(known_as)

    def __reduce__(self) -> tuple[Any, ...]:
        return StrictSchema, (dict(self), self.known_as)


# Names without the advice to put a field into the body: that is no place for keys and the like.
NEVER_SENT = frozenset({"api_base", "base_url", "context", "deps", "history", "model"})

MIN_SIMILARITY = 0.6  # of a suggested name; 1.0 is the same name


def check_options(
    names: Iterable[str], owner: str, *, of: type | None = None, takes: Collection[str] = ()
) -> None:
    """Raise `ConfigurationError` for unknown options, with a similar name for each.

    `owner` is the subject of the message. Names in `takes` are allowed too. The arguments of the
    class `of` are suggested, but not allowed.
    """
    unknown = [name for name in names if name not in WIRE_OPTIONS and name not in takes]
    if not unknown:
        return
    arguments = () if of is None else parameters_of(*(kind.__init__ for kind in of.__mro__))
    known = [*takes, *arguments, *sorted(WIRE_OPTIONS)]
    faults: list[str] = []
    has_advice = True
    for name in sorted(unknown, key=str):
        advice = OPTION_ADVICE.get(name)
        if advice is None and OTHER_OPTIONS.get(name) not in known:
            advice = PLACE_ADVICE.get(name)
        has_advice = has_advice and advice is not None
        if advice is None and (near := nearest(str(name), known)):
            advice = f"did you mean {near!r}?"
        elif advice is None:
            advice = OPTION_ADVICE.get(OTHER_OPTIONS.get(name, ""))
        if name not in OPTION_ADVICE and SECRET_NAME.search(str(name)):
            advice = OPTION_ADVICE["api_key"]
        faults.append(f"{name!r}" + ("" if advice is None else f" ({advice})"))
    message = f"{owner} has no option {', '.join(faults)}"
    is_private = any(each in NEVER_SENT or SECRET_NAME.search(str(each)) for each in unknown)
    if not has_advice and not is_private:
        message += "; pass a field that only your server knows in extra={...}"
    raise ConfigurationError(message)


def parameters_of(*functions: Callable[..., Any]) -> list[str]:
    """Return the names of keyword parameters, those of the first function first."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return [
        name
        for function in functions
        for name, parameter in signature(function).parameters.items()
        if parameter.kind in kinds and name != "self"
    ]


def nearest(name: str, known: Collection[str], similarity: float = MIN_SIMILARITY) -> str | None:
    """Return the most similar name, or None if all differ too much; the first one of equals."""

    def similarity_to(other: str) -> float:
        return SequenceMatcher(None, name, other).ratio()

    if (meant := OTHER_OPTIONS.get(name)) in known:
        return meant
    near = max(known, key=similarity_to)
    return near if similarity_to(near) >= similarity else None
