"""`State`: what the agents of an orchestrator know of each other, typed, each in its namespace."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Iterable
from copy import deepcopy
from itertools import chain, repeat
from typing import Any, Self, TypeAlias, TypeVar, cast

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
from ..layers._memory import fit_json, fit_keys

__all__ = ["Mistake", "Namespace", "State", "restore", "snapshot"]

S = TypeVar("S", bound="State")


class Namespace(BaseModel):
    """Typed fields of one agent: a name or a value that does not fit is a `ValidationError`."""

    model_config = ConfigDict(extra="forbid", validate_assignment=True)

    @model_serializer(mode="wrap")
    def _serialize(
        self, handler: SerializerFunctionWrapHandler, info: SerializationInfo
    ) -> dict[str, Any]:
        return fit_json(handler(fit_keys(self))) if info.mode == "json" else handler(self)


class Mistake(Namespace):
    """What is wrong with the last answer: `log` is for the log, `improve` for its agent."""

    log: str
    improve: str


class State(Namespace):
    """What an orchestrator keeps between answers; a subclass has a field for each agent.

        class Flip(Namespace):
            side: str = ""

        class CoinState(State):
            coin: Flip = Flip()

        state = CoinState(max_errors=3, max_steps=10)
        state.coin.side = "heads"

    All of it is JSON: `state.model_dump_json()` keeps a run, `CoinState.model_validate_json(...)`
    goes on with it.

    Limits: after `max_errors` answers in a row that were signalled as errors the next one ends the
    run; `max_steps` is the number of environment steps, None for any; `max_transitions` is the
    number of usable answers between two of them, so agents who only talk to each other come to an
    end.

    The rest is the orchestrator's to write and everybody's to read: `agent`, who answered last
    (None at the beginning); `response`, what it answered; `obs` and `reward`, what the environment
    gave; `scene`, what it showed before anybody answered; `steps`, how many environment steps were
    taken; `transitions`, how many usable answers came since the last of them; `errors`, how many
    in a row; `notes`, what modules found, by their names; `kept`, what they keep, by the number of
    steps, and calls of tools that have run for an answer which then failed; `histories`, what each
    agent's model has read and said.
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
        """Return the state that `model_dump_json` has saved, and the paths of what was dropped.

            state, dropped = CoinState.load(text, strict=False)  # dropped == ["coin.edge"]

        With `strict` nothing is dropped: what does not fit, as a field that the class does not have
        any more, is a `ValidationError`. Without it that is left out and has its default, and so
        is what lacks a field that it needs. It is still an error for what is no JSON or no state.
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
            for path in reversed(unfit):  # so that those before one in a list keep their places
                _drop(data, path)
            dropped += [".".join(map(str, path)) for path in unfit]
            saved = to_json(data, inf_nan_mode="constants")

    def step_environment(self) -> None:
        """Let the answer of the agent that is named now, or is answering, go to the environment."""
        self.env_step = True

    def signal_error(self, log: str, improve: str) -> None:
        """Say that the last answer cannot be used: its agent is asked again, and told `improve`.

        For `process_response` and transitions; what these return is then not used. `log` is for
        the log `anabranch.agents`.
        """
        self.mistake = Mistake(log=log, improve=improve)


_Path: TypeAlias = tuple[str | int, ...]


def _path_in(data: Any, loc: _Path) -> _Path:
    """Return the keys that lead to what is wrong in a value of JSON, or to what lacks a field."""
    path: list[str | int] = []
    for step in loc:
        if isinstance(data, dict):
            there = step in data
        else:
            there = isinstance(data, list) and step in range(len(cast("list[Any]", data)))
        if not there:
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
    """Return a copy of all that `restore` puts back; the messages themselves are shared."""
    histories = {name: [*history] for name, history in state.histories.items()}
    rest = state.model_copy(update={"histories": {}, "notes": {}, "kept": {}})
    # All that is made here stays: to look for garbage among it takes longer than to make it.
    collects = gc.isenabled()
    gc.disable()
    try:
        return _copy(rest, {}).model_copy(update={"histories": histories})
    finally:
        if collects:
            gc.enable()


# Of exactly these types, which cannot be changed.
_PLAIN = frozenset((str, int, float, bool, type(None), bytes, complex))

# What a model holds, beside the names of the fields that were set.
_PARTS = ("__dict__", "__pydantic_extra__", "__pydantic_private__")

# Sets each of these, and the names, of a model past its own `__setattr__`.
_SETTERS: dict[str, Any] = {
    name: vars(BaseModel)[name].__set__ for name in (*_PARTS, "__pydantic_fields_set__")
}


def _copy(value: Any, memo: dict[int, Any]) -> Any:
    """Return what `deepcopy` does, many times faster for the values of JSON and for models.

    A state is copied for each answer, whatever its length is. `memo` has the copies by the ids of
    their originals, as that of `deepcopy`, so that what is one object stays one.
    """
    kind = cast("Any", type(value))
    if kind in _PLAIN:
        return value
    made: Any = memo.get(id(value))
    if made is not None:
        return made
    if kind is list:
        made = memo[id(value)] = value.copy()
        made[:] = _copy_all(made, memo)
    elif kind is dict and _PLAIN.issuperset(map(type, value)):
        made = memo[id(value)] = value.copy()
        made.update(zip(made, _copy_all([*made.values()], memo), strict=True))
    elif _is_model(kind):
        made = memo[id(value)] = cast("Any", kind).__new__(kind)
        parts = {name: _copy(getattr(value, name), memo) for name in _PARTS}
        fields_set = {*value.__pydantic_fields_set__}
        BaseModel.__setstate__(made, {**parts, "__pydantic_fields_set__": fields_set})
    else:
        made = deepcopy(value, memo)
    return made


def _is_model(kind: type) -> bool:
    of_pydantic = BaseModel.__deepcopy__
    return issubclass(kind, BaseModel) and cast("Any", kind).__deepcopy__ is of_pydantic


def _copy_all(values: list[Any], memo: dict[int, Any]) -> list[Any]:
    """Return copies of values, faster for many of one kind than one after the other."""
    kinds = {*map(type, values)}
    if kinds <= _PLAIN:
        return values
    # Each of them is copied once, and nothing led to it before.
    if len(kinds) == 1 and len(ids := {*map(id, values)}) == len(values) and ids.isdisjoint(memo):
        (kind,) = kinds
        if kind is dict and _PLAIN.issuperset(map(type, chain.from_iterable(values))):
            return _copy_rows(values, memo)
        model = cast("Any", kind)
        if _is_model(kind) and not (
            model.__private_attributes__ or model.model_config.get("extra") == "allow"
        ):
            return _copy_models(kind, values, memo)
    return [_copy(each, memo) for each in values]


def _copy_rows(rows: list[dict[Any, Any]], memo: dict[int, Any]) -> list[Any]:
    """Return copies of distinct mappings with plain keys."""
    copies = [row.copy() for row in rows]
    memo.update(zip(map(id, rows), copies, strict=True))
    _copy_values(copies, memo)
    return copies


def _copy_values(rows: list[dict[Any, Any]], memo: dict[int, Any]) -> None:
    """Replace what is not plain in mappings by copies."""
    if _PLAIN.issuperset(map(type, chain.from_iterable([row.values() for row in rows]))):
        return
    for row in rows:
        for name, each in row.items():
            if type(each) not in _PLAIN:
                row[name] = _copy(each, memo)


def _copy_models(kind: Any, models: list[Any], memo: dict[int, Any]) -> list[Any]:
    """Return copies of distinct models of one class, without private or additional fields."""
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
        # Without a step of the interpreter for each model, which takes most of the time.
        deque[None](map(_SETTERS[name], copies, values), maxlen=0)
    return copies


def restore(state: S, earlier: S) -> None:
    """Let `state` be as it was at a snapshot, but for what modules have noted and kept since.

    They note by the number of steps, so that what they do again does no harm. Calls of tools that
    have run are kept as well.
    """
    noted = {"notes": state.notes, "kept": state.kept}
    state.__setstate__(earlier.model_copy(update=noted).__getstate__())
