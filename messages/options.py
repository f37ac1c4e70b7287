"""The options of a request: which names the wire has, and what is said of a name that it has not.

A name that is misspelt, or meant for something else, would be sent as a field of the body; most
servers ignore it, and nobody is told. So it is refused where it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from inspect import Parameter, signature
from typing import Any

from ..commander.errors import ConfigurationError

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
        # What servers of one's own have added, under the same names: vLLM, SGLang, llama.cpp.
        *("top_k", "min_p", "min_tokens", "repetition_penalty", "ignore_eos", "stop_token_ids"),
        *("bad_words", "allowed_token_ids", "include_stop_str_in_output", "extra_args"),
        *("thinking_token_budget", "structured_outputs", "chat_template_kwargs"),
        *("continue_final_message", "add_generation_prompt"),
        # Ours: fields that go into the body as they are, and images that tools gave.
        *("extra", "tool_images"),
    }
)
"""The names that an option may have."""


class StrictSchema(dict[str, Any]):
    """The `json_schema` of a `response_format` that a server is to follow strictly.

    `known_as` is what earlier releases sent in its place. Journals and cassettes find requests, and
    the nodes that make them, by that, so that what those releases have recorded is still found.
    """

    def __init__(self, sent: Mapping[str, Any], known_as: Mapping[str, Any]) -> None:
        super().__init__(sent)
        self.known_as = dict(known_as)

    def __reduce__(self) -> tuple[Any, ...]:
        return StrictSchema, (dict(self), self.known_as)


ALIKE = 0.6  # of two names of which one may have been meant as the other, 1.0 being the same


def check_options(
    names: Iterable[str], owner: str, *, of: type | None = None, takes: Collection[str] = ()
) -> None:
    """Raise `ConfigurationError` for names that are no options, each with the nearest that is one.

    `owner` is who was given them, as the message says it. `of` is a class whose arguments may have
    been meant; `takes` are names that are allowed besides the wire's.
    """
    unknown = [name for name in names if name not in WIRE_OPTIONS and name not in takes]
    if not unknown:
        return
    arguments = () if of is None else parameters_of(*(kind.__init__ for kind in of.__mro__))
    known = [*takes, *arguments, *sorted(WIRE_OPTIONS)]
    faults = [
        f"{name!r}" + (f" (did you mean {near!r}?)" if (near := nearest(str(name), known)) else "")
        for name in sorted(unknown, key=str)
    ]
    raise ConfigurationError(
        f"{owner} has no option {', '.join(faults)}; a field that only your server knows goes into"
        " extra={...}"
    )


def parameters_of(*functions: Callable[..., Any]) -> list[str]:
    """Return the names of what can be given by keyword, the first function's first."""
    kinds = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
    return [
        name
        for function in functions
        for name, parameter in signature(function).parameters.items()
        if parameter.kind in kinds and name != "self"
    ]


def nearest(name: str, known: Iterable[str], alike: float = ALIKE) -> str | None:
    """Return the name that may have been meant, the first of those that are equally near."""

    def likeness(other: str) -> float:
        return SequenceMatcher(None, name, other).ratio()

    near = max(known, key=likeness)
    return near if likeness(near) >= alike else None
