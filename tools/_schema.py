"""A function's signature and docstring become a JSON schema and a check of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema

from ..commander.errors import ToolError

__all__ = ["Arguments", "InvalidArguments"]


class InvalidArguments(ToolError):
    """The model called a tool with wrong arguments; the text names every fault."""


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Arguments:
    """What one function takes: `parameters` is the JSON schema, `check` reads a call's arguments.

    A first parameter called `self` belongs to the method and is left out. `described` holds the
    docstring's words for parameters that have no description of their own.
    """

    def __init__(self, function: Callable[..., Any], described: Mapping[str, str]) -> None:
        parameters = _callable_by_name(function)
        hints = _hints(function, parameters)
        self._names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
        open_ended = len(self._names) < len(parameters)
        # Neutral field names with the real ones as aliases: a parameter may be called `copy` or
        # `schema` without touching a name of pydantic's own.
        fields = {
            f"p{n}": _field(p, hints.get(p.name, Any), described.get(p.name))
            for n, p in enumerate(parameters[: len(self._names)])
        }
        self._model = _model(function, fields, "allow" if open_ended else "forbid")
        self.parameters = self._model.model_json_schema(schema_generator=_Untitled)
        self.parameters.pop("title", None)
        self.parameters.setdefault("properties", {})

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments to call with; raise `InvalidArguments` if any is wrong."""
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            raise InvalidArguments(_readable(error)) from None
        known = {name: getattr(model, f"p{n}") for n, name in enumerate(self._names)}
        return {**(model.model_extra or {}), **known}


def _callable_by_name(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "self":
        del parameters[0]
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise TypeError(
                f"tool {function.__qualname__}: a model passes arguments by name, "
                f"so {str(p)!r} cannot be positional only"
            )
    return parameters


def _hints(function: Callable[..., Any], parameters: list[inspect.Parameter]) -> dict[str, Any]:
    # Not get_type_hints(function): a return annotation that cannot be resolved is no obstacle.
    written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    bare = SimpleNamespace(__annotations__=written)
    namespace = getattr(inspect.unwrap(function), "__globals__", {})
    try:
        return get_type_hints(bare, namespace, include_extras=True)
    except NameError as error:
        raise TypeError(
            f"tool {function.__qualname__}: {error}; types in a tool's signature must be "
            "importable from its module"
        ) from None


def _field(parameter: inspect.Parameter, hint: Any, described: str | None) -> Any:
    default = ... if parameter.default is parameter.empty else parameter.default
    said: dict[str, Any] = {}
    if described and FieldInfo.from_annotation(hint).description is None:
        said["description"] = described
    return hint, Field(default, alias=parameter.name, **said)


def _model(function: Callable[..., Any], fields: dict[str, Any], extra: Any) -> type[BaseModel]:
    config = ConfigDict(extra=extra, arbitrary_types_allowed=False)
    try:
        return create_model(function.__name__, __config__=config, **fields)
    except PydanticUserError as error:
        raise TypeError(f"tool {function.__qualname__}: {error.message}") from None


def _readable(error: ValidationError) -> str:
    faults = [
        f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}" + _given(fault)
        for fault in error.errors(include_url=False, include_context=False)
    ]
    return "wrong arguments: " + "; ".join(faults)


def _given(fault: Any) -> str:
    return "" if fault["type"] == "missing" else f" (got {fault['input']!r:.80})"
