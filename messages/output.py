"""Typed output: the JSON schema for the model, and the value in its reply."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, overload

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import to_json

from ..commander.errors import ConfigurationError
from ._message import Message
from .options import StrictSchema
from .text import quote

__all__ = [
    "GrowingOutput",
    "GrowingText",
    "OutputMessage",
    "OutputMode",
    "OutputSchema",
    "strict_schema",
]

T = TypeVar("T")

OutputMode: TypeAlias = Literal["schema", "tool", "grammar", "text"]
"""How a model is asked for typed output.

- "schema": the server is given a JSON schema (`response_format`), strict where possible;
- "tool": the model must call a tool whose arguments are the value;
- "grammar": as "schema", for engines that turn any JSON schema into a grammar;
- "text": the system prompt has the schema, and nothing constrains the reply.
"""


class OutputMessage(Message, Generic[T]):
    """A reply with typed output.

        message = await backend.complete(request, output_type=Invoice)
        message.output.total

    `output_text` is the text of the output as the model wrote it: the content, or the arguments of
    a call. Dumps and the wire contain neither of the two.
    """

    output: T = Field(exclude=True)
    output_text: str = Field(default="", exclude=True, repr=False)


INSTRUCTION = "Answer with one JSON value that fits this schema, and nothing else:\n{schema}"
WRAPPER = "response"
"""The field that holds a value that is no JSON object, where a server accepts objects only."""

MAX_NAME_CHARS = 64
MAX_SCANS = 20
"""How many times the length of a reply may be scanned in search of JSON in it."""

_FENCE = re.compile(r"```(?:\w*\n|json\b)?(.*?)```", re.DOTALL)
_JSON_MARK = re.compile(r"[\[{`\"]|<think>")
_NOT_IN_NAMES = re.compile(r"[^a-zA-Z0-9_-]+")


class OutputSchema(Generic[T]):
    """A type of output: makes the schema for a model, and reads the value from a reply.

        cities = OutputSchema(list[City])
        cities.parse('```json\\n[{"name": "Paris"}]\\n```')  # [City(name="Paris")]

    The type is anything that pydantic reads from JSON: a model, a dataclass, a `TypedDict`, a
    union, a list, a primitive, a `Literal`.

    Raises `ConfigurationError` for a type without a JSON schema.
    """

    @overload
    def __init__(self, output_type: type[T]) -> None: ...

    # A type checker cannot infer the type from a union, an `Annotated` and other special forms.
    @overload
    def __init__(self: OutputSchema[Any], output_type: object) -> None: ...

    def __init__(self, output_type: Any) -> None:
        self.output_type = output_type
        try:
            self._adapter: TypeAdapter[T] = TypeAdapter(output_type)
            self.schema: dict[str, Any] = self._adapter.json_schema()
            if self._adapter.core_schema["type"] == "call":
                raise TypeError("it is a function")
        except Exception as error:  # pydantic raises errors of several classes
            raise ConfigurationError(
                f"output_type must be a type with a JSON schema, not {quote(output_type)}: {error}"
            ) from error
        title = _NOT_IN_NAMES.sub("_", str(self.schema.get("title", ""))).strip("_")
        self.name: str = title[:MAX_NAME_CHARS] or "answer"
        self.is_object: bool = _root(self.schema).get("type") == "object"

    @classmethod
    def of(cls, output_type: object) -> OutputSchema[Any]:
        """Return the schema of a type; a schema is returned unchanged."""
        if isinstance(output_type, OutputSchema):
            return cast("OutputSchema[Any]", output_type)
        return OutputSchema(output_type)

    @property
    def takes_none(self) -> bool:
        """Whether None is a value of the type."""
        with suppress(ValidationError):
            self._adapter.validate_python(None)
            return True
        return False

    @property
    def object_schema(self) -> dict[str, Any]:
        """The schema of an object; any other value becomes the field `response` of an object."""
        if self.is_object:
            return dict(_root(self.schema))
        inner = {key: value for key, value in self.schema.items() if key != "$defs"}
        wrapped: dict[str, Any] = {
            "type": "object",
            "properties": {WRAPPER: inner},
            "required": [WRAPPER],
        }
        if "$defs" in self.schema:
            wrapped["$defs"] = self.schema["$defs"]
        return wrapped

    def instruction(self, template: str = INSTRUCTION) -> str:
        """Return `template` with `{schema}` replaced by the schema."""
        return template.replace("{schema}", json.dumps(self.schema, ensure_ascii=False))

    def response_format(self, *, wrap: bool = True) -> dict[str, Any]:
        """Return the request's `response_format`, in strict form if the schema allows it.

        In strict form the model must write every field, also those with a default. With `wrap` the
        schema is `object_schema`, since strict servers require an object.
        """
        sent = self.object_schema if wrap else self.schema
        schema: dict[str, Any] = {"name": self.name, "schema": sent}
        if (strict := strict_schema(sent)) is not None:
            schema = StrictSchema({**schema, "schema": strict, "strict": True}, schema)
        return {"type": "json_schema", "json_schema": schema}

    def parse(self, text: str, *, is_cut: bool = False, is_wrapped: bool = False) -> T:
        """Return the value of a reply; raise `ValueError` with a text for the model.

        The JSON may be the complete text, in a fence or, if it is an object or a list, among other
        text. Reasoning between `<think>` and `</think>` is ignored. In a reply that was cut off
        (`is_cut`) only a complete value at its beginning or in a closed fence counts. `is_wrapped`
        means that the request used `object_schema`.
        """
        if not is_cut:
            return self._first_that_fits(_candidates(text), is_wrapped)
        if complete := [*_complete_candidates(text)]:
            return self._first_that_fits(complete, is_wrapped)
        raise ValueError("the reply was cut off before its JSON was complete")

    def read(self, value: Any, *, is_wrapped: bool = False) -> T:
        """Return the value of parsed JSON; raise `ValueError` with a text for the model."""
        if is_wrapped and not self.is_object:
            value = _unwrap(value)
        try:
            return self._adapter.validate_json(to_json(value))
        except ValidationError as error:
            raise ValueError(faults_of(error)) from error

    def read_stored(self, value: Any) -> T:
        """Return the value of stored JSON, with the fields' names or their aliases.

        Raises `ValueError`.
        """
        try:
            return self._adapter.validate_json(to_json(value), by_alias=True, by_name=True)
        except ValidationError as error:
            raise ValueError(faults_of(error)) from error

    def dumps(self, value: T) -> Iterator[Any]:
        """Yield the JSON values that pydantic writes for a value, one of which may read back."""
        for by_alias in (True, False):
            with suppress(Exception):  # of a serializer of the type
                yield self._adapter.dump_python(
                    value, mode="json", by_alias=by_alias, round_trip=True, warnings=False
                )

    def read_bare(self, text: str) -> T:
        """Return the value of text without JSON; raise `ValueError` if it is none.

        A model that is asked for one of two words, or for a date, may omit the quotes.
        """
        text = text.strip()
        if _JSON_MARK.search(text):
            raise ValueError("the reply has JSON")
        return self._adapter.validate_json(to_json(text))

    def parse_partial(self, text: str, *, is_wrapped: bool = False) -> T:
        """Return the value of incomplete JSON, with pydantic's partial mode.

        Raises `ValueError` while the JSON is not yet a valid value, for example before all required
        fields of a model have begun.
        """
        start = re.search(r"[\[{]", text)
        text = text[start.start() :] if start else text
        if is_wrapped and not self.is_object:
            found = _WRAPPED.validate_json(text, experimental_allow_partial="trailing-strings")
            if WRAPPER not in found:
                raise ValueError("the value has not begun")
            return self._adapter.validate_python(
                found[WRAPPER], experimental_allow_partial="trailing-strings"
            )
        return self._adapter.validate_json(text, experimental_allow_partial="trailing-strings")

    def _first_that_fits(self, candidates: Iterable[str], is_wrapped: bool) -> T:
        not_json: ValidationError | None = None
        unfit: ValidationError | None = None
        for each in candidates:
            try:
                if is_wrapped and not self.is_object:
                    return self._adapter.validate_json(to_json(_unwrap(_ANY.validate_json(each))))
                return self._adapter.validate_json(each)
            except ValidationError as error:
                if error.errors()[0]["type"] == "json_invalid":
                    not_json = not_json or error
                else:
                    unfit = unfit or error
        if unfit is None:
            raise ValueError(f"the reply is not JSON: {faults_of(not_json)}") from not_json
        raise ValueError(faults_of(unfit)) from unfit


_ANY = TypeAdapter[Any](Any)
_WRAPPED = TypeAdapter(dict[str, Any])


def _unwrap(value: Any) -> Any:
    """Return the field of an `object_schema`, or the value itself where a model wrote only that."""
    if not isinstance(value, dict):
        return value
    return cast("dict[str, Any]", value).get(WRAPPER, value)


class GrowingOutput(Generic[T]):
    """Reads typed output while its text grows.

        growing = GrowingOutput(OutputSchema(Invoice))
        growing.add('{"total": 12, "items": ["pa')
        growing.read()  # Invoice(total=12, items=["pa"])

    All reads of a text together take at most three times as long as one read of the complete text,
    for any number of pieces. A long text is therefore not read at every piece.
    """

    # Reading at every piece would take quadratic time. A text of some hundred pieces is read at
    # each. In a longer text, each read covers about twice as much text as the last one, so all
    # reads together cover at most twice the received length.
    _FREE_CHARS = 100_000
    _READ_RATIO = 2

    def __init__(self, schema: OutputSchema[T], *, is_wrapped: bool = False) -> None:
        self._schema = schema
        self._is_wrapped = is_wrapped
        self._pieces: list[str] = []
        self._length = 0
        self._read_chars = 0
        self._is_new = False
        self._last: tuple[T] | None = None

    def add(self, piece: str) -> None:
        """Append a received piece."""
        self._pieces.append(piece)
        self._length += len(piece)
        self._is_new = True

    def clear(self) -> None:
        """Forget the text, for example before another attempt."""
        self._pieces.clear()
        self._length = self._read_chars = 0
        self._is_new = False
        self._last = None

    def read(self) -> tuple[T] | None:
        """Return the value so far in a tuple; None without a value, or without a new one.

        A value that equals the last one is not new. A list does not lose an element again while a
        field of that element grows.
        """
        allowed = self._FREE_CHARS + self._READ_RATIO * self._length
        if not self._is_new or self._read_chars + self._length > allowed:
            return None
        self._is_new = False
        self._read_chars += self._length
        text = "".join(self._pieces)
        self._pieces = [text]
        try:
            value = self._value_of(text)
        except ValueError:
            return None
        if self._last is not None and not _has_grown(value, self._last[0]):
            return None
        self._last = (value,)
        return self._last

    def _value_of(self, text: str) -> T:
        return self._schema.parse_partial(text, is_wrapped=self._is_wrapped)


def _has_grown(value: Any, last: Any) -> bool:
    """Return whether a value is new: not equal to the last one, and not shorter."""
    kinds = (list, set, frozenset, dict)
    if type(value) in kinds and type(value) is type(last) and len(value) < len(last):
        return False
    return bool(value != last)


class GrowingText(GrowingOutput[str]):
    """A growing output that is the text itself."""

    def _value_of(self, text: str) -> str:
        return text


def faults_of(error: ValidationError | None) -> str:
    """Return the faults of a value with their places, as a text for the model."""
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}"
        for fault in (error.errors() if error is not None else ())
    )


# --- JSON in text


def _candidates(text: str) -> Iterator[str]:
    """Yield the texts that may be the JSON, the most likely first.

    These are the complete text, its fences, and its outermost objects and lists.
    """
    yield text
    if (answer := _without_reasoning(text)) != text:
        yield (text := answer)
    yield from sorted(_FENCE.findall(text), key=len, reverse=True)
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
        except (ValueError, RecursionError):  # a number of too many digits; too many levels
            work -= len(text)
        else:
            values.append(text[start:end])
    yield from sorted(values, key=len, reverse=True)


def _complete_candidates(text: str) -> Iterator[str]:
    """Yield the complete texts that may be the JSON, from a reply that was cut off.

    These are the value at its beginning, or else its closed fences.
    """
    text = _without_reasoning(text).strip()
    if text.startswith(("{", "[", '"')):
        with suppress(ValueError, RecursionError):
            yield text[: json.JSONDecoder().raw_decode(text)[1]]
    elif text.count("```") % 2 == 0:
        fenced = (found.strip() for found in _FENCE.findall(text))
        yield from sorted(fenced, key=len, reverse=True)


def _without_reasoning(text: str) -> str:
    """Return the text after a model's reasoning; the opening mark may be missing."""
    begin, end = "<think>", "</think>"
    if begin not in text.partition(end)[0]:
        text = text.partition(end)[2] or text
    while text.lstrip().startswith(begin):
        text = text.partition(end)[2]
    return text


