"""Fields of a request: options of a model, fields without effect, and fields to refuse (S17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["ModelOptions", "asked_for", "chosen", "read_options"]

# Fields that have no effect here and do no harm: clients send them by default.
IGNORED = frozenset(
    {
        *("user", "metadata", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
    }
)
# Fields whose default value asks for nothing.
USUAL: dict[str, tuple[Any, ...]] = {
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
# Values of options that clients send by default: what the API documents as the option's default, or
# what changes nothing. A model by itself is given them: its own default may be another.
DEFAULTS: dict[str, tuple[Any, ...]] = {
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
    """Options that a client may set for a model that is served by itself.

    The names are those of the chat wire, and then those that self-hosted servers have added. None
    of them chooses another model or adds unchecked fields to its request.
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


def asked_for(body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a request that ask for anything."""
    for name, value in body.items():
        if value is not None and name not in IGNORED and not _is_one_of(USUAL.get(name, ()), value):
            yield name, value


def chosen(asked: Mapping[str, Any]) -> list[str]:
    """Return the names of the options that are no defaults of the API, sorted."""
    return sorted(n for n, value in asked.items() if not _is_one_of(DEFAULTS.get(n, ()), value))


def _is_one_of(values: tuple[Any, ...], value: Any) -> bool:
    # True equals 1, but is another value.
    return any(
        value == each and isinstance(value, bool) == isinstance(each, bool) for each in values
    )


def read_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options for a model; raise `ValueError` with the name of one and the reason."""
    try:
        return ModelOptions.model_validate(dict(asked)).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise ValueError(name, "it is not supported here") from None
        raise ValueError(name, first["msg"]) from None
