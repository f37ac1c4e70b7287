"""Agents in actors, as their callers see them: create, find and call them.

The actor has `max_restarts=0`, because a restart would lose the agent's memory. Replicas of Ray
Serve do not fit: they keep no state of a conversation, and cannot send requests to their caller.
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
from ._actor import ANY_MACHINE, LEASE_SECONDS, ActorHandle, PendingActor
from ._agent_actor import AgentFactory, ClusterDirectory, TextCache
from ._mailbox import RemoteCall, inbox_of
from ._payload import Result, load_lenient, pack
from ._placement import Ray
from ._protocol import AgentRequest, Ask, CallerRequest, CancelAsk, Outcome, Report, SentMessage
from ._ray import import_ray
from ._stream import StreamReader
from ._subtree import RemoteNode

__all__ = ["RemoteAgent", "find", "remote"]


class RemoteAgent(ActorHandle):
    """A handle of an agent in an actor. It is a `Participant`, and can be sent to other processes.

        bob = await find("bob")
        answer = await bob.receive(AgentMessage("hello", sender="user"))

    A conversation works as with a local agent: the agent streams its answers, decides when to end,
    and its messages count towards the limit of messages. It can call the participants of
    `directory`, which are in this process, by name; `ClusterDirectory` describes the order of the
    search. A cancel here cancels the call in the actor, including its model request. Raises
    `WorkerLost` if the actor or its machine is lost. `lease` is as for `ActorHandle`.
    """

    kind: ClassVar[str] = "agent"
    may_put_jobs: ClassVar[bool] = True

    def __init__(
        self, name: str, *, directory: Directory | None = None, lease: float = LEASE_SECONDS
    ) -> None:
        super().__init__(name, lease=lease)
        self.directory = directory

    async def receive(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Give the agent a message, and return its answer if requested; see `Participant`."""
        return await self.invoke("receive", message, request_reply=request_reply)

    async def receive_again(self, message: AgentMessage, *, request_reply: bool = True) -> Answer:
        """Let the agent answer a message that it may already have received; see `Participant`."""
        return await self.invoke("receive_again", message, request_reply=request_reply)

    async def begin_chat(self, partner: str, *, clear_history: bool = False) -> None:
        """Tell the agent that a conversation starts; see `Participant`."""
        await self.invoke("begin_chat", partner, clear_history=clear_history)

    async def invoke(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of the agent in its actor, or read the attribute with this name.

            await bob.invoke("last_message", "user")
            await bob.invoke("state_dict", session_id="user")

        Returns a copy. Raises what the method raises.
        """
        return await run_in_tree(AgentCallNode(self, name, args, kwargs))

    async def usage(self, session_id: int | str | None = None) -> dict[str, Usage]:
        """Return the usage of all calls of the agent by any caller, or of one session."""
        return await self.invoke("usage", session_id)

    async def answer_request(self, request: CallerRequest) -> Any:
        """Answer a request of the agent to this process."""
        participant = await (self.directory or ClusterDirectory()).find(request.name)
        if request.method == "find":
            return participant if isinstance(participant, RemoteAgent) else None
        return await getattr(participant, request.method)(*request.args, **request.kwargs)

    async def start(self, make: bytes, on: Ray, *, detached: bool) -> None:
        """Create the agent in an actor, and add the handle to the directory."""
        if self.directory is not None:
            self.directory.add(self)
        try:
            await super().start(make, on, detached=detached)
        except BaseException:
            if self.directory is not None:
                self.directory.remove(self.name)
            raise

    async def close(self) -> None:
        """End the agent and its actor, and free the name. Twice is harmless."""
        if self.directory is not None:
            self.directory.remove(self.name)
        await super().close()


class AgentCallNode(Node[Any], internal=True):
    """One call of a remote agent, as a node of the local tree."""

    def __init__(
        self, agent: RemoteAgent, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        name = f"{agent.name}.{method}"
        super().__init__(name)
        act_as(self, agent.name)
        arguments = pack((args, kwargs), f"the arguments of {name}")
        run_remotely(self, RemoteAgentCall(agent, method, arguments))


class RemoteAgentCall(RemoteNode):
    """The body of an `AgentCallNode`, which runs in the agent's actor."""

    place = None  # an agent does not move

    def __init__(self, agent: RemoteAgent, method: str, arguments: bytes) -> None:
        super().__init__()
        self._agent = agent
        self._method = method
        self._arguments = arguments
        self._texts = TextCache()
        self._asks: dict[int, Node[Any]] = {}

    def explain(self) -> str:
        """Describe where the agent runs."""
        return f"in the actor of {self._agent!r}"

    async def run(self, node: Node[Any]) -> Any:
        """Read the stream until the call is over. A cancel waits until it is over in the actor."""
        cluster, _ = await self._agent.locate()
        self.begin(node)
        try:
            if limits_of(node):
                inbox = await inbox_of(node.commander, cluster)
                async with RemoteCall(node, inbox) as call:  # for turns; reports come by the stream
                    outcome = await self._read(node, call)
            else:
                outcome = await self._read(node, None)
        except BaseException:
            for part in self._texts.interrupt_all():
                _tell_listeners(part)
            raise
        finally:
            self.clear()
        return self.end(node, outcome)

    async def _read(self, node: Node[Any], call: RemoteCall | None) -> Outcome:
        context, has_listener = self.context(node, call), audible_scope() is not None
        request = AgentRequest(self._method, self._arguments, context, has_listener)
        async with StreamReader(self._agent, pack(request, "the call")) as reader:
            while (items := await reader.take()) is not None:
                for item in items:
                    if isinstance(item, SentMessage):
                        _tell_listeners(self._texts.expand(item.part))
                    elif isinstance(item, Ask):
                        asking = node.call_handler(self.answer(reader, item))
                        self._asks[item.number] = asking
                    elif isinstance(item, CancelAsk):
                        if (pending := self._asks.get(item.number)) is not None:
                            pending.cancel("the agent cancelled its request")
                    else:
                        report: Report = load_lenient(item)
                        self.take(node, report)
                        if report.outcome is not None:
                            return report.outcome
        raise WorkerLost(node.path, "its stream ended without a result")

    @handler
    async def answer(self, node: Node[Any], reader: StreamReader, ask: Ask) -> None:
        """Answer a request that the agent sends; the agent raises a failure of the answer.

        The agent counts its own messages. Both sides exchange the rest of the message limit here.
        """
        scope, failure, value = current_scope(), None, None
        if scope is not None:
            scope.left -= ask.question.messages
        try:
            value = await self._agent.answer_request(ask.question)
        except Exception as error:  # noqa: BLE001 - raised in the agent
            failure = error
        with suppress(WorkerLost):  # the reader of the stream gets the same error
            left = None if scope is None else scope.left
            await reader.answer(ask.number, Result((value, left), failure))
        self._asks.pop(ask.number, None)


def _tell_listeners(part: AgentMessage) -> None:
    if (scope := audible_scope()) is not None:
        scope.publish(part)


# --- create and find


def remote(
    agent: Callable[..., Any],
    name: str,
    *args: Any,
    on: Ray = ANY_MACHINE,
    directory: Directory | None = None,
    detached: bool = False,
    lease: float = LEASE_SECONDS,
    **kwargs: Any,
) -> PendingActor[RemoteAgent]:
    """Create `agent(name, *args, **kwargs)` in an actor; await the result, or enter it as a block.

        bob = await remote(Bob, "bob", backend)
        async with remote(Bob, "bob", backend, directory=directory) as bob: ...

    The agent keeps its state in the actor, and all processes of the cluster can reach it by its
    name. The handle is added to `directory`, whose participants the agent can call by name. The
    agent ends with the block, by `close`, and with this program unless `detached`.

    Each argument is pickled. A backend is sent as the arguments of `connect` without the key, which
    the actor reads from its environment. Raises `TypeError` for an argument that cannot be sent,
    before anything starts, and the errors of `ActorHandle.start` and of creating the agent.
    """
    import_ray()
    args = (name, *args)
    signature(agent).bind(*args, **kwargs)  # raise `TypeError` for wrong arguments here
    parameters = signature(agent).parameters.values()
    names = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    positions = [names[n] if n < len(names) else n + 1 for n in range(len(args))]

    def pack_argument(value: Any, position: str | int) -> bytes:
        description = f"argument {position!r} of {getattr(agent, '__name__', repr(agent))}"
        several = issubclass(type(value), (list, tuple))
        parts: list[Any] = [*value] if several else [value]
        for part in parts:
            if isinstance(part, Participant) and not isinstance(part, ActorHandle):
                raise TypeError(
                    f"{description}: the agent {part.name!r} lives in this process, and would be "
                    "copied; pass its name, or create it with cluster.remote"
                )
        return pack(value, description)

    factory = AgentFactory(
        agent,
        [pack_argument(value, position) for value, position in zip(args, positions, strict=True)],
        {position: pack_argument(value, position) for position, value in kwargs.items()},
    )
    handle = RemoteAgent(name, directory=directory, lease=lease)
    return PendingActor(handle, pack(factory, f"the class of {name!r}"), on, detached=detached)


async def find(name: str, *, directory: Directory | None = None) -> RemoteAgent:
    """Return a handle of the agent that runs in the cluster under `name`.

    Raises `ActorNotFound` if there is none, `ConfigurationError` without a cluster.
    """
    handle = RemoteAgent(name, directory=directory)
    await handle.locate()
    return handle
