"""Every error that Anabranch raises, in one tree.

    AnabranchError
    ├── NodeClosed            a child was added to a node that is done
    ├── NodeCancelled         the awaited node was cancelled
    ├── QuorumNotMet          fewer children completed than required
    ├── WorkerLost            the process or machine of a node ended or was lost
    ├── MissingExtra          an optional package is not installed (also an ImportError)
    ├── ConfigurationError    a key, a model name or a setting is missing or unusable
    │   └── ContextError          code below a call needs another context=, or any
    ├── NotDurable            durable code outside of a durable run (also a RuntimeError)
    ├── ToolError             a tool failed; the text goes to the model
    │   └── ModelRetry        the model should correct its call or its answer
    └── BackendError          a request to a model failed
        ├── AuthenticationError   401, 403
        ├── ModelNotFound         404
        ├── RateLimited           429
        ├── ContextTooLong        the prompt does not fit the model
        ├── BackendUnavailable    5xx, no connection, no reply in time
        ├── BadResponse           the response violates the protocol, or is no typed output
        │   ├── Refused           the model refused to give the output
        │   ├── ContentFiltered   a content filter stopped the output
        │   ├── ReplyTruncated    the reply ended before the output was complete
        │   └── OutputInvalid     the output did not fit, after all retries
        ├── BudgetExceeded        the budget of the limits is exhausted
        └── StreamInterrupted     the connection was lost in the middle of the reply

Misuse, such as starting a node twice, raises `RuntimeError` or `TypeError`, as in asyncio. A
timeout raises the builtin `TimeoutError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from ._report import group, type_name

if TYPE_CHECKING:
    from ..messages import Message

__all__ = [
    "AnabranchError",
    "AuthenticationError",
    "BackendError",
    "BackendUnavailable",
    "BadResponse",
    "BudgetExceeded",
    "ConfigurationError",
    "ContentFiltered",
    "ContextError",
    "ContextTooLong",
    "MissingExtra",
    "ModelNotFound",
    "ModelRetry",
    "NodeCancelled",
    "NodeClosed",
    "NotDurable",
    "OutputInvalid",
    "QuorumNotMet",
    "RateLimited",
    "Refused",
    "ReplyTruncated",
    "StreamInterrupted",
    "ToolError",
    "WorkerLost",
]

E = TypeVar("E", bound=BaseException)


class AnabranchError(Exception):
    """The base of every error of this package. All can be pickled, with attributes and notes."""

    reported = False
    """Whether a durable run raises this error as its outcome, so that nodes do not log it."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exception's own method would call the class with the message as its only argument.
        return remake, (type(self), self.args, self.__dict__)


def remake(kind: type[E], args: tuple[Any, ...], attributes: dict[str, Any]) -> E:
    """Create an exception without its `__init__`, which may take other arguments."""
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

    It is an ordinary `Exception`, unlike the `CancelledError` of a node that is itself cancelled.
    Attributes: `path` of the cancelled node and the `reason` given, perhaps empty.
    """

    def __init__(self, path: str, reason: str = "") -> None:
        super().__init__(f"{path} was cancelled" + (f": {reason}" if reason else ""))
        self.path = path
        self.reason = reason


class QuorumNotMet(AnabranchError):
    """Fewer nodes have completed than `quorum(n)` or `settle(..., at_least=n)` requires.

    Attributes: `needed`, `completed`, and `failures`, the exceptions of the failed nodes; if there
    are any, `__cause__` is an `ExceptionGroup` of them. If `settle` raised it, `outcomes` are the
    results and failures in their order.
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
        self.outcomes: tuple[Any, ...] = tuple(outcomes)
        self.needed = needed
        self.completed = completed
        self.failures: tuple[BaseException, ...] = tuple(failures)
        if failures:
            self.__cause__: BaseException | None = group("children that failed", failures)


class WorkerLost(AnabranchError):
    """The process or machine that ran a node ended or was lost before the node's end.

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


class ContextError(ConfigurationError):
    """Code below a call needs a context, and `context=` was not given or has another type.

    It fails the run: a tool's `ContextError` is not a result for the model.
    """


# The getter of `BaseException`: a class may refuse attributes, or run its own code at each access.
_fields_of: Any = BaseException.__dict__["__dict__"].__get__


def mark_final(error: Exception) -> None:
    """Let an error of the caller's code, such as a failed approval, end the run."""
    _fields_of(error)["__anabranch_final__"] = True


def is_final(error: BaseException | None) -> TypeGuard[Exception]:
    """Return whether an error fails the whole call: a `ContextError`, or one of `mark_final`.

    The model does not read it, no retry repeats the work, and a durable run does not record it.
    """
    if error is None:
        return False
    return issubclass(type(error), ContextError) or "__anabranch_final__" in _fields_of(error)


class NotDurable(AnabranchError, RuntimeError):
    """A durable job, or a call of `self.durable`, outside of a durable run."""


class ToolError(AnabranchError):
    """A tool failed. The model gets the text as the result."""


class ModelRetry(ToolError):
    """The model should try again. A tool raises it, and the model reads the reason.

        @tool
        def find_order(number: int) -> str:
            if number not in ORDERS:
                raise ModelRetry(f"there is no order {number}; ask the user for the number")
            return ORDERS[number]

    The result of the call has the status "invalid", as after wrong arguments, and `retry=` of the
    tool does not repeat it. A validator of typed output raises it, too: the model then answers
    again. Attribute: `reason`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BackendError(AnabranchError):
    """A request to a model failed.

    Attributes: `status`, the HTTP status if there was one. The message never contains a key.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


class AuthenticationError(BackendError):
    """The API key is missing, wrong, or lacks the permission for the request (401, 403)."""


class ModelNotFound(BackendError):
    """The server knows no such model or no such address (404)."""


class RateLimited(BackendError):
    """Too many requests or tokens (429). `retry_after` is in seconds, None if unknown."""

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
    """The response violates the protocol.

    `partial` is the `Message` assembled from the part before, None if there is none.
    """

    partial: Any = None

    def __init__(self, message: str, *, status: int | None = None, partial: Any = None) -> None:
        super().__init__(message, status=status)
        self.partial = partial


class _NoOutput(BadResponse):
    """A complete reply without the typed output that was asked for."""

    def __init__(self, text: str, *, message: Message | None = None) -> None:
        super().__init__(text)
        self.message = message


class Refused(_NoOutput):
    """The model refused to give the typed output. Asking again would not help.

    Attribute: `message`, the reply. Its `refusal` is in the error's text.
    """


class ContentFiltered(_NoOutput):
    """A content filter stopped the reply before the typed output was complete.

    Attribute: `message`, the reply as far as it came.
    """


class ReplyTruncated(_NoOutput):
    """The reply reached a token limit before the typed output was complete.

    Attribute: `message`, the reply as far as it came.
    """


class OutputInvalid(_NoOutput):
    """The last reply is not valid typed output, and `output_retries` are used up.

    Attribute: `message`, the last reply. The error's text says what is wrong with it.
    """


class BudgetExceeded(BackendError):
    """The budget of the request's limits is exhausted; the request was not sent."""


class StreamInterrupted(BackendError):
    """The connection was lost in the middle of the reply.

    `partial` is the `Message` assembled from the part before, None if there is none.
    """

    def __init__(self, message: str, *, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


def message_of(error: BaseException) -> str:
    """Return the text of an exception; empty if its `__str__` raises."""
    try:
        return f"{error}"
    except Exception:  # noqa: BLE001 - code of a user's class
        return ""
