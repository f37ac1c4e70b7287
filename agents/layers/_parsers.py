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
from ...dispatch.assembly import STOPPED
from ...messages.options import StrictSchema

__all__ = ["JsonParser", "Parser", "StringParser", "parse_reply", "strict_schema"]

T = TypeVar("T")

MAX_SCANS = 20  # the search for JSON in a text reads at most this many times its length
MAX_SCHEMA_NAME_CHARS = 64  # servers refuse longer names

_FENCED_TEXT = re.compile(r"```(?:\w*\n|json\b)?(.*?)```", re.DOTALL)
_NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9_-]+")  # servers refuse these in a schema's name


@passes_with("parse")
class Parser(ABC, Generic[T]):
    """Reads a reply. The result of `parse` becomes the message's `formatted`.

        class Number(Parser[int]):
            retries = 2

            def parse(self, text: str) -> int:
                return int(text)

    After a `ValueError` of `parse` the model may try again `retries` times, and reads the error's
    text.
    """

    retries: int = 0

    @abstractmethod
    def parse(self, text: str) -> T:
        """Return the value of a complete reply; raise `ValueError` with a text for the model."""

    def parse_cut(self, text: str) -> T:
        """Return the value of a reply that a limit or a filter cut off. By default as `parse`."""
        return self.parse(text)

    def instruction(self) -> str:
        """Return the instruction to the model about the form of its replies, "" for none."""
        return ""

    def options(self) -> dict[str, Any]:
        """Return options for the request, by the wire's names. The agent's own override them."""
        return {}

    def complete(self, text: str) -> str:
        """Return a reply with the end mark that a stop word may have cut."""
        return text

    def restore(self, saved: Any) -> T:
        """Return the value of `parse` from its saved form."""
        return saved


def parse_reply(parser: Parser[T], text: str, finish_reason: str | None) -> T:
    """Return a parser's value of a reply, which a limit or a filter may have cut off."""
    return (parser.parse_cut if finish_reason in STOPPED else parser.parse)(text)


class StringParser(Parser[str]):
    """Returns the reply without white space around it. `template` is the instruction."""

    def __init__(self, template: str = "") -> None:
        self.template = template

    def instruction(self) -> str:
        """Return the template."""
        return self.template

    def parse(self, text: str) -> str:
        """Strip the reply."""
        return text.strip()


class JsonParser(Parser[T]):
    """Reads JSON as `model`: a pydantic model, a dataclass, or any type that pydantic knows.

        parser = JsonParser(City)
        parser = JsonParser(City | Fault)  # for a type checker a JsonParser[Any]

    The JSON may be in a fence. An object or a list may also be between other text. `<think>` and
    its content are ignored. If a reply does not fit, the model reads the errors and tries again, up
    to `retries` times. A reply that was cut off must begin with a complete object, list or string,
    or have a value in a closed fence.

    With `constrain` the request asks the server to allow nothing else (`response_format`), which
    not every server supports. The schema is strict, unless the type has parts that a strict schema
    cannot express, such as free keys (`dict[str, int]`) or `Any`. With a strict schema the model
    writes all fields, also those with a default.

    `template` is the instruction, with `{schema}` for the JSON schema.
    """

    @overload
    def __init__(
        self, model: type[T], *, retries: int = 2, constrain: bool = False, template: str = ...
    ) -> None: ...

    # A type checker cannot infer the type from a union, an `Annotated` and other special forms.
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
        """Return the template with the schema."""
        return self.template.replace("{schema}", json.dumps(self._schema, ensure_ascii=False))

    def options(self) -> dict[str, Any]:
        """Return the schema as `response_format`, with `constrain`."""
        if not self.constrain:
            return {}
        title = _NOT_IN_NAME.sub("_", self._schema.get("title", ""))
        name = title.strip("_")[:MAX_SCHEMA_NAME_CHARS]
        schema: dict[str, Any] = {"name": name or "answer", "schema": self._schema}
        if (strict := strict_schema(self._schema)) is not None:
            schema = StrictSchema({**schema, "schema": strict, "strict": True}, schema)
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def parse(self, text: str) -> T:
        """Return the JSON that fits: the text, a fence, or the longest value in the text."""
        return self._read(_candidates(text))

    def parse_cut(self, text: str) -> T:
        """Return a certainly complete value. A number or an inner value may be incomplete."""
        if not (complete := [*_complete(text)]):
            raise ValueError("the reply was cut off before its JSON was complete")
        return self._read(complete)

    def _read(self, candidates: Iterable[str]) -> T:
        not_json: ValidationError | None = None
        invalid: ValidationError | None = None
        for each in candidates:
            try:
                return self._type.validate_json(each)
            except ValidationError as error:
                if error.errors()[0]["type"] == "json_invalid":
                    not_json = not_json or error
                else:
                    invalid = invalid or error
        if invalid is None:
            raise ValueError(f"the reply is not JSON: {_faults(not_json)}") from not_json
        raise ValueError(_faults(invalid)) from invalid

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
    """Yield the texts that may be the JSON, the most likely first.

    These are the text, its fences, and the outermost objects and lists in it.
    """
    yield text
    if (answer := _without_reasoning(text)) != text:
        yield (text := answer)
    yield from sorted(_FENCED_TEXT.findall(text), key=len, reverse=True)
    values: list[str] = []
    decoder, work, end = json.JSONDecoder(), MAX_SCANS * len(text), 0
    for start in (found.start() for found in re.finditer(r"[\[{]", text)):
        if start < end:
            continue
        if work < 0:
            break
        try:
            end = decoder.raw_decode(text, start)[1]
        except json.JSONDecodeError as error:
            work -= error.pos - start
        except (ValueError, RecursionError):  # a number with too many digits; nested too deep
            work -= len(text)
        else:
            values.append(text[start:end])
    yield from sorted(values, key=len, reverse=True)


