"""What a run that is kept in a journal tells the engine of its nodes: the seam for such journals.

A node of a run has a `Scope`. It is found when the node is put, and knows then whether the journal
has the node's outcome already: such a node skips the queue, its callbacks before the body and its
body; its final callbacks run. The engine tells the scope what becomes of the node.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeAlias, TypeVar, cast
from weakref import ref

from ._cancel import cancel_subtrees, leaves
from ._limits import NodeLimits
from ._record import CURRENT, Callback, node_in, parent_here, record_of
from ._usage import charge_as, limits_around, payer

if TYPE_CHECKING:
    from ._node import Node
    from ._record import Record
    from .kept import Effect, KeptReply

__all__ = [
    "Attempt",
    "Keeper",
    "KeptRun",
    "Put",
    "Scope",
    "adopt",
    "cancel_again",
    "charge_again",
    "find_scope",
    "is_aside_here",
    "is_leaving",
    "leaves_here",
    "once",
    "put_of",
    "scope_here",
    "scope_of",
    "spent",
]

T = TypeVar("T")


class KeptRun(Protocol):
    """A run that was claimed."""

    async def drive(self, commander: Node[Any], *, timeout: float | None = None) -> None:
        """Put what is unfinished below `commander`, and wait for its end.

        `timeout` is that of the job with which it began.
        """

    def outcome(self) -> Any:
        """Give its result, or raise its failure."""


Keeper: TypeAlias = Callable[
    ["Node[Any]", Any, "str | None", "Mapping[str, Any] | None"],
    AbstractAsyncContextManager[KeptRun],
]
"""Takes up the run of a job in a journal: what `run(job, journal=, run_id=, live=)` calls."""

# Set by the room that has journals, which a durable job has imported.
keeper: Keeper | None = None


class Attempt:
    """One attempt of a node in one life of its run, inside that of the node that has put it.

    It says what becomes of all that is done in it and not kept, as what an agent remembers.
    """

    __slots__ = ("above", "life", "over")

    def __init__(self, above: Attempt | None, life: tuple[str, object]) -> None:
        self.above = above
        # The run, and which of its lives.
        self.life = life
        # Why later lives do not run it again: it was "cut" short, or what it gave is "kept".
        self.over: Literal["", "cut", "kept"] = ""

    def lacks(self, other: Attempt) -> Literal["", "cut", "kept"]:
        """Say why a later life that comes here may not have come to what was done in `other`."""
        if other.life != self.life:
            return "cut" if other.life[0] == self.life[0] else ""
        around, each = {*self._around()}, other._around()
        ends = {attempt.over for attempt in takewhile(lambda one: one not in around, each)}
        return "cut" if "cut" in ends else "kept" if "kept" in ends else ""

    def _around(self) -> Iterator[Attempt]:
        each: Attempt | None = self
        while each is not None:
            yield each
            each = each.above


class Scope(ABC):
    """A node's place in a run: who it is there, and what the journal has of it."""

    # The outcome is in the journal: `recall` gives it, and no attempt is made.
    recorded: bool = False
    # Its final callbacks are over too, and are not run again.
    walked: bool = False
    # It was put outside the run's tree: `over` is called of such a node alone.
    is_root: bool = False
    # The reason of a cancel that is in the journal: no attempt is made.
    cancelled: str | None = None
    # Gives the node that has put it, if that is not its parent.
    putter: Callable[[], Node[Any] | None] | None = None

    @property
    @abstractmethod
    def place(self) -> tuple[str, str]:
        """The run's name, and who the node is in it, the same in each life."""

    @property
    @abstractmethod
    def suspended(self) -> bool:
        """Whether its end in this life is none in the run, which is suspended."""

    @property
    @abstractmethod
    def limits(self) -> NodeLimits | None:
        """The limits of the whole run, which each of its roots has."""

    @property
    @abstractmethod
    def counted(self) -> Iterable[NodeLimits]:
        """The limits that have counted what the run had spent, before this life of it began."""

    @abstractmethod
    def enter(
        self,
        node: Node[Any],
        key: str | None,
        loop: asyncio.AbstractEventLoop,
        root: bool,
        aside: bool,
        retried: bool,
        closing: bool,
    ) -> Scope:
        """Return the scope of `node`, which the node of this one puts; or raise, to refuse it.

        `loop` is the one that runs here; `root` says that it is put outside the run's tree, as the
        next round of a loop is; `aside` that another task than that of the putter's body puts it:
        what such tasks put has no order that comes again; `retried` that it may be tried again;
        `closing` that a final callback of the putter puts it.
        """

    def put_elsewhere(self, putter: Node[Any]) -> None:
        """Take note of the node that has put it, which is not its parent."""
        self.putter = ref(putter)

    @abstractmethod
    def past(self, node: Node[Any], now: float) -> tuple[list[float], float]:
        """Return when the attempts began that the journal knows of, and the pause still to make.

        By the loop's clock, which says `now`; the pause in seconds. What the node has spent in
        earlier lives, and will not spend again, is charged to it.
        """

    @abstractmethod
    async def wait_for_turn(self, node: Node[Any]) -> None:
        """Wait, before the body begins, for what has ended in an earlier life and ends first."""

    @abstractmethod
    def begin(self, node: Node[Any], timeout: float | None) -> float | None:
        """Take note that an attempt begins; return what is left of its timeout.

        Raises what the journal knows to abort it.
        """

    @abstractmethod
    def replay(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> None:
        """Call `end(node)` when it is the turn of the recorded outcome, and not in this turn.

        What the node has spent is charged to it at once.
        """

    @abstractmethod
    def recall(self, node: Node[Any]) -> Any:
        """Give the recorded result or raise the recorded failure: the node ends."""

    @abstractmethod
    async def wait_for_cancel(self, node: Node[Any]) -> None:
        """Wait until a node whose cancel is in the journal is cancelled again."""

    @abstractmethod
    def retry(self, node: Node[Any], delay: float) -> None:
        """Take note that the attempt has ended, and that the next begins in so many seconds."""

    @abstractmethod
    def close(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
        *,
        leaving: bool,
    ) -> Any:
        """Keep how the node ends, before its final callbacks; return the result that it gives.

        What is returned counts if it has completed. Raises what it fails with instead. `leaving`
        says that all ends as the commander does: a cancel is then no outcome.
        """

    @abstractmethod
    def may_end(self, node: Node[Any], end: Callable[[Node[Any]], None]) -> bool:
        """Say whether a node that `close` has kept may end now, before its final callbacks.

        If not, `end(node)` is called when it is its turn. No cancel reaches the node until then.
        """

    @abstractmethod
    def give_up(self, waiter: Scope | None) -> None:
        """Take note that `waiter`, which goes on, does not await the node any more: it was late."""

    @abstractmethod
    def lose(self, error: BaseException) -> None:
        """Take note of a failure, its own or a child's, that no code has received when it ends."""

    @abstractmethod
    def abort(
        self, error: BaseException, *, timed_out: bool = False, awaited: bool = False
    ) -> None:
        """Keep that this attempt fails with a child's failure, or as it `timed_out`.

        `awaited` says that somebody awaits the node. With an interrupt, the run is suspended.
        """

    @abstractmethod
    def leave(self) -> asyncio.Future[None] | None:
        """Suspend the run, as its commander ends; None if there is nothing to wait for.

        Else effects are under way, which get their time: when that is done, the run has cancelled
        its tree.
        """

    @abstractmethod
    def cancel(self, scopes: Sequence[Scope], reason: str, *, failed: Scope | None) -> None:
        """Keep that these nodes are cancelled, all at once; `failed` above them, if that is why."""

    @abstractmethod
    def over(
        self,
        node: Node[Any],
        ending: Literal["completed", "failed", "cancelled"],
        result: Any,
        error: BaseException | None,
    ) -> Any:
        """Keep how a root ends after its final callbacks, which had a say in that; as `close`."""

    # --- what other rooms ask of it, for work that is done below the node

    @abstractmethod
    def attempt_here(self) -> Attempt:
        """Return the attempt of the node that is being made."""

    @abstractmethod
    def effect(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        harmless: bool = False,
        early: bool = False,
        key: str | None = None,
    ) -> Effect:
        """Return what the node does outside under this name and with these inputs.

        With a `key` it is known by that in the run, whatever node calls it, by whatever name.

        One that is `harmless` may be done again wherever it is not known what it gave, as what only
        reads; what it gave counts in its attempt alone. Replies that are still coming to the node
        are waited for, unless it may begin `early`: a later life may get others.
        """

    @abstractmethod
    def own_name(self, what: str) -> str:
        """Return a name for what is made here: no other has it, and each life of the run has it."""

    @abstractmethod
    def has_reply(self, request: str, redact: Callable[[str], str]) -> bool:
        """Say whether the journal has the reply that `reply` would give the place of."""

    @abstractmethod
    def note(self, name: str, value: Any) -> None:
        """Keep plain JSON with the node, in whatever attempt, for later lives to find."""

    @abstractmethod
    def notes(self, name: str) -> list[Any]:
        """Return what was kept with the node under this name, in all lives, oldest first."""

    @abstractmethod
    def reply(self, request: str, redact: Callable[[str], str]) -> KeptReply:
        """Return the place of the next reply to a request of this text in the journal.

        From now on all that is written of the run goes through `redact`, which takes out keys.
        """


class Put(NamedTuple):
    """How a node was put, and the callbacks that it has."""

    timeout: float | None
    retry: Any
    policy: Any
    priority: int
    on: Any
    limits: Any
    callbacks: list[tuple[str, Callback]]  # moments, as "end" or "start", in the order of adding


def put_of(node: Node[Any]) -> Put:
    """Return how `node` was put."""
    record = record_of(node)
    attempts = record.attempts
    callbacks: list[tuple[str, Callback]] = []
    if record.callback is not None:
        callbacks.append((record.callback_moment, record.callback))
    callbacks += record.later_callbacks(0)
    for moment in ("start", "retry", "commander_end"):
        callbacks += [(moment, each) for each in getattr(record, f"at_{moment}") or ()]
    return Put(
        None if attempts is None else attempts.timeout,
        None if attempts is None else attempts.retry,
        record.policy,
        record.priority,
        None if record.away is None else record.away.place,
        record.limits,
        callbacks,
    )


def scope_of(node: Node[Any]) -> Scope | None:
    """Return the node's scope; None if it belongs to no run."""
    return record_of(node).scope


def scope_here(*, any_loop: bool = False) -> Scope | None:
    """Return the scope of the node around this code; None outside a run.

    With `any_loop` the node may live on another loop, as that of a thread of `in_thread` does.
    """
    node = payer() if any_loop else parent_here()
    return None if node is None else scope_around(record_of(node))


def adopt(node: Node[Any], scope: Scope, parent: Node[Any]) -> None:
    """Give `node`, which is about to be put below `parent`, the scope of a run's own root."""
    record_of(node).scope = scope
    record_of(parent).tree.scoped = True


def leaves_here() -> Callable[[], bool]:
    """Return what says whether all of the tree around this code ends, with its commander."""
    return partial(leaves, record_of(cast("Node[Any]", payer())).tree)


def is_leaving(node: Node[Any]) -> bool:
    """Say whether all of the node's tree ends, with its commander: that decides nothing of it."""
    return leaves(record_of(node).tree)


def find_scope(parent: Record, node: Node[Any], record: Record, key: str | None) -> Scope | None:
    """Return the scope of a node that is put below `parent`.

    Who puts a node says who it is, and not where it is put: what a body or a callback puts, it puts
    in an order of its own, whatever else is put there meanwhile.
    """
    if record.special and record.scope is not None:
        return record.scope
    around = CURRENT.get(None)
    putter = None if around is None else around._node_record
    if putter is None or putter.tree is not parent.tree or putter.parent_node is None:
        putter = node_in(parent.tree)
    if putter is None or (scope := scope_around(putter)) is None:
        putter = parent
        if (scope := scope_around(parent)) is None:
            return None
    own = record.attempts if record.special else None
    loop = putter.tree.loop
    root = putter is not parent and scope_around(parent) is None
    aside = not putter.closing and putter.task is not asyncio.current_task(loop)
    retried = own is not None and own.retry is not None
    if root and scope.limits is not None and record.limits is None:
        record.limits = scope.limits
    # By place: Python takes twice as long for a call by keywords, and every node comes by.
    entered = scope.enter(node, key, loop, root, aside, retried, putter.closing)
    if putter is not parent and scope_around(putter) is scope:
        entered.put_elsewhere(putter.node)
    return entered


def spent(node: Node[Any]) -> Mapping[str, Any]:
    """Return what was charged at and below `node` so far, by account."""
    return record_of(node).charges or {}


async def once(name: str, work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` gives, plain JSON; in later lives of the run the same, without the work.

    For what comes from outside and changes nothing there, as a line that a person has typed. Calls
    of one name in a node are told apart by their order. Outside a run it is the work alone.
    """
    if (scope := scope_here()) is None:
        return await work()

    async def boxed() -> dict[str, T]:
        return {"value": await work()}

    return (await scope.effect(name, {}, harmless=True).do(boxed))["value"]


def cancel_again(nodes: Iterable[Node[Any]], reason: str) -> None:
    """Cancel nodes of whose putter each life of the run does so again: that is not kept."""
    cancel_subtrees(map(record_of, nodes), reason, kept=False)


def is_aside_here() -> bool:
    """Whether a task does this that is not the one of the body of the node around this code."""
    node = parent_here()
    if node is None or (record := record_of(node)).closing:
        return False
    return record.task is not asyncio.current_task()


def charge_again(
    account: str, amount: Any, node: Node[Any] | None = None, own: Iterable[NodeLimits] = ()
) -> None:
    """Charge what was spent in an earlier life; budgets around go on where they stood.

    So do those of `own`, which hold for the spender alone. Those around the run have counted it
    when the run was taken up. Those who listen are told by an event of kind `charged_again`.
    """
    by = payer() if node is None else node
    charge_as("charged_again", account, amount, by)
    scope = None if by is None else scope_around(record_of(by))
    every = {id(each): each for each in (*limits_around(by), *own)}
    for limits in () if scope is None else scope.counted:
        every.pop(id(limits), None)
    for limits in every.values():
        limits.count_again(account, amount)


def scope_around(record: Record) -> Scope | None:
    """Return a node's scope; a commander's is that of the node in which it was entered."""
    scope: Scope | None = record.rare.scope
    if scope is not None or record.parent_node is not None or record.tree.outer is None:
        return scope
    return scope_around(record_of(record.tree.outer))
