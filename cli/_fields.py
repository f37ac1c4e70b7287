"""What a user wants to run, named as `module:attribute` and filled from FIELD=VALUE."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from inspect import Parameter
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from ..commander import ConfigurationError, Node
from ..handlers import HandlerFunction
from ..messages.mask import mask
from ._named import import_named
from ._terminal import in_line

__all__ = ["Work", "find_work", "name_of_type"]

Work = Callable[[], Any]
"""Makes a node, or an awaitable; it is called inside the commander's block."""

MOST = 200  # characters of a value, or of what is wrong with it


def find_work(place: str, given: Sequence[str]) -> Work:
    """Find what `place` names, and fill it.

    It is a class of jobs, a `@handler` function, an agent, a function that gives one of them or is
    async, or a job that is already made. Raises `ConfigurationError`, which lists the fields.
    """
    found = import_named(place, place)
    if isinstance(found, Node):
        if given:
            raise ConfigurationError(f"{place} is a job that is already made: it takes no fields")
        job = cast("Node[Any]", found)
        return lambda: job
    made = _callable_of(found)
    if made is None:
        raise ConfigurationError(
            f"{place} is a {type(found).__name__}: name a class of jobs, a @handler function, or a"
            " function that makes a job"
        )
    fields = _Fields(place, made)
    args, kwargs = fields.read(given)
    return lambda: made(*args, **kwargs)


def _callable_of(found: Any) -> Any:
    """Return what makes the work; None for what cannot."""
    if not hasattr(found, "call"):
        return found if callable(found) else None
    from ..agents import Agent  # takes a while, and is loaded where there is an agent

    return found.call if isinstance(found, Agent) else found


class _Fields:
    """The parameters of something that is called, as a user of the command line sees them."""

    def __init__(self, place: str, called: Any) -> None:
        self._place = place
        try:
            signature = inspect.signature(called)
        except (TypeError, ValueError):
            raise ConfigurationError(f"{place} does not say what it takes") from None
        parameters = list(signature.parameters.values())
        if isinstance(called, HandlerFunction):
            parameters = parameters[1:]  # its own node
        # Fields of a class are resolved where they stand, parameters where the function does.
        own_init = isinstance(called, type) and not getattr(called, "__dataclass_fields__", {})
        function: Any = called.__init__ if own_init else inspect.unwrap(cast("Any", called))
        try:
            hints = get_type_hints(function, include_extras=True)
        except Exception:  # noqa: BLE001 - a user's annotations, which may name anything
            hints = dict[str, Any]()
        self._fields = {each.name: each for each in parameters if each.kind != each.VAR_KEYWORD}
        self._types = {name: hints.get(name, Any) for name in self._fields}

    def read(self, given: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments."""
        values: dict[str, Any] = {}
        for each in given:
            name, equals, text = each.partition("=")
            if not equals:
                raise self._wrong(f"{in_line(mask(each), MOST)!r} is not FIELD=VALUE")
            if name not in self._fields:
                close = get_close_matches(name, self._fields, n=1)
                hint = f": did you mean {close[0]}?" if close else ""
                raise self._wrong(f"there is no field {in_line(name, MOST)!r}{hint}")
            if name in values:
                raise self._wrong(f"the field {name} is given twice")
            values[name] = self._value(name, text)
        missing = [
            name
            for name, each in self._fields.items()
            if each.default is Parameter.empty
            and each.kind != each.VAR_POSITIONAL
            and name not in values
        ]
        if missing:
            raise self._wrong(f"missing: {', '.join(missing)}")
        args: list[Any] = []
        for name, each in self._fields.items():
            if each.kind in (each.POSITIONAL_ONLY, each.VAR_POSITIONAL) and name in values:
                args.append(values.pop(name))
        return args, values

    def _value(self, name: str, text: str) -> Any:
        """Read a value by its type: as a text if it may be one, else as JSON."""
        kind = self._types[name]
        try:
            adapter = TypeAdapter[Any](kind)
        except (PydanticSchemaGenerationError, PydanticUserError):
            raise self._wrong(
                f"the field {name} is a {name_of_type(kind)}, which nobody can write here: name a"
                " function that makes the job instead"
            ) from None
        try:
            return adapter.validate_strings(text)
        except ValidationError as as_text:
            try:
                return adapter.validate_json(text)
            except ValidationError:
                why = as_text.errors()[0]["msg"]
        shown = in_line(mask({name: text})[name], MOST)
        raise self._wrong(f"{name}={shown!r} is no {name_of_type(kind)}: {in_line(why, MOST)}")

    def _wrong(self, what: str) -> ConfigurationError:
        listed = ", ".join(map(self._describe, self._fields.values()))
        takes = f"takes {listed}" if listed else "takes no fields"
        return ConfigurationError(f"{what}; {self._place} {takes}")

    def _describe(self, field: Parameter) -> str:
        described = f"{field.name}: {name_of_type(self._types[field.name])}"
        if field.default is Parameter.empty or field.kind == field.VAR_POSITIONAL:
            return described
        try:
            default = in_line(mask({field.name: repr(field.default)})[field.name], 40)
        except Exception:  # noqa: BLE001 - a user's repr
            default = "..."
        return f"{described} = {default}"


def name_of_type(kind: Any) -> str:
    """Return a type as its user has written it."""
    if isinstance(kind, type) and not getattr(kind, "__args__", ()):
        return kind.__name__
    return in_line(str(kind).replace("typing.", ""), MOST)
