"""Embeddings: check the texts of a request, and read the vectors of a server's answer."""

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
"""A vector for each text, in their order, and the usage, None if the server sent none."""


def list_of_texts(texts: Sequence[str]) -> list[str]:
    """Return `texts` as a new list; raise `TypeError` unless it holds only texts."""
    if isinstance(texts, str | bytes):
        raise TypeError("embed takes a list of texts, not one text; call embed([text])")
    items = list(texts)
    for text in items:
        if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users' own
            raise TypeError(f"embed takes texts, not {type(text).__name__}: {quote(text)}")
    return items


def read_embeddings(body: bytes, count: int) -> Embedded:
    """Return the vectors and the usage from a server's answer about `count` texts.

    Raises the error that the answer contains, and `BadResponse` unless it has one vector for each
    text, all of one size, with numbers that fit 32 bits.
    """
    try:
        answer: Any = from_json(body)
    except ValueError:
        raise BadResponse(f"the answer is not JSON: {body[:200]!r}") from None
    if not isinstance(answer, dict):
        raise _unexpected("the answer", "an object", answer)
    fields = cast("dict[str, Any]", answer)
    known = {name: fields[name] for name in ("error", "object", "usage") if name in fields}
    delta = delta_from_chunk(known)  # raises an error object, reads the usage
    ordered = _in_order(_list("data", fields.get("data", fields)), count)
    return as_vectors([_numbers(each.get("embedding")) for each in ordered]), delta and delta.usage


def as_vectors(value: Any) -> list[list[float]]:
    """Return `value` if it is a list of vectors of one size whose numbers fit 32 bits.

    Raises `BadResponse`. A larger number would become infinite in an index.
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
        raise BadResponse(f"the vectors must have one size; they have {found}")
    return vectors


def _in_order(data: list[Any], count: int) -> list[dict[str, Any]]:
    """Return the embeddings in the order of `index`; unchanged if none has an index."""
    if len(data) != count:
        raise BadResponse(f"{len(data)} vectors came for {count} texts")
    entries: list[dict[str, Any]] = []
    for each in data:
        if not isinstance(each, dict):
            raise _unexpected("an embedding", "an object", each)
        entries.append(cast("dict[str, Any]", each))
    places: list[Any] = [each.get("index") for each in entries]
    if all(place is None for place in places):
        return entries
    if any(type(place) is not int for place in places) or set(places) != set(range(count)):
        raise _unexpected("the indices", f"those of {count} texts", places)
    return [each for _, each in sorted(zip(places, entries, strict=True), key=lambda pair: pair[0])]


def _numbers(embedding: object) -> object:
    """Return an embedding as numbers. Text is base64 of 32-bit numbers."""
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
    return BadResponse(
        f"not a reply with embeddings: {what} must be {expected}, not {quote(value)}"
    )
