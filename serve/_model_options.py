"""The options of a model in a request: which fields are options, and which are ignored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["ModelOptions", "non_default_options", "read_options", "requested_fields"]

# Fields that clients send by default. They have no effect here and do no harm.
IGNORED_FIELDS = frozenset(
    {
        *("user", "metadata", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
    }
)
# Values that request no feature, by field. With another value the field counts as requested.
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "modalities": (["text"],),
    "truncation": ("disabled",),
    "include": ([],),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True,),
    "tool_choice": ("auto",),
    "stop": ([],),
    "logit_bias": ({},),
}
# Values that clients send by default: the API's documented default, or one without effect. Agents
# accept them. A served backend passes them on to the model, whose own default may be another.
OPTION_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "temperature": (1,),
    "top_p": (1,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "verbosity": ("medium",),
    "top_k": (0, -1),
    "min_p": (0,),
    "min_tokens": (0,),
    "repetition_penalty": (1,),
    "ignore_eos": (False,),
    "stop_token_ids": ([],),
    "bad_words": ([],),
    "chat_template_kwargs": ({},),
}

Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(ge=1)]


class ModelOptions(BaseModel):
    """Options that a client may set for a served backend.

    First come the names of the chat wire, then names that self-hosted servers have added. None of
    them chooses another model or adds unchecked fields to its request.
    """

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    stop: Text | list[Text] | None = None
    max_tokens: Tokens | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    response_format: dict[str, Any] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: Text | None = None
    verbosity: Text | None = None

    top_k: int | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    min_tokens: Count | None = None
    repetition_penalty: float | None = None
    ignore_eos: bool | None = None
    stop_token_ids: list[int] | None = None
    bad_words: list[Text] | None = None
    allowed_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    thinking_token_budget: Count | None = None
    structured_outputs: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


def requested_fields(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a request that can have an effect."""
    for name, value in body.items():
        if value is None or name in IGNORED_FIELDS:
            continue
        if not _is_one_of(NEUTRAL_VALUES.get(name, ()), value):
            yield name, value


def non_default_options(options: Mapping[str, Any]) -> list[str]:
    """Return the names of the options with another value than the API's default, sorted."""
    return sorted(
        name
        for name, value in options.items()
        if not _is_one_of(OPTION_DEFAULTS.get(name, ()), value)
    )


def _is_one_of(values: tuple[Any, ...], value: Any) -> bool:
    # True equals 1 in Python, but not in JSON.
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def read_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Validate the options; raise `ValueError` with the name of a wrong one and the reason."""
    try:
        return ModelOptions.model_validate(dict(options)).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise ValueError(name, "it is not supported here") from None
        raise ValueError(name, first["msg"]) from None
