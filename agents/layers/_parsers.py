"""Parsers: what an agent's model has said becomes what it means."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Generic, TypeVar, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from ...messages.options import StrictSchema
from ._strict import strict_schema

__all__ = ["JsonParser", "Parser", "StringParser"]

T = TypeVar("T")

MOST_READINGS = 20  # of a whole text, in search of JSON in it
MOST_NAME = 64  # characters, for a server

_FENCE = re.compile(r"```(?:\w*\n|json\b)?(.*?)```", re.DOTALL)
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]+")  # for the name of a schema


class Parser(ABC, Generic[T]):
    """Reads a reply; what `parse` returns becomes the message's `formatted`.

    `retries` is how often the model may try again after a `ValueError` of `parse`, whose text it
    is told.
    """

    retries: int = 0

    @abstractmethod
    def parse(self, text: str) -> T:
        """Return what a whole reply means; raise `ValueError` with a text that a model can use."""

    def parse_cut(self, text: str) -> T:
        """Return what a reply means that was cut off, at its greatest length or by a filter.

        As `parse` does, here.
        """
        return self.parse(text)

    def instruction(self) -> str:
        """Return what the model is told about the form of its replies, "" for nothing."""
        return ""

    def options(self) -> dict[str, Any]:
        """Return options for the request, by the wire's names; the agent's own win."""
        return {}

    def whole(self, text: str) -> str:
        """Return a reply of which stop words may have cut the end, as it was meant."""
        return text

    def restore(self, saved: Any) -> T:
        """Return what `parse` had returned from what a saved memory has kept of it."""
        return saved


class StringParser(Parser[str]):
    """Takes the reply as it is, white space around it aside; `template` is the instruction."""

    def __init__(self, template: str = "") -> None:
        self.template = template

    def instruction(self) -> str:
        """Return the template."""
        return self.template

    def parse(self, text: str) -> str:
        """Strip it."""
        return text.strip()


class JsonParser(Parser[T]):
    """Reads JSON into `model`: a pydantic model, a dataclass, or any type that pydantic knows.

        parser = JsonParser(City)
        parser = JsonParser(City | Fault)  # for a type checker a JsonParser[Any]

    The JSON may stand in a fence or, an object or a list, among other text; `<think>` and what
    stands in it do not count. A reply that does not fit is answered with what is wrong with it, up
    to `retries` times. Of a reply that was cut off only a complete object, list or string at its
    beginning counts, or a value in a fence that is closed.

    With `constrain` the server is asked to allow nothing else (`response_format`), which not every
    server can: strictly, unless the type has parts that a strict schema cannot say, such as free
    keys (`dict[str, int]`) or `Any`. A strict server lets the model leave out no field, so it
    writes out what has a default.

    `template` is the instruction, with `{schema}` where the JSON schema goes.
    """

    @overload
    def __init__(
        self, model: type[T], *, retries: int = 2, constrain: bool = False, template: str = ...
    ) -> None: ...

    # Of a union, an `Annotated` and other special forms a type checker does not know the type.
    @overload
    def __init__(
        self: JsonParser[Any],
        model: object,
        *,
        retries: int = 2,
        constrain: bool = False,
        template: str = ...,
    ) -> None: ...

    def __init__(
        self,
        model: Any,
        *,
        retries: int = 2,
        constrain: bool = False,
        template: str = "Answer with one JSON value that fits this schema, and nothing else:\n"
        "{schema}",
    ) -> None:
        self.model = model
        self.retries = retries
        self.constrain = constrain
        self.template = template
        self._type: TypeAdapter[T] = TypeAdapter(model)
        self._schema = self._type.json_schema()

    def instruction(self) -> str:
        """Return the template with the schema in it."""
        return self.template.replace("{schema}", json.dumps(self._schema, ensure_ascii=False))

    def options(self) -> dict[str, Any]:
        """Ask for the schema, with `constrain`."""
        if not self.constrain:
            return {}
        name = _UNFIT.sub("_", self._schema.get("title", "")).strip("_")[:MOST_NAME]
        schema: dict[str, Any] = {"name": name or "answer", "schema": self._schema}
        if (strict := strict_schema(self._schema)) is not None:
            schema = StrictSchema({**schema, "schema": strict, "strict": True}, schema)
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def parse(self, text: str) -> T:
        """Find the JSON that fits: all of the text, a fence, or the longest value that does."""
        return self._read(_candidates(text))

    def parse_cut(self, text: str) -> T:
        """Read what is certainly complete; a number, or a value inside another, may not be."""
        if not (complete := [*_complete(text)]):
            raise ValueError("the reply was cut off before its JSON was complete")
        return self._read(complete)

    def _read(self, candidates: Iterable[str]) -> T:
        not_json: ValidationError | None = None
        unfit: ValidationError | None = None
        for each in candidates:
            try:
                return self._type.validate_json(each)
            except ValidationError as error:
                if error.errors()[0]["type"] == "json_invalid":
                    not_json = not_json or error
                else:
                    unfit = unfit or error
        if unfit is None:
            raise ValueError(f"the reply is not JSON: {_faults(not_json)}") from not_json
        raise ValueError(_faults(unfit)) from unfit

    def restore(self, saved: Any) -> T:
        """Validate a JSON value."""
        try:
            return self._type.validate_json(to_json(saved))
        except ValidationError as error:
            raise ValueError(_faults(error)) from error


def _faults(error: ValidationError | None) -> str:
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}"
        for fault in (error.errors() if error is not None else ())
    )


def _candidates(text: str) -> Iterator[str]:
    """Give what may be the JSON that is meant, the likeliest first.

    All of the text, what is fenced, then the objects and lists in it, but for those in others.
    """
    yield text
    if (answer := _without_reasoning(text)) != text:
        yield (text := answer)
    yield from sorted(_FENCE.findall(text), key=len, reverse=True)
    values: list[str] = []
    decoder, work, end = json.JSONDecoder(), MOST_READINGS * len(text), 0
    for start in (found.start() for found in re.finditer(r"[\[{]", text)):
        if start < end:
            continue
        if work < 0:
            break
        try:
            end = decoder.raw_decode(text, start)[1]
        except json.JSONDecodeError as error:
            work -= error.pos - start
        except (ValueError, RecursionError):  # a number too long to read; too deep
            work -= len(text)
        else:
            values.append(text[start:end])
    yield from sorted(values, key=len, reverse=True)


def _complete(text: str) -> Iterator[str]:
    """Give what is complete of a reply that was cut off, and may be the JSON that is meant.

    That is the value with which it begins, or else what stands in fences: each of them closed.
    """
    text = _without_reasoning(text).strip()
    if text.startswith(("{", "[", '"')):
        with suppress(ValueError, RecursionError):
            yield text[: json.JSONDecoder().raw_decode(text)[1]]
    elif text.count("```") % 2 == 0:
        fenced = (found.strip() for found in _FENCE.findall(text))
        yield from sorted(fenced, key=len, reverse=True)


def _without_reasoning(text: str) -> str:
    """Return what stands behind a model's reasoning, whose first mark may be missing."""
    begin, end = "<think>", "</think>"
    if begin not in text.partition(end)[0]:
        text = text.partition(end)[2] or text
    while text.lstrip().startswith(begin):
        text = text.partition(end)[2]
    return text
