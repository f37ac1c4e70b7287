"""Parsers: turn a model's reply into a value."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, TypeVar, cast, overload

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from ...commander.kinds import passes_with
from ...messages.options import StrictSchema

__all__ = ["JsonParser", "Parser", "StringParser", "strict_schema"]

T = TypeVar("T")

MOST_READINGS = 20  # of a whole text, in search of JSON in it
MOST_NAME = 64  # characters, for a server

_FENCE = re.compile(r"```(?:\w*\n|json\b)?(.*?)```", re.DOTALL)
_UNFIT = re.compile(r"[^a-zA-Z0-9_-]+")  # for the name of a schema


@passes_with("parse")
class Parser(ABC, Generic[T]):
    """Reads a reply; the result of `parse` becomes the message's `formatted`.

    `retries` is how often the model may try again after a `ValueError` of `parse`, whose text it
    reads.
    """

    retries: int = 0

    @abstractmethod
    def parse(self, text: str) -> T:
        """Return the value of a complete reply; raise `ValueError` with a text for the model."""

    def parse_cut(self, text: str) -> T:
        """Return the value of a reply that was cut off, by a limit or by a filter.

        Here as `parse` does.
        """
        return self.parse(text)

    def instruction(self) -> str:
        """Return the instruction to the model on the form of its replies, "" for none."""
        return ""

    def options(self) -> dict[str, Any]:
        """Return options for the request, by the wire's names; the agent's own win."""
        return {}

    def complete(self, text: str) -> str:
        """Return a reply with the end that a stop word may have cut."""
        return text

    def restore(self, saved: Any) -> T:
        """Return the value of `parse` from its saved form."""
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
    """Give the texts that may be the JSON, the likeliest first.

    All of the text, its fences, then the outermost objects and lists in it.
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
    """Give the complete texts of a reply that was cut off that may be the JSON.

    That is the value with which it begins, or else its closed fences.
    """
    text = _without_reasoning(text).strip()
    if text.startswith(("{", "[", '"')):
        with suppress(ValueError, RecursionError):
            yield text[: json.JSONDecoder().raw_decode(text)[1]]
    elif text.count("```") % 2 == 0:
        fenced = (found.strip() for found in _FENCE.findall(text))
        yield from sorted(fenced, key=len, reverse=True)


def _without_reasoning(text: str) -> str:
    """Return the text after a model's reasoning, whose first mark may be missing."""
    begin, end = "<think>", "</think>"
    if begin not in text.partition(end)[0]:
        text = text.partition(end)[2] or text
    while text.lstrip().startswith(begin):
        text = text.partition(end)[2]
    return text


# What OpenAI documents for `"strict": true`; any other keyword makes it refuse the request.
KEYWORDS = frozenset(
    (
        *("$defs", "$ref", "type", "title", "description", "enum", "const", "anyOf"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
NOTES = frozenset(("default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))


class _NotStrictError(Exception):
    """A schema says what a strict one cannot."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of the same values that can be sent with `"strict": true`; None if none is.

    Its objects have their properties and no others, each of them required: the model writes out
    what has a default. It is None for a schema that is no object at its root, has free keys, leaves
    a value open or has keywords that strict servers refuse.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    root = schema
    if "$ref" in schema:  # a model that contains itself
        name = str(schema["$ref"]).removeprefix("#/$defs/")
        root = {**definitions.get(name, {}), "$defs": definitions}
    if root.get("type") != "object":
        return None
    try:
        return _strict(root)
    except _NotStrictError:
        return None


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        raise _NotStrictError  # true, or any value
    given = dict(cast("Mapping[str, Any]", schema))
    if "$ref" in given:
        return {"$ref": given["$ref"]}
    if given.keys() >= {"oneOf", "discriminator"}:  # its cases exclude each other anyway
        given["anyOf"] = given.pop("oneOf")
        del given["discriminator"]
    made = {name: each for name, each in given.items() if name not in NOTES}
    open_ended = not made.keys() & {"type", "anyOf", "enum", "const"}
    if open_ended or not made.keys() <= KEYWORDS or made.get("format", "date") not in FORMATS:
        raise _NotStrictError
    for name in ("$defs", "properties"):
        if name in made:
            made[name] = {key: _strict(each) for key, each in made[name].items()}
    if "anyOf" in made:
        made["anyOf"] = [_strict(each) for each in made["anyOf"]]
    if made.get("type") == "array":
        made["items"] = _strict(made.get("items"))
    if made.get("type") == "object":
        if made.get("additionalProperties", False) is not False or "properties" not in made:
            raise _NotStrictError
        made |= {"required": [*made["properties"]], "additionalProperties": False}
    return made
