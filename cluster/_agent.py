"""Agents on other machines: made there, reached by name, heard here while they speak."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, ClassVar, Self

from ..agents import AgentMessage, Answer, Directory, Participant
from ..agents.remote import audible_scope, current_scope, run_in_tree
from ..backends.limits import limits_of
from ..commander import Node, WorkerLost
from ..commander.remote import send
from ..handlers import handler
from ._actor import Ask, Drop
from ._agent_tenant import MakingAgent
from ._directory import ClusterDirectory
from ._elsewhere import Elsewhere, ended
from ._pack import pack
from ._parcel import load_report
from ._pull import Pull
from ._ray import Cluster, Ray
from ._report import End, Report, Stand
from ._resident import ANYWHERE, PATIENCE, Opening, Resident
from ._seat import Call, seat_of
from ._speech import Texts, Told
from ._visit import Question, Visit

__all__ = ["RemoteAgent", "find", "remote"]


class RemoteAgent(Resident):
    """A handle of an agent in an actor; it is a `Participant`, and can be sent anywhere.

    Conversations with the agent are as with one that is here: it streams its answers, ends by its
    own rules, and its messages count. What it asks of others by name is answered by those whom
    `directory` finds here, if no other has the name there. Cancelling what is asked of it here
    cancels it there, down to its model. `WorkerLost` if its actor or machine is gone.
    """

    kind: ClassVar[str] = "agent"

    def __init__(
        self, name: str, *, directory: Directory | None = None, patience: float = PATIENCE
    ) -> None:
        super().__init__(name, patience=patience)
        self._directory = directory

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Let the agent take a message and, if asked to, answer it; see `Participant`."""
        return await self.invoke("receive", message, request_reply=request_reply)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Tell the agent that a conversation begins; see `Participant`."""
        await self.invoke("begin_chat", partner, clear_history=clear_history)

    async def invoke(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent there, or get what it has under this name.

            await bob.invoke("last_message", "user")
            await bob.invoke("state_dict", session_id="user")

        What is returned is a copy. Raises what the method raises.
        """
        return await run_in_tree(Visiting(self, name, args, kwargs))

    def known_to(self, directory: Directory) -> Self:
        """Let those whom `directory` finds be asked for by the agent, unless it has one already."""
        self._directory = self._directory or directory
        return self

    async def asked(self, question: Question) -> Any:
        """Answer what the agent asks of this process."""
        directory = self._directory or ClusterDirectory()
        participant = await directory.find(question.name)
        if question.method == "find":
            return participant if isinstance(participant, RemoteAgent) else None
        return await getattr(participant, question.method)(*question.args, **question.kwargs)

    async def settle(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Make the agent in an actor, and enter the handle in the directory."""
        if self._directory is not None:
            self._directory.add(self)
        try:
            await super().settle(make, on, detached=detached)
        except BaseException:
            self._leave()
            raise

    def _leave(self) -> None:
        if self._directory is not None:
            self._directory.remove(self.name)

    async def close(self) -> None:
        """End the agent and its actor; its name is free again. Twice is harmless."""
        self._leave()
        await super().close()


class Visiting(Node[Any], internal=True):
    """One call of a remote agent as a node of the tree here."""

    def __init__(
        self, agent: RemoteAgent, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        name = f"{agent.name}.{method}"
        super().__init__(name)
        send(self, Called(agent, method, pack((args, kwargs), f"what {name} is given")))


class Called(Elsewhere):
    """What is asked of an agent elsewhere."""

    place = None  # an agent stays where it is

    def __init__(self, agent: RemoteAgent, method: str, given: bytes) -> None:
        super().__init__()
        self._agent = agent
        self._method = method
        self._given = given
        self._texts = Texts()
        self._asked: dict[int, Node[Any]] = {}

    def explain(self) -> str:
        """Say where the agent lives."""
        return f"in the actor of {self._agent!r}"

    async def run(self, node: Node[Any]) -> Any:
        """Read what comes until the agent is done; cancelled, wait until it is over there."""
        cluster, _ = await self._agent.located()
        self.begin(node)
        try:
            end = await self._read(node, cluster)
        except BaseException:
            for part in self._texts.broken_off():
                _tell(part)
            raise
        finally:
            self.clear()
        return ended(node, end)

    async def _read(self, node: Node[Any], cluster: Cluster) -> End:
        if not limits_of(node):
            return await self._hear(node, Stand.of(node, None))
        async with Call(node, await seat_of(node.commander, cluster), _unheard) as call:
            return await self._hear(node, Stand.of(node, call))

    async def _hear(self, node: Node[Any], stand: Stand) -> End:
        scope = current_scope()
        said = None if scope is None else (scope.limit, scope.left)
        visit = Visit(self._method, self._given, stand, said, audible_scope() is not None)
        async with Pull(self._agent, pack(visit, "the visit")) as pull:
            while (items := await pull.take()) is not None:
                for item in items:
                    if (end := self._took(node, item, pull)) is not None:
                        return end
        raise WorkerLost(node.path, "its agent has left off")

    def _took(self, node: Node[Any], item: Any, pull: Pull) -> End | None:
        if isinstance(item, Told):
            _tell(self._texts.restored(item.part))
        elif isinstance(item, Ask):
            self._asked[item.number] = node.call_handler(self.answer(pull, item))
        elif isinstance(item, Drop):
            if (asked := self._asked.get(item.number)) is not None:
                asked.cancel("it is not waited for any more")
        else:
            report: Report = load_report(item)
            self.take(node, report)
            return report.end
        return None

    @handler
    async def answer(self, node: Node[Any], pull: Pull, ask: Ask) -> None:
        """Answer what the agent asks; its failure is the agent's to take."""
        scope, failure, value = current_scope(), None, None
        if scope is not None:
            scope.left -= ask.question.spent
        try:
            value = await self._agent.asked(ask.question)
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked
            failure = error
        with suppress(WorkerLost):  # who reads the stream is told as well
            left = None if scope is None else scope.left
            await pull.answer(ask.number, (value, left), failure)
        self._asked.pop(ask.number, None)


def _unheard(report: bytes) -> None:
    raise AssertionError("what an agent does is told by its own stream")


def _tell(part: AgentMessage) -> None:
    if (scope := audible_scope()) is not None:
        scope.tell(part)


# --- making and finding


def remote(
    agent: Callable[..., Any],
    name: str,
    *args: Any,
    on: Ray = ANYWHERE,
    directory: Directory | None = None,
    detached: bool = False,
    patience: float = PATIENCE,
    **kwargs: Any,
) -> Opening[RemoteAgent]:
    """Make `agent(name, *args, **kwargs)` in an actor: awaited, or as a block, it is a handle.

        bob = await remote(Bob, "bob", backend)
        async with remote(Bob, "bob", backend, directory=directory) as bob: ...

    It keeps its state there, and is reached under its name from everywhere in the cluster. The
    handle is entered in `directory`, and the agent finds by name whom that finds. At the end of
    the block, or by `close`, the agent ends; also with this program, unless `detached`.

    Each argument travels: a backend by what `connect` was given, without its key, which is found
    there in the environment. Raises `TypeError`, before anything starts, for one that cannot, which
    it names; and what `Resident.settle` and making the agent raise.
    """
    making = MakingAgent(agent, *_packed(agent, (name, *args), kwargs))
    handle = RemoteAgent(name, directory=directory, patience=patience)
    return Opening(handle, pack(making, f"the class of {name!r}"), on, detached=detached)


async def find(name: str, *, directory: Directory | None = None) -> RemoteAgent:
    """Return a handle of the agent that lives in the cluster under `name`.

    Raises `NoResident` if there is none, `ConfigurationError` if there is no cluster.
    """
    handle = RemoteAgent(name, directory=directory)
    await handle.located()
    return handle


def _packed(
    agent: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[list[bytes], dict[str, bytes]]:
    """Pack the arguments of an agent one by one, so that a refusal names one."""
    signature(agent).bind(*args, **kwargs)  # or it is a TypeError, here and now
    parameters = signature(agent).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    places = [names[n] if n < len(names) else n + 1 for n in range(len(args))]
    of = getattr(agent, "__name__", repr(agent))
    return (
        [_argument(value, place, of) for value, place in zip(args, places, strict=True)],
        {name: _argument(value, name, of) for name, value in kwargs.items()},
    )


def _argument(value: object, name: str | int, of: str) -> bytes:
    for each in _parts(value):
        if isinstance(each, Participant) and not isinstance(each, Resident):
            raise TypeError(
                f"argument {name!r} of {of}: the agent {each.name!r} lives in this process, and "
                "there would be a copy of it: give its name, or make it by cluster.remote too"
            )
    return pack(value, f"argument {name!r} of {of}")


def _parts(value: Any) -> list[Any]:
    return [*value] if isinstance(value, (list, tuple)) else [value]
