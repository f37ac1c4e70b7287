"""What can be served, each as a node that answers a question; what clients may say to it."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from ..agents import Agent, AgentMessage
from ..agents.conversation import Chat, ChatResult, ConversableAgent, Group
from ..agents.hearing import OwnSession
from ..agents.orchestration import Action, Orchestrator
from ..backends import Backend
from ..commander import Node
from ..commander.errors import ConfigurationError
from ..dispatch import fork
from ..handlers import HandlerFunction, handler, show
from ..jobs import Job
from ..messages import Conversation, Message, Request, ToolCall
from ..messages.options import WIRE_OPTIONS
from ..tools import result_text

__all__ = ["BadQuestion", "Question", "Served", "serve_thing"]


class BadQuestion(Exception):
    """A client asks for what is not offered; `field` is what it names, `text` is told to it."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks: what was said so far, fields of a job, options for the model."""

    messages: Sequence[Message]
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Sequence[Mapping[str, Any]] = ()  # that the client itself runs, as the wire has them

    @property
    def last(self) -> str:
        """What the user has said last."""
        return self.messages[-1].content or ""


class Served(ABC):
    """Something that answers questions; `name` is the model's name that clients see.

    `speaker` is the agent whose words are the answer; None: all that is said is.
    """

    speaker: str | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def node(self, question: Question) -> Node[Any]:
        """Make the node that answers, which has not started; raise `BadQuestion` to refuse."""

    def text(self, result: Any) -> str:
        """Return what the result of that node says."""
        if isinstance(result, (AgentMessage, ChatResult)):
            return result.text
        return result_text(result)

    def status(self, result: Any) -> str:
        """Return why it said no more: "ok", "length", "content_filter", "tool_calls"."""
        return "ok"

    def calls(self, result: Any) -> Sequence[ToolCall]:
        """Return the calls that the client is to run."""
        return ()


class _Agent(Served):
    def __init__(self, agent: Agent[Any], name: str | None) -> None:
        super().__init__(name or agent.name)
        self.speaker = agent.name
        self._agent = agent

    def node(self, question: Question) -> Node[Any]:
        """Give the agent what was said before, in a session that ends with the call."""
        _refuse(question, fields=True, options=True)
        agent, session = self._agent, OwnSession()
        *before, last = [self._heard(message) for message in question.messages]
        call = agent.call(last, session_id=session)
        agent.memory.add(*before, session_id=session)
        session.forget[agent] = lambda: agent.forget(session)
        return call.at_done(lambda _: session.end())

    def _heard(self, message: Message) -> AgentMessage:
        sender = self._agent.name if message.role == "assistant" else "user"
        return AgentMessage(content=message.content or "", sender=sender)

    def status(self, result: Any) -> str:
        return cast("AgentMessage", result).extra.get("status", "ok")


class _Conversation(Served):
    """A `ConversableAgent` or a group: it is told what was said as one text, and answers once."""

    def __init__(self, participant: ConversableAgent | Group, name: str | None) -> None:
        super().__init__(name or participant.name)
        self._participant = participant

    def node(self, question: Question) -> Node[Any]:
        _refuse(question, fields=True, options=True)
        client = ConversableAgent("client" if self._participant.name != "client" else "user")
        return Chat(client, self._participant, _transcript(question), max_turns=1)


class _Orchestrator(Served):
    """What makes an orchestrator for each question: one has one state."""

    def __init__(self, make: Callable[[], Orchestrator[Any]], name: str) -> None:
        super().__init__(name)
        self._make = make

    def node(self, question: Question) -> Node[Any]:
        _refuse(question, fields=True, options=True)
        return self._make().call(_transcript(question))

    def text(self, result: Any) -> str:
        return cast("Action", result).content


