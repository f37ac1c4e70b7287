"""Parsers: turn a model's reply into a value."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar, overload

from ...commander.kinds import passes_with
from ...dispatch.assembly import STOPPED
from ...messages.output import INSTRUCTION, OutputSchema

__all__ = ["JsonParser", "Parser", "StringParser", "parse_reply"]

T = TypeVar("T")


@passes_with("parse")
class Parser(ABC, Generic[T]):
    """Reads a reply. The result of `parse` becomes the message's `output`.

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
        template: str = INSTRUCTION,
    ) -> None:
        self.model = model
        self.retries = retries
        self.constrain = constrain
        self.template = template
        self._output = OutputSchema[T](model)

    def instruction(self) -> str:
        """Return the template with the schema."""
        return self._output.instruction(self.template)

    def options(self) -> dict[str, Any]:
        """Return the schema as `response_format`, with `constrain`."""
        if not self.constrain:
            return {}
        return {"response_format": self._output.response_format(wrap=False)}

    def parse(self, text: str) -> T:
        """Return the JSON that fits: the text, a fence, or the longest value in the text."""
        return self._output.parse(text)

    def parse_cut(self, text: str) -> T:
        """Return a certainly complete value. A number or an inner value may be incomplete."""
        return self._output.parse(text, is_cut=True)

    def restore(self, saved: Any) -> T:
        """Validate a JSON value."""
        return self._output.read(saved)
