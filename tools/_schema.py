"""The JSON schema of a function's signature and docstring, and the check of arguments by it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Annotated, Any, cast, get_type_hints

from pydantic import ConfigDict, Field, ValidationError, create_model
from pydantic.errors import PydanticUserError
from pydantic.fields import FieldInfo
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError

from ..commander.errors import ToolError

__all__ = [
    "Arguments",
    "InvalidArguments",
    "as_list",
    "as_mapping",
    "check_names",
    "fill_defaults",
    "parse_docstring",
]


class InvalidArguments(ToolError):
    """The model called a tool with wrong arguments; the text lists every fault."""


class _Untitled(GenerateJsonSchema):
    """Leaves out titles that only repeat a field's name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _named_parameters(
    function: Callable[..., Any], without: Container[str]
) -> list[inspect.Parameter]:
    """Return the parameters of a function, without the `self` or unannotated `cls` of a method.

    And without those in `without`, which the model does not give.
    """
    parameters = list(inspect.signature(function).parameters.values())
    if parameters:
        first = parameters[0]
        if first.name == "self" or (first.name == "cls" and first.annotation is first.empty):
            del parameters[0]
    parameters = [p for p in parameters if p.name not in without]
    for p in parameters:
        if p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL):
            raise TypeError(
                f"tool {function.__qualname__}: a model passes arguments by name, "
                f"so {str(p)!r} must not be positional only"
            )
    return parameters


def _is_required(p: inspect.Parameter) -> bool:
    return p.default.is_required() if isinstance(p.default, FieldInfo) else p.default is p.empty


def check_names(
    function: Callable[..., Any], names: Iterable[str], without: Container[str]
) -> None:
    """Raise `TypeError` unless a function accepts the arguments of a schema.

    The parameters in `without` get their values elsewhere.
    """
    parameters, names = _named_parameters(function, without), list(names)
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

    Raises `TypeError` for a missing one without a default.
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
    """The arguments of one function: `parameters` is their JSON schema.

    A `Field(...)`, as a default or in `Annotated`, has the meaning of pydantic's `validate_call`.
    `descriptions`, from the docstring, apply to parameters without another description.
    `names` are the names of the parameters, also where a field has an alias. The parameters in
    `without` get their values elsewhere.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        descriptions: Mapping[str, str],
        without: Container[str] = (),
    ) -> None:
        parameters = _named_parameters(function, without)
        # Not `get_type_hints(function)`: it fails if the return annotation cannot be resolved.
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
                # The fields have neutral names and the real ones as aliases: a parameter may be
                # called `copy` or `schema`, which are names of pydantic's models.
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
        except SchemaError as error:  # such as for an invalid regular expression as pattern
            why = " ".join(str(error).split())
            raise TypeError(f"tool {function.__qualname__}: {why}") from None
        self.parameters.pop("title", None)
        self.parameters.setdefault("properties", {})

    def check(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the keyword arguments for the call; raise `InvalidArguments` if any is wrong."""
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
    """Return a value from another author's schema if it is a list, else an empty list."""
    return cast("list[Any]", value) if isinstance(value, list) else []


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return a value from another author's schema if it is an object, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


SECTION_NAMES = (
    "args|arguments|parameters|params|returns|return|yields|raises|examples?|notes?|see also"
)
PARAMETER_SECTIONS = {"args", "arguments", "parameters", "params"}

GOOGLE_SECTION = re.compile(rf"({SECTION_NAMES}):\s*", re.IGNORECASE)
NUMPY_SECTION = re.compile(rf"({SECTION_NAMES})", re.IGNORECASE)
REST_FIELD = re.compile(r":(\w+)((?:\s+[^\s:]+)*?)(?:\s+\*{0,2}(\w+))?:\s*(.*)")
GOOGLE_ENTRY = re.compile(r"\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
REST_PARAMETER_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the description and the parameters' descriptions by name.

    Reads the styles of Google (`Args:`), numpy (`Parameters` underlined) and reST (`:param x:`), as
    their guides show them. The description ends at the first section or field.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    start = 0
    while start < len(lines) and not (_section(lines, start) or REST_FIELD.fullmatch(lines[start])):
        start += 1
    found: dict[str, list[str]] = {}
    inside = False  # in a section of parameters, or in the field of one
    names: list[str] = []
    entry = GOOGLE_ENTRY
    depth: int | None = None
    for n, line in enumerate(lines[start:], start):
        piece = line
        if section := _section(lines, n):
            inside, names, depth = section in PARAMETER_SECTIONS, [], None
            entry = GOOGLE_ENTRY if line.rstrip().endswith(":") else NUMPY_ENTRY
        elif match := REST_FIELD.fullmatch(line):
            inside = match[1] in REST_PARAMETER_FIELDS and match[3] is not None
            names, depth = [match[3]] if inside else [], 0
            piece = match[4]
        elif inside and line.strip():
            indent = len(line) - len(line.lstrip())
            depth = indent if depth is None else depth
            if indent <= depth and (match := entry.fullmatch(line)):
                names = re.split(r"\s*,\s*", match[1])
                piece = match[2] if entry is GOOGLE_ENTRY else ""
        else:
            continue
        for name in names:
            found.setdefault(name, []).append(piece.strip())
    description = "\n".join(lines[:start]).strip()
    return description, {name: " ".join(filter(None, pieces)) for name, pieces in found.items()}


def _section(lines: list[str], n: int) -> str | None:
    """Return the name of the section that line `n` opens, in lower case."""
    if match := GOOGLE_SECTION.fullmatch(lines[n]):
        return match[1].lower()
    underlined = n + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[n + 1])
    match = NUMPY_SECTION.fullmatch(lines[n].rstrip()) if underlined else None
    return match[1].lower() if match else None