def _complete(text: str) -> Iterator[str]:
    """Yield the complete texts of a cut reply that may be the JSON.

    This is a value at its beginning, or else its closed fences.
    """
    text = _without_reasoning(text).strip()
    if text.startswith(("{", "[", '"')):
        with suppress(ValueError, RecursionError):
            yield text[: json.JSONDecoder().raw_decode(text)[1]]
    elif text.count("```") % 2 == 0:
        fenced = (found.strip() for found in _FENCED_TEXT.findall(text))
        yield from sorted(fenced, key=len, reverse=True)


def _without_reasoning(text: str) -> str:
    """Return the text after a model's reasoning. Its first mark may be missing."""
    begin, end = "<think>", "</think>"
    if begin not in text.partition(end)[0]:
        text = text.partition(end)[2] or text
    while text.lstrip().startswith(begin):
        text = text.partition(end)[2]
    return text


# What OpenAI documents for `"strict": true`; any other keyword makes it refuse the request.
STRICT_KEYWORDS = frozenset(
    (
        *("$defs", "$ref", "type", "title", "description", "enum", "const", "anyOf"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
STRICT_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
ANNOTATIONS = frozenset(("default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))


class _NotStrictError(Exception):
    """A strict schema cannot express this schema."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a schema of the same values for `"strict": true`, None if there is none.

    Its objects have no other properties, and all are required: the model writes out defaults. None
    for a root that is not an object, free keys, values of any type, and keywords that strict
    servers refuse.
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
    fields = dict(cast("Mapping[str, Any]", schema))
    if "$ref" in fields:
        return {"$ref": fields["$ref"]}
    if fields.keys() >= {"oneOf", "discriminator"}:  # its cases exclude each other anyway
        fields["anyOf"] = fields.pop("oneOf")
        del fields["discriminator"]
    strict = {name: each for name, each in fields.items() if name not in ANNOTATIONS}
    allowed = strict.keys() <= STRICT_KEYWORDS and strict.get("format", "date") in STRICT_FORMATS
    if not allowed or not strict.keys() & {"type", "anyOf", "enum", "const"}:
        raise _NotStrictError
    for name in ("$defs", "properties"):
        if name in strict:
            strict[name] = {key: _strict(each) for key, each in strict[name].items()}
    if "anyOf" in strict:
        strict["anyOf"] = [_strict(each) for each in strict["anyOf"]]
    if strict.get("type") == "array":
        strict["items"] = _strict(strict.get("items"))
    if strict.get("type") == "object":
        if strict.get("additionalProperties", False) is not False or "properties" not in strict:
            raise _NotStrictError
        strict |= {"required": [*strict["properties"]], "additionalProperties": False}
    return strict
