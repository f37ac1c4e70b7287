"""Which fields of a request are honoured where, which are passed over, and which refused (S17)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

__all__ = ["ModelOptions", "asked_for", "read_options"]

# Fields that change nothing of an answer here, and harm nobody: clients send them unasked.
IGNORED = frozenset(
    {
        *("user", "metadata", "safety_identifier"),
        *("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "prediction"),
    }
)
# Fields whose usual value asks for nothing.
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

Text = Annotated[str, Field(max_length=10_000)]
Count = Annotated[int, Field(ge=0)]
Tokens = Annotated[int, Field(ge=1)]


class ModelOptions(BaseModel):
    """What a client may choose where a model is served by itself, and nowhere else.

    The names are those of the chat wire, and then those that servers of one's own have added. What
    would choose another model, or go into the request behind its checks, is not among them.
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
    """Give the fields of a request that ask for anything."""
    for name, value in body.items():
        usual = USUAL.get(name, ())
        # True is 1, and yet another value.
        is_usual = any(value == each and type(value) is type(each) for each in usual)
        if value is not None and name not in IGNORED and not is_usual:
            yield name, value


def read_options(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Check the options for a model; raise `ValueError` with the name of one and what is wrong."""
    try:
        return ModelOptions.model_validate(dict(asked)).model_dump(exclude_none=True)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        name = str(first["loc"][0])
        if first["type"] == "extra_forbidden":
            raise ValueError(name, "it is not supported here") from None
        raise ValueError(name, first["msg"]) from None
