"""Embeddings: the texts that are asked about, and the vectors that a server answers with."""

from __future__ import annotations

import sys
from array import array
from base64 import b64decode
from collections.abc import Sequence
from math import isfinite
from typing import Any, TypeAlias, cast

from pydantic_core import from_json

from ..commander.errors import BadResponse
from ..messages import Usage, delta_from_chunk
from ..messages.text import quote

__all__ = ["Embedded", "as_vectors", "list_of_texts", "read_embeddings"]

Embedded: TypeAlias = tuple[list[list[float]], Usage | None]
"""A vector for each text, in their order, and what that took; None if nobody has said."""


def list_of_texts(texts: Sequence[str]) -> list[str]:
    """Return `texts` as a list of their own; raises `TypeError` for what is no list of texts."""
    if isinstance(texts, str | bytes):
        raise TypeError("embed takes a list of texts, not one text: embed([text])")
    every = list(texts)
    for text in every:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise TypeError(f"embed takes texts, not {type(text).__name__}: {quote(text)}")
    return every


def read_embeddings(body: bytes, count: int) -> Embedded:
    """Read the answer to a request about so many texts.

    Raises what an error object in it stands for, and `BadResponse` if it does not hold one vector
    for each text, all of one size and of numbers that 32 bits hold.
    """
    try:
        answer: Any = from_json(body)
    except ValueError:
        raise BadResponse(f"the answer is not JSON: {body[:200]!r}") from None
    if not isinstance(answer, dict):
        raise _unexpected("the answer", "an object", answer)
    fields = cast("dict[str, Any]", answer)
    told = {name: fields[name] for name in ("error", "object", "usage") if name in fields}
    said = delta_from_chunk(told)  # what it reads of a chunk: an error, or the usage
    ordered = _in_order(_list("data", fields.get("data", fields)), count)
    return as_vectors([_numbers(each.get("embedding")) for each in ordered]), said and said.usage


def as_vectors(value: Any) -> list[list[float]]:
    """Return `value` if it holds vectors, all of one size, of numbers that 32 bits hold.

    Raises `BadResponse`. A greater number would be infinite wherever it is kept.
    """
    vectors: list[list[float]] = []
    for each in _list("the vectors", value):
        numbers = _list("a vector", each)
        try:
            finite = all(map(isfinite, array("f", numbers)))
        except (TypeError, OverflowError):
            finite = False
        if not finite:
            raise _unexpected("a vector", "a list of finite numbers", numbers)
        vectors.append([*map(float, numbers)])
    if len(sizes := {len(vector) for vector in vectors}) > 1 or 0 in sizes:
        found = ", ".join(map(str, sorted(sizes)))
        raise BadResponse(f"the vectors should have one size, and they have: {found}")
    return vectors


def _in_order(data: list[Any], count: int) -> list[dict[str, Any]]:
    """Sort by `index`; where none has one, they stand in the order of the texts."""
    if len(data) != count:
        raise BadResponse(f"{len(data)} vectors came for {count} texts")
    every: list[dict[str, Any]] = []
    for each in data:
        if not isinstance(each, dict):
            raise _unexpected("an embedding", "an object", each)
        every.append(cast("dict[str, Any]", each))
    places: list[Any] = [each.get("index") for each in every]
    if all(place is None for place in places):
        return every
    if any(type(place) is not int for place in places) or set(places) != set(range(count)):
        raise _unexpected("the indices", f"those of {count} texts", places)
    return [each for _, each in sorted(zip(places, every, strict=True), key=lambda pair: pair[0])]


def _numbers(embedding: object) -> object:
    """Return what stands for a vector, or, if it is text, the 32-bit numbers in its base64."""
    if not isinstance(embedding, str):
        return embedding
    numbers = array("f")
    try:
        numbers.frombytes(b64decode(embedding, validate=True))
    except ValueError:
        raise _unexpected("a vector in base64", "32-bit numbers", embedding) from None
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _list(what: str, value: object) -> list[Any]:
    if not isinstance(value, list):
        raise _unexpected(what, "a list", value)
    return cast("list[Any]", value)


def _unexpected(what: str, expected: str, value: object) -> BadResponse:
    return BadResponse(f"not the embeddings wire: {what} should be {expected}: {quote(value)}")