class _Made(Served):
    """A class of jobs, or a handler: its fields come from the request, checked by their types."""

    def __init__(self, make: Callable[..., Node[Any]], name: str) -> None:
        super().__init__(name)
        self._make = make
        given = [*inspect.signature(make).parameters.values()]
        if not isinstance(make, type):
            given = given[1:]  # a handler's own node
        self._fields = {each.name: each for each in given}
        hints = get_type_hints(make if isinstance(make, type) else inspect.unwrap(make))
        self._types: dict[str, TypeAdapter[Any]] = {
            name: TypeAdapter(hints.get(name, Any)) for name in self._fields
        }

    def node(self, question: Question) -> Node[Any]:
        """Fill the fields; the text goes into the first one that is missing and takes one."""
        _refuse(question, options=True)
        given = dict(question.fields)
        if unknown := sorted(given.keys() - self._fields.keys()):
            raise BadQuestion(
                f"there is no field {unknown[0]!r}; there are: {self._known}", "fields"
            )
        needed = [
            name
            for name, each in self._fields.items()
            if each.default is each.empty and name not in given
        ]
        if needed and question.messages:
            given[needed.pop(0)] = _transcript(question)
        if needed:
            raise BadQuestion(f"fields lacks {needed[0]!r}; there are: {self._known}", "fields")
        for name, value in given.items():
            try:
                given[name] = self._types[name].validate_python(value)
            except ValidationError as error:
                why = error.errors(include_url=False, include_input=False)[0]["msg"]
                raise BadQuestion(f"the field {name!r}: {why}", "fields") from None
        return self._make(**given)

    @property
    def _known(self) -> str:
        return ", ".join(self._fields) or "none"


class _Backend(Served):
    """A model by itself: what a client says goes to it as it is."""

    def __init__(self, backend: Backend, name: str | None) -> None:
        super().__init__(name or backend.model)
        self._backend = backend

    def node(self, question: Question) -> Node[Any]:
        _refuse(question, fields=True, system=False)
        conversation = Conversation()
        conversation.add(*question.messages)
        try:
            request = conversation.request(tools=question.tools, **question.options)
        except ConfigurationError as error:
            raise BadQuestion(f"{error}") from None
        return ask_model(self._backend, request)

    def text(self, result: Any) -> str:
        return cast("Message", result).content or ""

    def status(self, result: Any) -> str:
        return cast("Message", result).finish_reason or "ok"

    def calls(self, result: Any) -> Sequence[ToolCall]:
        return cast("Message", result).tool_calls


@handler
async def ask_model(node: Node[Any], backend: Backend, request: Request) -> Message:
    """Ask a model once; calls of tools are for whoever has asked."""
    reply = fork(node, backend.stream(request), formats=backend.formats)
    node.call_handler(show(reply.text, lambda _: None))
    return await reply.message


def serve_thing(given: object, name: str | None = None) -> Served:
    """Return how something is served; raise `ConfigurationError` for what cannot be."""
    if isinstance(given, Served):
        return given
    if isinstance(given, Agent):
        return _Agent(cast("Any", given), name)
    if isinstance(given, (ConversableAgent, Group)):
        return _Conversation(given, name)
    if isinstance(given, Backend):
        return _Backend(given, name)
    thing = cast("Any", given)
    if isinstance(given, HandlerFunction) or (isinstance(given, type) and issubclass(given, Job)):
        return _Made(thing, name or thing.__name__)
    if isinstance(given, Orchestrator):
        raise ConfigurationError(
            "an orchestrator has one state: serve a function that makes one for each question"
        )
    if callable(thing):
        made: Any = thing()
        if isinstance(cast("object", made), Orchestrator):
            return _Orchestrator(cast("Any", thing), name or made.name)
        return serve_thing(made, name)
    raise ConfigurationError(
        f"{thing!r:.200} cannot be served: it is no Agent, ConversableAgent, group, Backend, class"
        " of jobs or handler, nor a function that makes an orchestrator"
    )


def _refuse(
    question: Question, *, fields: bool = False, options: bool = False, system: bool = True
) -> None:
    """Refuse what this kind of thing does not take."""
    if fields and question.fields:
        raise BadQuestion("fields are for jobs and handlers; this has none", "fields")
    if options and question.options:
        name = min(question.options)
        raise BadQuestion(f"{name} is the server's to choose", name)
    if system and any(each.role in ("system", "developer") for each in question.messages):
        raise BadQuestion("the system prompt is the server's to choose", "messages")
    if system and question.tools:
        raise BadQuestion("the tools are the server's to choose", "tools")
    if system and any(each.role == "tool" or each.tool_calls for each in question.messages):
        raise BadQuestion("calls of tools are the server's affair", "messages")
    if system and any(each.images for each in question.messages):
        raise BadQuestion("images are not taken here", "messages")
    if unknown := sorted(question.options.keys() - WIRE_OPTIONS):
        raise BadQuestion(f"there is no option {unknown[0]!r}", unknown[0])


def _transcript(question: Question) -> str:
    """Return what was said as one text: for what keeps no conversation of a client's."""
    if len(question.messages) == 1:
        return question.last
    return "\n\n".join(f"{each.role}: {each.content}" for each in question.messages)
