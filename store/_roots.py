"""The roots of a run: its first job, and its rounds, which are put beside that job.

Each execution puts every root that has not ended. If the node that put a round runs again, it puts
the round again. Otherwise the run does, from the inputs, options and callbacks in the journal.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..commander import Callback, ConfigurationError, Node, Quorum, Restart, Retry
from ..commander.durable import put_options_of, scope_of
from ..commander.stored_names import find_stored, stored_name
from .errors import JournalMismatch

if TYPE_CHECKING:
    from ._durable import Durable
    from ._execution import Execution
    from ._scope import NodeScope

__all__ = ["Roots", "RoundPutter", "find_named", "put_again", "write_put"]


class RoundPutter(NamedTuple):
    """The path of the node that puts a round; `body` is False if one of its callbacks does."""

    path: list[list[str]]
    body: bool


class _Round(NamedTuple):
    """A round that is not recorded yet."""

    scope: NodeScope
    node: Node[Any]
    key: str | None
    by: RoundPutter


class Roots:
    """The roots that one execution puts."""

    def __init__(self, execution: Execution) -> None:
        self._execution = execution
        # The roots that have not ended, by identity; and the identities of all roots put so far.
        self.running: dict[bytes, Node[Any]] = {}
        self.put_idents: set[bytes] = set()
        self._new: dict[bytes, _Round] = {}

    def add(self, ident: bytes, node: Node[Any]) -> None:
        """Note that a root is put."""
        self.running[ident] = node
        if ident in self._execution.intents.node_idents:
            self._execution.intents.nodes_by_ident[ident] = node
        self.put_idents.add(ident)

    def add_round(
        self, scope: NodeScope, node: Node[Any], key: str | None, by: RoundPutter
    ) -> None:
        """Note that a round is put. It is recorded later: its putter may still set its options."""
        new = self._execution.find(scope.ident, "root") is None
        if new:
            self._execution.keys.refuse_inputs(cast("Durable[Any]", node)._node_write())
        self.add(scope.ident, node)
        if new:
            self._new[scope.ident] = _Round(scope, node, key, by)

    def record_new(self, only: bytes | None = None) -> None:
        """Record the rounds that were put, or `only` one, if it is not recorded yet."""
        if not self._new:
            return
        for ident in [only] if only in self._new else [*self._new] if only is None else []:
            new = self._new[ident]
            node = cast("Durable[Any]", new.node)
            written = {**node._node_write(), "key": new.key, "free": new.scope.base_ident.hex()}
            written["retried"] = new.scope.is_retried
            written |= {"path": new.by.path, "body": new.by.body}
            try:
                written["put"] = node._node_write_put()
            except (ConfigurationError, JournalMismatch) as error:
                # The putter does not fail, but the round does when it begins.
                new.scope.refusal = ConfigurationError(str(error))
                written["put"] = {"refused": str(error)}
            self._execution.record(ident, "root", written, find=True)
            del self._new[ident]

    def is_put_again(self, written: dict[str, Any]) -> bool:
        """Return whether the putter of a round puts it again in this execution.

        It does not if its body, or that of a node above, has ended, was cancelled or aborted, or
        runs in another attempt. A callback runs also if the body of its node does not run again.
        """
        return self._execution.runs_again(written["path"], 0 if written["body"] else 1)

    def end(self, scope: NodeScope) -> None:
        """Record that a root and its final callbacks are over: no later execution puts it."""
        execution = self._execution
        if (
            not execution.suspended
            and scope.has_recorded_end
            and not execution.is_over(scope.ident)
        ):
            self.record_new()
            execution.append(scope.ident, "over", find=True)

    def stop(self, reason: str) -> None:
        """Cancel the roots that are running."""
        for root in list(self.running.values()):
            root.cancel(reason)


def write_put(job: Durable[Any], again: Durable[Any]) -> dict[str, Any]:
    """Return the options and callbacks of `job` as JSON.

    `again` is a second instance with the same inputs. Its callbacks are those that the class adds
    itself, which are not stored. Raises `ConfigurationError` for limits, a place, and a callback
    that is not a function of a module.
    """
    put = put_options_of(job)
    scope = scope_of(job)
    # The run's own limits are not stored: each execution gets them from its caller.
    own = None if scope is None else scope.limits
    if put.limits not in (None, own) or (put.on is not None and job.on is None):
        raise _refused(
            job, "limits= and on= cannot be stored: set them in its class or its commander"
        )
    own = [moment for moment, _ in put_options_of(again).callbacks]
    added: list[list[str]] = []
    for moment, callback in put.callbacks:
        if moment in own:
            own.remove(moment)  # __post_init__ has added these before all others
        else:
            added.append([moment, _name(job, callback)])
    # Options of its class are not stored, so that an edit of the class applies.
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
    """Add the recorded callbacks to `job`, and return its recorded options."""
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
    """Return the stored name of a function or class; refuse one without such a name."""
    name = stored_name(thing)
    try:
        found = find_named(name)
    except JournalMismatch:
        found = None
    if found is not thing:
        raise _refused(
            job,
            f"{thing!r} is not a function or class of a module, so a later process could not find"
            " it: use one of a module, or add callbacks in __post_init__",
        )
    return name


def find_named(name: str) -> Any:
    """Return the class or function of a stored name; import its module if needed."""
    try:
        return find_stored(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise JournalMismatch(f"cannot import {name}, which its runs need: {error}") from error


def _refused(job: Durable[Any], why: str) -> ConfigurationError:
    return ConfigurationError(f"the round {job!r} of a durable run cannot be stored: {why}")