# --- strict schemas

# The keywords and formats that OpenAI documents for `"strict": true`; a server refuses others.
_STRICT_KEYWORDS = frozenset(
    (
        *("$defs", "$ref", "type", "title", "description", "enum", "const", "anyOf"),
        *("properties", "required", "additionalProperties", "items", "minItems", "maxItems"),
        *("pattern", "format", "multipleOf"),
        *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"),
    )
)
_STRICT_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid")
)
_ANNOTATIONS = frozenset(("default", "examples", "deprecated", "readOnly", "writeOnly", "$comment"))


class _NotStrictError(Exception):
    """A schema that strict mode cannot express."""


def strict_schema(schema: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an equivalent schema that a strict server accepts; None if it cannot exist.

    All properties of its objects are required, and no others are allowed. The result is None if the
    root is not an object, or if the schema has free keys, untyped values or unsupported keywords.
    """
    root = _root(schema)
    if root.get("type") != "object":
        return None
    try:
        return _strict(root)
    except _NotStrictError:
        return None


def _root(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema with the reference at its root resolved; recursive models have one there."""
    if "$ref" not in schema:
        return schema
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    name = str(schema["$ref"]).removeprefix("#/$defs/")
    return {**definitions.get(name, {}), "$defs": definitions}


def _strict(schema: Any) -> dict[str, Any]:
    if not isinstance(schema, Mapping) or not schema:
        raise _NotStrictError  # true, or any value
    given = dict(cast("Mapping[str, Any]", schema))
    if "$ref" in given:
        return {"$ref": given["$ref"]}
    if given.keys() >= {"oneOf", "discriminator"}:  # its cases are exclusive anyway
        given["anyOf"] = given.pop("oneOf")
        del given["discriminator"]
    made = {name: each for name, each in given.items() if name not in _ANNOTATIONS}
    is_open = not made.keys() & {"type", "anyOf", "enum", "const"}
    fits = made.keys() <= _STRICT_KEYWORDS and made.get("format", "date") in _STRICT_FORMATS
    if is_open or not fits:
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
