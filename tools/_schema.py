"""A function's signature and docstring become a JSON schema and a check of the arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, cast, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError

from ..commander.errors import ToolError

__all__ = ["Arguments", "InvalidArguments", "as_list", "as_mapping", "check_names", "fill_defaults"]


class InvalidArguments(ToolError):
    """The model called a tool with wrong arguments; the text names every fault."""


class _Untitled(GenerateJsonSchema):
    """Leaves out the titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _by_name(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return what a function takes, without the `self` or the bare `cls` of a method."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters:
        first = parameters[0]
        if first.name == "self" or (first.name == "cls" and first.annotation is first.empty):
            del parameters[0]
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise TypeError(
                f"tool {function.__qualname__}: a model passes arguments by name, "
                f"so {str(p)!r} cannot be positional only"
            )
    return parameters


def _is_required(p: inspect.Parameter) -> bool:
    return p.default.is_required() if isinstance(p.default, FieldInfo) else p.default is p.empty


def check_names(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Raise a `TypeError` unless a function can be called with the arguments of a schema."""
    parameters, names = _by_name(function), list(names)
    taken = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    needed = [p.name for p in parameters if p.name in taken and _is_required(p)]
    unknown = [name for name in names if name not in taken and len(taken) == len(parameters)]
    missing = [name for name in needed if name not in names]
    if unknown or missing:
        faults = [f"names {unknown}, which the function does not take"] if unknown else []
        faults += [f"lacks {missing}, which the function needs"] if missing else []
        raise TypeError(f"tool {function.__qualname__}: parameters {' and '.join(faults)}")


def fill_defaults(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return `kwargs` with a value for each missing parameter whose default is a `Field(...)`.

    Raises `TypeError` for one that is required.
    """
    signature = inspect.signature(function)
    filled = dict(kwargs)
    given = signature.bind_partial(*args, **kwargs).arguments
    for name, parameter in signature.parameters.items():
        if name not in given and isinstance(parameter.default, FieldInfo):
            if parameter.default.is_required():
                raise TypeError(f"{function.__qualname__}() needs the argument {name!r}")
            filled[name] = parameter.default.get_default(
                call_default_factory=True, validated_data=given
            )
    return filled


class Arguments:
    """What one function takes: `parameters` is the JSON schema, `check` reads a call's arguments.

    A `Field(...)`, as a default or in `Annotated`, means what it does to pydantic's
    `validate_call`. `descriptions` holds the docstring's words for parameters that have no
    description of their own; `names` are the parameters' names, which an alias does not change.
    """

    def __init__(self, function: Callable[..., Any], descriptions: Mapping[str, str]) -> None:
        parameters = _by_name(function)
        # Not get_type_hints(function): a return annotation that cannot be resolved is no obstacle.
        written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
        bare = SimpleNamespace(__annotations__=written)
        namespace = getattr(inspect.unwrap(function), "__globals__", {})
        try:
            hints = get_type_hints(bare, namespace, include_extras=True)
        except NameError as error:
            raise TypeError(
                f"tool {function.__qualname__}: {error}; types in a tool's signature must be "
                "importable from its module"
            ) from None
        named = [p for p in parameters if p.kind is not p.VAR_KEYWORD]
        self.names = [p.name for p in named]
        fields: dict[str, Any] = {}
        for n, p in enumerate(named):
            hint: Any = hints.get(p.name, Any)
            default = p.default
            if isinstance(default, FieldInfo):
                hint, default = Annotated[hint, default], p.empty
            known = FieldInfo.from_annotation(hint)
            more: dict[str, Any] = {}
            if known.description is None and descriptions.get(p.name):
                more["description"] = descriptions[p.name]
            if known.validation_alias is None:
                # Neutral field names with the real ones as aliases: a parameter may be called
                # `copy` or `schema` without touching a name of pydantic's own.
                more["alias"] = p.name
            hint = Annotated[hint, Field(**more)]
            fields[f"p{n}"] = hint if default is p.empty else (hint, default)
        config = ConfigDict(extra="forbid" if len(named) == len(parameters) else "allow")
        try:
            self._model = create_model(function.__name__, __config__=config, **fields)
            self.parameters = self._model.model_json_schema(schema_generator=_Untitled)
        except PydanticUserError as error:
            raise TypeError(
                f"tool {function.__qualname__}: {error.message}; a model sends JSON, so each"
                " parameter needs a type that has a JSON schema"
            ) from None
        except SchemaError as error:  # such as a pattern that is not a regular expression
            why = " ".join(str(error).split())
            raise TypeError(f"tool {function.__qualname__}: {why}") from None
        self.parameters.pop("title", None)
        self.parameters.setdefault("properties", {})

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments to call with; raise `InvalidArguments` if any is wrong."""
        try:
            model = self._model.model_validate(dict(arguments))
        except ValidationError as error:
            faults = [
                f"{'.'.join(map(str, fault['loc'])) or 'arguments'}: {fault['msg']}"
                + ("" if fault["type"] == "missing" else f" (got {fault['input']!r:.80})")
                for fault in error.errors(include_url=False, include_context=False)
            ]
            raise InvalidArguments("wrong arguments: " + "; ".join(faults)) from None
        known = {name: getattr(model, f"p{n}") for n, name in enumerate(self.names)}
        return {**(model.model_extra or {}), **known}


def as_list(value: object) -> list[Any]:
    """Return what a stranger's schema should have as a list; empty if it has something else."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return what a stranger's schema should have as an object; empty if it has something else."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
