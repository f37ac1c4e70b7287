"""Parsers: what an agent's model has said becomes what it means."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from contextlib import suppress
from itertools import islice
from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

__all__ = ["JsonParser", "Parser", "StringParser"]

T = TypeVar("T")

MOST_STARTS = 20  # that are tried in a text that is no JSON


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

    The JSON may stand in a fence or among other text. A reply that does not fit is answered with
    what is wrong with it, up to `retries` times. With `constrain` the server is asked to allow
    nothing else (`response_format`), which not every server can.

    `template` is the instruction, with `{schema}` where the JSON schema goes.
    """

    def __init__(
        self,
        model: type[T],
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
        schema = {"name": self._schema.get("title", "answer"), "schema": self._schema}
        return {"response_format": {"type": "json_schema", "json_schema": schema}}

    def parse(self, text: str) -> T:
        """Find the JSON, all of the text or the first object or list in it, and validate it."""
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as fault:
            decoder = json.JSONDecoder()
            for start in islice(re.finditer(r"[\[{]", text), MOST_STARTS):
                with suppress(ValueError, RecursionError):
                    value = decoder.raw_decode(text, start.start())[0]
                    break
            else:
                raise ValueError(f"the reply is not JSON: {fault}") from None
        return self.restore(value)

    def restore(self, saved: Any) -> T:
        """Validate a JSON value."""
        try:
            return self._type.validate_json(json.dumps(saved))
        except ValidationError as error:
            faults = "; ".join(
                f"{'.'.join(map(str, fault['loc'])) or 'the value'}: {fault['msg']}"
                for fault in error.errors()
            )
            raise ValueError(faults) from error
