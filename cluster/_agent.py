"""Agents in actors, seen from home: made there, reached by name, heard here while they speak.

An agent is a named Ray actor with `max_restarts=0`: its memory would not come back with it. Ray
Serve's replicas have no state of one conversation, and their streams cannot ask their caller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from inspect import signature
from typing import Any, ClassVar

from ..agents import AgentMessage, Answer, Directory, Participant
from ..agents.integration import audible_scope, current_scope, run_in_tree
from ..backends.limits import limits_of
from ..commander import Node, WorkerLost, act_as
from ..commander.remote import run_remotely
from ..handlers import handler
from ..messages import Usage
from ._actor import ANYWHERE, LEASE, ActorHandle, PendingActor
from ._agent_service import AgentFactory, ClusterDirectory, TextCache
from ._mailbox import RemoteCall, inbox_of
from ._payload import Result, load_lenient, pack
from ._placement import Ray
from ._protocol import AgentCall, Ask, CallerRequest, CancelAsk, MessagePart, Outcome, Report
from ._ray import import_ray
from ._remote import RemoteNode
from ._stream import StreamReader

__all__ = ["RemoteAgent", "find", "remote"]


class RemoteAgent(ActorHandle):
    """A handle of an agent in an actor; it is a `Participant`, and can be sent anywhere.

    Conversations with the agent are as with one that is here: it streams its answers, ends by its
    own rules, and its messages count. What it asks of others by name is answered by those whom
    `directory` finds here, if no other has the name there. Cancelling what is asked of it here
    cancels it there, down to its model. `WorkerLost` if its actor or machine is gone.
    """

    kind: ClassVar[str] = "agent"
    puts_jobs: ClassVar[bool] = True

    def __init__(
        self, name: str, *, directory: Directory | None = None, lease: float = LEASE
    ) -> None:
        super().__init__(name, lease=lease)
        self.directory = directory

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Let the agent take a message and, if asked to, answer it; see `Participant`."""
        return await self.invoke("receive", message, request_reply=request_reply)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Let the agent answer a message that it may have heard already; see `Participant`."""
        return await self.invoke("receive_again", message, request_reply=request_reply)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Tell the agent that a conversation begins; see `Participant`."""
        await self.invoke("begin_chat", partner, clear_history=clear_history)

    async def invoke(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent there, or get what it has under this name.

            await bob.invoke("last_message", "user")
            await bob.invoke("state_dict", session_id="user")

        What is returned is a copy. Raises what the method raises.
        """
        return await run_in_tree(AgentCallNode(self, name, args, kwargs))

    async def usage(self, session_id: int | str | None = None) -> dict[str, Usage]:
        """Return what all its calls have taken, whoever asked it, or those of one session."""
        return await self.invoke("usage", session_id)

    async def answer_request(self, request: CallerRequest) -> Any:
        """Answer what the agent asks of this process."""
        participant = await (self.directory or ClusterDirectory()).find(request.name)
        if request.method == "find":
            return participant if isinstance(participant, RemoteAgent) else None
        return await getattr(participant, request.method)(*request.args, **request.kwargs)

    async def start(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Make the agent in an actor, and enter the handle in the directory."""
        if self.directory is not None:
            self.directory.add(self)
        try:
            await super().start(make, on, detached=detached)
        except BaseException:
            if self.directory is not None:
                self.directory.remove(self.name)
            raise

    async def close(self) -> None:
        """End the agent and its actor; its name is free again. Twice is harmless."""
        if self.directory is not None:
            self.directory.remove(self.name)
        await super().close()


class AgentCallNode(Node[Any], internal=True):
    """One call of a remote agent as a node of the tree here."""

    def __init__(
        self, agent: RemoteAgent, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        name = f"{agent.name}.{method}"
        super().__init__(name)
        act_as(self, agent.name)
        arguments = pack((args, kwargs), f"what {name} is given")
        run_remotely(self, RemoteAgentCall(agent, method, arguments))


class RemoteAgentCall(RemoteNode):
    """The body of that node: it runs in the agent's actor."""

    place = None  # an agent stays where it is

    def __init__(self, agent: RemoteAgent, method: str, arguments: bytes) -> None:
        super().__init__()
        self._agent = agent
        self._method = method
        self._arguments = arguments
        self._texts = TextCache()
        self._asks: dict[int, Node[Any]] = {}

    def explain(self) -> str:
        """Say where the agent lives."""
        return f"in the actor of {self._agent!r}"

    async def run(self, node: Node[Any]) -> Any:
        """Read what comes until the agent is done; cancelled, wait until it is over there."""
        cluster, _ = await self._agent.locate()
        self.begin(node)
        try:
            if limits_of(node):
                inbox = await inbox_of(node.commander, cluster)
                async with RemoteCall(node, inbox) as call:  # its reports come by the stream
                    outcome = await self._read(node, call)
            else:
                outcome = await self._read(node, None)
        except BaseException:
            for part in self._texts.break_off():
                _tell_listeners(part)
            raise
        finally:
            self.clear()
        return self.end(node, outcome)

    async def _read(self, node: Node[Any], call: RemoteCall | None) -> Outcome:
        context, listened = self.context(node, call), audible_scope() is not None
        request = AgentCall(self._method, self._arguments, context, listened)
        async with StreamReader(self._agent, pack(request, "the call")) as reader:
            while (items := await reader.take()) is not None:
                for item in items:
                    if isinstance(item, MessagePart):
                        _tell_listeners(self._texts.expand(item.part))
                    elif isinstance(item, Ask):
                        asking = node.call_handler(self.answer(reader, item))
                        self._asks[item.number] = asking
                    elif isinstance(item, CancelAsk):
                        if (asked := self._asks.get(item.number)) is not None:
                            asked.cancel("it is not waited for any more")
                    else:
                        report: Report = load_lenient(item)
                        self.take(node, report)
                        if report.outcome is not None:
                            return report.outcome
        raise WorkerLost(node.path, "its agent has left off")

    @handler
    async def answer(self, node: Node[Any], reader: StreamReader, ask: Ask) -> None:
        """Answer what the agent asks; its failure is the agent's to take."""
        scope, failure, value = current_scope(), None, None
        if scope is not None:
            scope.left -= ask.question.messages
        try:
            value = await self._agent.answer_request(ask.question)
        except Exception as error:  # noqa: BLE001 - it is raised where it was asked
            failure = error
        with suppress(WorkerLost):  # who reads the stream learns that too
            left = None if scope is None else scope.left
            await reader.answer(ask.number, Result((value, left), failure))
        self._asks.pop(ask.number, None)


def _tell_listeners(part: AgentMessage) -> None:
    if (scope := audible_scope()) is not None:
        scope.publish(part)


# --- making and finding


def remote(
    agent: Callable[..., Any],
    name: str,
    *args: Any,
    on: Ray = ANYWHERE,
    directory: Directory | None = None,
    detached: bool = False,
    lease: float = LEASE,
    **kwargs: Any,
) -> PendingActor[RemoteAgent]:
    """Make `agent(name, *args, **kwargs)` in an actor: awaited, or as a block, it is a handle.

        bob = await remote(Bob, "bob", backend)
        async with remote(Bob, "bob", backend, directory=directory) as bob: ...

    It keeps its state there, and is reached under its name from everywhere in the cluster. The
    handle is entered in `directory`, and the agent finds by name whom that finds. At the end of
    the block, or by `close`, the agent ends; also with this program, unless `detached`.

    Each argument travels: a backend by what `connect` was given, without its key, which is found
    there in the environment. Raises `TypeError`, before anything starts, for one that cannot, which
    it names; and what `ActorHandle.start` and making the agent raise.
    """
    import_ray()
    args = (name, *args)
    signature(agent).bind(*args, **kwargs)  # or it is a TypeError, here and now
    parameters = signature(agent).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    positions = [names[n] if n < len(names) else n + 1 for n in range(len(args))]

    def pack_argument(value: Any, position: str | int) -> bytes:
        what = f"argument {position!r} of {getattr(agent, '__name__', repr(agent))}"
        several = issubclass(type(value), (list, tuple))
        parts: list[Any] = [*value] if several else [value]
        for part in parts:
            if isinstance(part, Participant) and not isinstance(part, ActorHandle):
                raise TypeError(
                    f"{what}: the agent {part.name!r} lives in this process, and there would be a "
                    "copy of it: give its name, or make it by cluster.remote too"
                )
        return pack(value, what)

    factory = AgentFactory(
        agent,
        [pack_argument(value, position) for value, position in zip(args, positions, strict=True)],
        {position: pack_argument(value, position) for position, value in kwargs.items()},
    )
    handle = RemoteAgent(name, directory=directory, lease=lease)
    return PendingActor(handle, pack(factory, f"the class of {name!r}"), on, detached=detached)


async def find(name: str, *, directory: Directory | None = None) -> RemoteAgent:
    """Return a handle of the agent that lives in the cluster under `name`.

    Raises `ActorNotFound` if there is none, `ConfigurationError` if there is no cluster.
    """
    handle = RemoteAgent(name, directory=directory)
    await handle.locate()
    return handle
