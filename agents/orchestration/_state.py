"""`State`: the shared state of an orchestrator's agents, with a typed namespace for each."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from itertools import chain, repeat
from typing import Any, ClassVar, Self, TypeAlias, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)
from pydantic_core import from_json, to_json

from ...messages import Message
from ..layers._state import fit_json, fit_keys

__all__ = ["Mistake", "Namespace", "State", "restore", "snapshot"]

S = TypeVar("S", bound="State")


class Namespace(BaseModel):
    """Typed fields of one agent. An unknown name or an invalid value is a `ValidationError`."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", validate_assignment=True)

    @model_serializer(mode="wrap")
    def _serialize(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        return fit_json(handler(fit_keys(self))) if info.mode == "json" else handler(self)


class Mistake(Namespace):
    """An unusable answer: `log` is for the log, `improve` for the agent."""

    log: str
    improve: str


class State(Namespace):
    """The state of an orchestrator between answers. A subclass has a field for each agent.

        class Flip(Namespace):
            side: str = ""

        class CoinState(State):
            coin: Flip = Flip()

        state = CoinState(max_errors=3, max_steps=10)
        state.coin.side = "heads"

    All of it is JSON: `state.model_dump_json()` saves a run, `CoinState.model_validate_json(...)`
    restores it.

    Limits: `max_errors` is the number of unusable answers in a row; the next one ends the run.
    `max_steps` is the number of environment steps, None for any. `max_transitions` is the number of
    usable answers between two environment steps, so that agents cannot talk to each other without
    end.

    The orchestrator writes the other fields, and everyone may read them:

    - `agent`: the agent that answered last, None at the beginning; `response`: its answer
    - `obs`, `reward`: the observation; `scene`: the observation before the first answer
    - `steps`: the environment steps so far; `transitions`: the usable answers since the last of
      them; `errors`: the unusable answers in a row
    - `notes`: the results of modules, by their names
    - `kept`: data of modules, and tool calls of failed answers, by the number of `steps`
    - `histories`: the history of each agent's model
    """

    max_errors: int = Field(default=3, ge=0)
    max_steps: int | None = Field(default=None, ge=1)
    max_transitions: int = Field(default=50, ge=1)
    agent: str | None = None
    response: str | None = None
    obs: str | None = None
    scene: str | None = None
    reward: float | None = None
    steps: int = 0
    transitions: int = 0
    errors: int = 0
    env_step: bool = False
    mistake: Mistake | None = None
    notes: dict[str, str] = Field(default_factory=dict[str, str])
    kept: dict[str, dict[int, str]] = Field(default_factory=dict[str, dict[int, str]])
    histories: dict[str, list[Message]] = Field(default_factory=dict[str, list[Message]])

    @classmethod
    def load(cls, saved: str | bytes, *, strict: bool = True) -> tuple[Self, list[str]]:
        """Return the state from `model_dump_json`, and the paths of dropped values.

            state, dropped = CoinState.load(text, strict=False)  # dropped == ["coin.edge"]

        With `strict` nothing is dropped: a value that does not fit, such as a field that the class
        no longer has, is a `ValidationError`. Otherwise such a value gets its default, and so does
        a value that lacks a required field. Text that is not JSON, or not a state, is always an
        error.
        """
        dropped: list[str] = []
        data: Any = None
        while True:
            try:
                return cls.model_validate_json(saved), dropped
            except ValidationError as error:
                faults = error.errors(include_url=False)
                if strict or any(fault["type"] == "json_invalid" for fault in faults):
                    raise
                data = from_json(saved)
                paths = {_path_in(data, fault["loc"]) for fault in faults}
                if () in paths:
                    raise
            unfit = [path for path in paths if not any(path[:n] in paths for n in range(len(path)))]
            unfit.sort(key=_order)
            for path in reversed(
                unfit
            ):  # from the end, so that earlier places of a list stay valid
                _drop(data, path)
            dropped += [".".join(map(str, path)) for path in unfit]
            saved = to_json(data, inf_nan_mode="constants")

    def step_environment(self) -> None:
        """Send the answer of the current agent to the environment."""
        self.env_step = True

    def signal_error(self, log: str, improve: str) -> None:
        """Report that the last answer cannot be used. Its agent reads `improve` and answers again.

        For `process_response` and transitions; their results are then ignored. `log` is for the log
        `anabranch.agents`.
        """
        self.mistake = Mistake(log=log, improve=improve)


_Path: TypeAlias = tuple[str | int, ...]


def _path_in(data: Any, loc: _Path) -> _Path:
    """Return the keys that lead to an invalid value in JSON, or to a missing field's parent."""
    path: list[str | int] = []
    for step in loc:
        if isinstance(data, dict):
            exists = step in data
        else:
            exists = isinstance(data, list) and step in range(len(cast("list[Any]", data)))
        if not exists:
            break
        path.append(step)
        data = cast("Any", data)[step]
    return tuple(path)


def _order(path: _Path) -> list[tuple[int, str]]:
    return [(step, "") if isinstance(step, int) else (-1, step) for step in path]


def _drop(data: Any, path: _Path) -> None:
    for step in path[:-1]:
        data = data[step]
    del data[path[-1]]


def snapshot(state: S) -> S:
    """Return a copy of everything that `restore` restores; the messages themselves are shared."""
    histories = {name: [*history] for name, history in state.histories.items()}
    rest = state.model_copy(update={"histories": {}, "notes": {}, "kept": {}})
    # A garbage collection during the copy would free none of the new objects, and would take longer
    # than the copy.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _copy(rest, {}).model_copy(update={"histories": histories})
    finally:
        if collects:
            gc.enable()


# Exactly these types, whose values cannot change, so that a copy may share them.
_IMMUTABLE_TYPES = frozenset((str, int, float, bool, type(None), bytes, complex))

# The attributes that hold a model's values. `__pydantic_fields_set__` holds only field names.
_MODEL_ATTRIBUTES = ("__dict__", "__pydantic_extra__", "__pydantic_private__")

# Functions that set these attributes directly, without the `__setattr__` of a model.
_SETTERS: dict[str, Any] = {
    name: vars(BaseModel)[name].__set__ for name in (*_MODEL_ATTRIBUTES, "__pydantic_fields_set__")
}


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return a copy as `deepcopy` does, many times faster for JSON values and models.

    A state is copied for each answer, and may be long. `memo` has the copies by the ids of the
    originals, as for `deepcopy`, so that one object gets one copy.
    """
    kind = cast("Any", type(value))
    if kind in _IMMUTABLE_TYPES:
        return value
    result: Any = memo.get(id(value))
    if result is not None:
        return result
    if kind is list:
        result = memo[id(value)] = value.copy()
        result[:] = _copy_all(result, memo)
    elif kind is dict and _IMMUTABLE_TYPES.issuperset(map(type, value)):
        result = memo[id(value)] = value.copy()
        result.update(zip(result, _copy_all([*result.values()], memo), strict=True))
    elif _is_model(kind):
        result = memo[id(value)] = cast("Any", kind).__new__(kind)
        parts = {name: _copy(getattr(value, name), memo) for name in _MODEL_ATTRIBUTES}
        fields_set = {*value.__pydantic_fields_set__}
        BaseModel.__setstate__(result, {**parts, "__pydantic_fields_set__": fields_set})
    else:
        result = deepcopy(value, memo)
    return result


def _is_model(kind: type) -> bool:
    of_pydantic = BaseModel.__deepcopy__
    return issubclass(kind, BaseModel) and cast("Any", kind).__deepcopy__ is of_pydantic


def _copy_all(values: list[Any], memo: dict[int, Any]) -> list[Any]:
    """Return copies of values. Many values of one type are copied together, which is faster."""
    kinds = {*map(type, values)}
    if kinds <= _IMMUTABLE_TYPES:
        return values
    # The fast ways copy each value without a look at `memo`. So the values must be distinct, and
    # none of them copied before.
    if len(kinds) == 1 and len(ids := {*map(id, values)}) == len(values) and ids.isdisjoint(memo):
        (kind,) = kinds
        if kind is dict and _IMMUTABLE_TYPES.issuperset(map(type, chain.from_iterable(values))):
            return _copy_rows(values, memo)
        model = cast("Any", kind)
        if _is_model(kind) and not (
            model.__private_attributes__ or model.model_config.get("extra") == "allow"
        ):
            return _copy_models(kind, values, memo)
    return [_copy(each, memo) for each in values]


def _copy_rows(rows: list[dict[Any, Any]], memo: dict[int, Any]) -> list[Any]:
    """Return copies of distinct mappings whose keys are immutable."""
    copies = [row.copy() for row in rows]
    memo.update(zip(map(id, rows), copies, strict=True))
    _copy_values(copies, memo)
    return copies


def _copy_values(rows: list[dict[Any, Any]], memo: dict[int, Any]) -> None:
    """Replace each mutable value in the mappings by a copy."""
    if _IMMUTABLE_TYPES.issuperset(map(type, chain.from_iterable([row.values() for row in rows]))):
        return
    for row in rows:
        for name, each in row.items():
            if type(each) not in _IMMUTABLE_TYPES:
                row[name] = _copy(each, memo)


def _copy_models(kind: Any, models: list[Any], memo: dict[int, Any]) -> list[Any]:
    """Return copies of distinct models of one class, without private or extra fields."""
    copies: list[Any] = [*map(kind.__new__, repeat(kind, len(models)))]
    memo.update(zip(map(id, models), copies, strict=True))
    fields: list[dict[str, Any]] = [each.__dict__.copy() for each in models]
    _copy_values(fields, memo)
    parts: dict[str, Iterable[Any]] = {
        "__dict__": fields,
        "__pydantic_fields_set__": [each.__pydantic_fields_set__.copy() for each in models],
        "__pydantic_extra__": repeat(None),
        "__pydantic_private__": repeat(None),
    }
    for name, values in parts.items():
        # `map` into a deque of length 0 runs in C. A Python loop would take most of the time.
        deque[None](map(_SETTERS[name], copies, values), maxlen=0)
    return copies


def restore(state: S, earlier: S) -> None:
    """Restore a snapshot in `state`, except for the notes and data of modules.

    Modules store data by the number of environment steps, so a repeated answer replaces its data.
    Tool calls that have run stay recorded, because their effects are not undone.
    """
    noted = {"notes": state.notes, "kept": state.kept}
    state.__setstate__(earlier.model_copy(update=noted).__getstate__())
