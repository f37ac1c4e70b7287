"""Remove the keys of a run's backends from all that is written about the run."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, cast

from ._codec import Codec
from .errors import NotStorable

__all__ = ["Keys"]


class Keys:
    """Removes the keys of all objects that it knows from text and JSON.

    An object with a key has a method `redact(text)`, as every backend does.
    """

    def __init__(self, *owners: object) -> None:
        self._redactors: dict[Callable[[str], str], None] = {}
        self.learn(*owners)

    def __bool__(self) -> bool:
        return bool(self._redactors)

    def learn(self, *owners: object) -> None:
        """Add the objects that have a method `redact`; ignore others."""
        for each in owners:
            redact: Any = getattr(each, "redact", None) if hasattr(type(each), "redact") else None
            if redact is not None and redact not in self._redactors and _cuts_text(redact):
                self.add(redact)

    def add(self, redact: Callable[[str], str]) -> None:
        """Add a function that removes a key from a text."""
        self._redactors[redact] = None

    def cut_text(self, text: str) -> str:
        """Return a text without keys."""
        for redact in [*self._redactors]:  # a thread may add one
            text = redact(text)
        return text

    def cut(self, value: Any) -> Any:
        """Return plain JSON data without keys; the same object if it has none."""
        match value:
            case str():
                return self.cut_text(value)
            case list():
                return [self.cut(each) for each in cast("list[Any]", value)]
            case {"$bytes": str(written)}:
                text = self.cut_text(b64decode(written).decode("latin-1"))
                return {"$bytes": b64encode(text.encode("latin-1")).decode()}
            case dict():
                fields = cast("dict[str, Any]", value)
                return {self.cut_text(name): self.cut(each) for name, each in fields.items()}
            case _:
                return value

    def cut_json(self, data: bytes) -> bytes:
        """Return JSON without keys; the same bytes if it has none."""
        if not self._redactors or not data:
            return data
        text = data.decode()
        # A fast check, as most rows have no key. A key may contain line breaks, which JSON escapes.
        flat = text.replace("\\n", " ").replace("\\r", " ").replace("\\t", " ")
        if self.cut_text(flat) == flat:
            return data
        value = json.loads(text)
        cut = self.cut(value)
        return data if cut == value else json.dumps(cut).encode()

    def write(self, codec: Codec, value: Any) -> bytes:
        """Return a value as JSON without keys; raise `NotStorable` if it needs them."""
        data = codec.encode(value)
        if (cut := self.cut_json(data)) != data:
            try:
                codec.decode(cut)
            except Exception as error:
                why = "it contains the key of a backend, and is not valid without it"
                raise NotStorable(f"a result cannot be stored: {why}") from error
        return cut

    def refuse_inputs(self, written: Mapping[str, Any]) -> None:
        """Raise `NotStorable` for a job with a key in its inputs, which identify its run."""
        for name, value in written["inputs"].items():
            if self.cut(value) != value:
                raise NotStorable(
                    f"the field {written['class']}.{name} contains the key of a backend, which no"
                    " journal stores: annotate it Live[...], and pass it in live= to resume the run"
                )


def _cuts_text(redact: Callable[[str], object]) -> bool:
    """Return whether `redact` maps text to text; a user's class may use the name otherwise."""
    try:
        return redact("") == ""
    except Exception:  # noqa: BLE001 - code of a user's class
        return False
