"""How a round was put, as JSON: its options, and the callbacks that its maker added."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from ..commander import Callback, ConfigurationError, Node, Quorum, Restart, Retry
from ..commander.scope import put_of, scope_of
from ..commander.stored_names import find_stored, stored_name
from .errors import JournalMismatch

if TYPE_CHECKING:
    from ._durable import Durable

__all__ = ["find_named", "put_again", "write_put"]


def write_put(job: Durable[Any], again: Durable[Any]) -> dict[str, Any]:
    """Return how `job` was put; `again` is made of the same inputs, and has its class's callbacks.

    Raises `ConfigurationError` for what could not be found again: a callback that is no function
    of a module, limits, or a place that is no name.
    """
    put = put_of(job)
    scope = scope_of(job)
    own = None if scope is None else scope.limits  # of the run: it is given in each life
    if put.limits not in (None, own) or (put.on is not None and job.on is None):
        raise _refused(job, "limits= and on= are not kept: set them in its class or its commander")
    own = [moment for moment, _ in put_of(again).callbacks]
    added: list[list[str]] = []
    for moment, callback in put.callbacks:
        if moment in own:
            own.remove(moment)  # what __post_init__ adds comes first
        else:
            added.append([moment, _name(job, callback)])
    # What its class says is not written: the class says it again, by then.
    timeout = None if put.timeout == job._node_timeout else put.timeout
    options: dict[str, Any] = {"timeout": timeout, "priority": put.priority}
    options["policy"] = {"n": put.policy.n} if isinstance(put.policy, Quorum) else put.policy
    if put.retry is not None and put.retry is not job._node_retry:
        written = {
            each.name: getattr(put.retry, each.name) for each in dataclasses.fields(put.retry)
        }
        if isinstance(put.retry, Retry):
            on: Any = put.retry.on
            every = cast("tuple[Any, ...]", on if isinstance(on, tuple) else (on,))
            written["on"] = [_name(job, each) for each in every]
        options["retry"] = written
    return {"options": options, "callbacks": added}


def put_again(job: Node[Any], put: dict[str, Any]) -> dict[str, Any]:
    """Give `job` its callbacks, and return the options of its put."""
    for moment, name in put["callbacks"]:
        getattr(job, f"at_{moment}")(find_named(name))
    options = dict(put["options"])
    if isinstance(options["policy"], dict):
        options["policy"] = Quorum(put["options"]["policy"]["n"])
    retry: dict[str, Any] | None = options.get("retry")
    if retry is not None:
        if "on" in retry:
            on = tuple(find_named(name) for name in retry["on"])
            retry["on"] = on if isinstance(on[0], type) else on[0]
        options["retry"] = (Retry if "on" in retry else Restart)(**retry)
    return options


def _name(job: Durable[Any], thing: Callback | Any) -> str:
    """Return the name by which a function or a class is found again."""
    name = stored_name(thing)
    try:
        found = find_named(name)
    except JournalMismatch:
        found = None
    if found is not thing:
        raise _refused(
            job,
            f"{thing!r} is no function or class of a module, and would be lost with the process:"
            " add callbacks in __post_init__, or give functions of a module",
        )
    return name


def find_named(name: str) -> Any:
    """Return the class or function `module:name`, also one of a module that is not loaded yet."""
    try:
        return find_stored(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise JournalMismatch(f"{name} is gone: {error}") from error


def _refused(job: Durable[Any], why: str) -> ConfigurationError:
    return ConfigurationError(f"{job!r} is a round of a durable run, and cannot be kept: {why}")
