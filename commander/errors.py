"""Every error that Anabranch raises, in one tree.

    AnabranchError
    ├── NodeClosed            a child was added to a node that is done
    ├── NodeCancelled         the awaited node was cancelled
    ├── QuorumNotMet          fewer children completed than were asked for
    ├── WorkerLost            the process or machine that ran a node went away
    ├── MissingExtra          an optional package is not installed (also an ImportError)
    ├── ConfigurationError    a key, a model name or a setting is missing or unusable
    ├── NotDurable            something durable outside a durable run (also a RuntimeError)
    ├── ToolError             a tool could not give a result; its text goes to the model
    └── BackendError          a model did not answer as asked
        ├── AuthenticationError   401, 403
        ├── ModelNotFound         404
        ├── RateLimited           429
        ├── ContextTooLong        the prompt does not fit the model
        ├── BackendUnavailable    5xx, no connection, no answer in time
        ├── BadResponse           what came is not the protocol
        ├── BudgetExceeded        the limits' budget is spent
        └── StreamInterrupted     the reply broke off after it had begun

Misuse that only a change of the program can mend (a node started twice, a node that awaits
itself) is a `RuntimeError` or `TypeError`, as in asyncio. A timeout is the builtin `TimeoutError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from ._report import group, type_name

__all__ = [
    "AnabranchError",
    "AuthenticationError",
    "BackendError",
    "BackendUnavailable",
    "BadResponse",
    "BudgetExceeded",
    "ConfigurationError",
    "ContextTooLong",
    "MissingExtra",
    "ModelNotFound",
    "NodeCancelled",
    "NodeClosed",
    "NotDurable",
    "QuorumNotMet",
    "RateLimited",
    "StreamInterrupted",
    "ToolError",
    "WorkerLost",
]

E = TypeVar("E", bound=BaseException)


class AnabranchError(Exception):
    """The base of every error of this package. All can be pickled, with attributes and notes."""

    reported = False
    """Whether the outcome of a durable run raises this error: then no node's failure logs it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own would call the class with its message, which is not what it takes.
        return remake, (type(self), self.args, self.__dict__)


def remake(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    """Make an exception without its class's `__init__`, which may take other arguments."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


class NodeClosed(AnabranchError):
    """A child was added to a node that takes no more children.

    Attributes: `path`, the path of the node that was to be the parent.
    """

    def __init__(self, path: str, why: str = "is done") -> None:
        super().__init__(f"{path} {why} and takes no more children")
        self.path = path


class NodeCancelled(AnabranchError):
    """The awaited node was cancelled.

    It is an ordinary `Exception`, so that it is never mistaken for the cancellation of the node
    that awaits. Attributes: `path` of the cancelled node and the `reason` given, perhaps empty.
    """

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(f"{path} was cancelled" + (f": {reason}" if reason else ""))
        self.path = path
        self.reason = reason


class QuorumNotMet(AnabranchError):
    """Fewer have completed than a node's `quorum(n)`, or `settle(..., at_least=n)`, asked for.

    Attributes: `needed`, `completed`, and `failures`, the exceptions of those that failed; if
    there are any, the `__cause__` is an `ExceptionGroup` of them. `outcomes` are the results and
    failures in their order, if `settle` raised it.
    """

    def __init__(
        self,
        needed: int,
        completed: int,
        failures: Sequence[BaseException],
        outcomes: Sequence[Any] = (),
    ) -> None:
        kinds = ", ".join(dict.fromkeys(type_name(each) for each in failures))
        why = f"; {len(failures)} failed: {kinds}" if failures else ""
        super().__init__(f"{completed} of the {needed} children needed have completed{why}")
        self.outcomes = tuple(outcomes)
        self.needed = needed
        self.completed = completed
        self.failures = tuple(failures)
        if failures:
            self.__cause__ = group("children that failed", failures)


class WorkerLost(AnabranchError):
    """The process or machine that ran a node went away before the node's end.

    Attribute: `path` of the node.
    """

    def __init__(self, path: str, what: str) -> None:
        super().__init__(f"{path}: {what}")
        self.path = path


class MissingExtra(AnabranchError, ImportError):
    """An optional package is not installed. Attribute: `extra`, the name of what to install."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what} needs an extra: pip install 'anabranch[{extra}]'")
        self.extra = extra


class ConfigurationError(AnabranchError):
    """A key, a model name or a setting is missing or unusable; the message says what to do."""


class NotDurable(AnabranchError, RuntimeError):
    """A durable job, or a call of `self.durable`, outside a durable run; the message says why."""


class ToolError(AnabranchError):
    """A tool cannot give a result. Its text is what the model is told."""


class BackendError(AnabranchError):
    """A model did not answer as asked.

    Attributes: `status`, the HTTP status if there was one. The message never holds a key.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AuthenticationError(BackendError):
    """The key is missing, wrong, or has no right to what was asked (401, 403)."""


class ModelNotFound(BackendError):
    """The server knows no such model or no such address (404)."""


class RateLimited(BackendError):
    """Too many requests or tokens (429). `retry_after` is in seconds, None if not said."""

    def __init__(
        self, message: str, *, status: int | None = 429, retry_after: float | None = None
    ) -> None:
        super().__init__(message, status=status)
        self.retry_after = retry_after


class ContextTooLong(BackendError):
    """The conversation does not fit the model's context."""


class BackendUnavailable(BackendError):
    """The server is down, cannot be reached, or did not answer in time."""


class BadResponse(BackendError):
    """What came is not the protocol.

    `partial` is the `Message` assembled from what had come before, None if nothing had.
    """

    partial: Any = None

    def __init__(self, message: str, *, status: int | None = None, partial: Any = None) -> None:
        super().__init__(message, status=status)
        self.partial = partial


class BudgetExceeded(BackendError):
    """The budget that the request's limits share is spent; the request was not sent."""


class StreamInterrupted(BackendError):
    """The reply broke off after it had begun.

    `partial` is the `Message` assembled from what had come, None if nothing had.
    """

    def __init__(self, message: str, *, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial
