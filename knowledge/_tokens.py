"""Counting the tokens of a text: by a guess, or as a model does."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeAlias

from ..commander.errors import ConfigurationError, MissingExtra
from ..messages.tokens import estimate_tokens

__all__ = ["CountTokens", "estimate_tokens", "token_counter"]

CountTokens: TypeAlias = Callable[[str], int]
"""Says how many tokens a text has."""


def token_counter(name: str | os.PathLike[str]) -> CountTokens:
    """Return what counts the tokens of a model: `Index("notes.db", count_tokens=...)`.

    `name` is the path of a `tokenizer.json`, or a model of the Hugging Face hub such as
    `"Qwen/Qwen3-0.6B"`, or one of OpenAI such as `"text-embedding-3-small"`, with `"openai:"`
    before it or not. What is not on this machine yet is fetched.

    Raises `MissingExtra` without the extra `tokens`, and `ConfigurationError` for a name whose
    tokenizer cannot be had.
    """
    name = os.fspath(name)
    if os.path.isfile(name) or name.endswith(".json"):
        counter = _of_tokenizers(name, "from_file")
    elif "/" in name:
        counter = _of_tokenizers(name, "from_pretrained")
    else:
        counter = _of_openai(name.removeprefix("openai:"))
    counter.__qualname__ = f"token_counter({name!r})"  # by which an index knows it again
    return counter


def _of_tokenizers(name: str, how: str) -> Callable[[str], int]:
    tokenizer: Any = getattr(_library("tokenizers", name).Tokenizer, how)
    try:
        tokenizer = tokenizer(name)
    except Exception as error:  # the library raises nothing narrower
        raise _unknown(name, error) from error
    tokenizer.no_truncation()  # which some files have, for what their model can take at once
    tokenizer.no_padding()

    def count(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False).ids)

    return count


def _of_openai(name: str) -> Callable[[str], int]:
    library = _library("tiktoken", name)
    try:
        encoding = library.encoding_for_model(name)
    except Exception as error:  # it fetches files, by a library of its own
        raise _unknown(name, error) from error

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    return count


def _library(library: str, name: str) -> Any:
    try:
        return import_module(library)
    except ImportError as error:
        raise MissingExtra(f"counting tokens as {name!r} does", "tokens") from error


def _unknown(name: str, error: Exception) -> ConfigurationError:
    return ConfigurationError(
        f"cannot count tokens as {name!r} does ({type(error).__name__}: {error}): give the path of"
        " its tokenizer.json, or leave count_tokens= out for a guess"
    )
