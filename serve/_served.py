"""What can be served, each as a node that answers a question; what clients may say to it."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from ..agents import Agent, AgentMessage
from ..agents.conversation import Chat, ChatResult, ConversableAgent, Group, TerminalInput
from ..agents.integration import TemporarySession
from ..agents.orchestration import Action, Orchestrator
from ..backends import Backend
from ..commander import Node
from ..commander.errors import ConfigurationError
from ..dispatch import fork
from ..handlers import HandlerFunction, handler, show
from ..jobs import Job
from ..jobs.fields import Field, InvalidValue
from ..messages import Conversation, Message, ProviderItem, Request, ToolCall
from ..tools import result_text
from ._failure import log_failure
from ._fields import BadQuestion, fields_of
from ._options import ModelOptions, chosen, read_options

__all__ = ["BadQuestion", "Question", "Served", "serve_thing"]


@dataclass(frozen=True, slots=True)
class Question:
    """What a client asks: what was said so far, fields of a job, options for the model."""

    messages: Sequence[Message]
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Sequence[Mapping[str, Any]] = ()  # that the client itself runs, as the wire has them

    @property
    def last(self) -> str:
        """What the user has said last; nothing, where only fields were given."""
        return (self.messages[-1].content or "") if self.messages else ""


class Served(ABC):
    """Something that answers questions; `name` is the model's name that clients see.

    `speaker` is the agent whose words are the answer; None: all that is said is.
    """

    speaker: str | None = None
    # Whether a journal can keep its runs: what it says comes in the same order in each life.
    keeps = False
    # The agent, where it is one by itself.
    agent: Agent[Any] | None = None
    # Whether a question without a message is refused.
    needs_text = True
    # What may be given beside what is said; a text alone answers what has none.
    fields: Sequence[Field] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def node(self, question: Question) -> Node[Any]:
        """Make the node that answers, which has not started; raise `BadQuestion` to refuse."""

    def text(self, result: Any) -> str:
        """Return what the result of that node says."""
        if isinstance(result, AgentMessage):
            refusal = result.extra.get("refusal")
            behind = [refusal] if isinstance(refusal, str) and refusal != result.text else []
            return "\n".join([result.text, *behind])
        if isinstance(result, ChatResult):
            return result.text
        return result_text(result)

    def status(self, result: Any) -> str:
        """Return why it said no more: "ok", "length", "content_filter", "tool_calls"."""
        return "ok"

    def refused(self, result: Any) -> bool:
        """Return whether the text of the result is the model's refusal."""
        return isinstance(result, AgentMessage) and result.extra.get("refusal") == result.text

    def calls(self, result: Any) -> Sequence[ToolCall]:
        """Return the calls that the client is to run."""
        return ()

    def items(self, result: Any) -> Sequence[ProviderItem]:
        """Return what the model's provider wants back with the answer."""
        return ()


class _Agent(Served):
    keeps = True

    def __init__(self, agent: Agent[Any], name: str | None) -> None:
        super().__init__(name or agent.name)
        self.speaker = agent.name
        self.agent = self._agent = agent

    def node(self, question: Question) -> Node[Any]:
        """Give the agent what was said before, in a session that ends with the call."""
        _refuse(question, fields=True, options=True, parts=False)
        agent, session = self._agent, TemporarySession()
        if agent.backend is not None:
            _check_parts(agent.backend, question)
        *before, last = [self._heard(message) for message in question.messages]

        def begin(_: Node[Any]) -> None:
            # Not sooner: a node that never starts is never done, and its session would stay.
            if agent not in session.forget:
                session.forget[agent] = lambda: agent.forget(session)
                agent.memory.add(*before, session_id=session)

        call = agent.call(last, session_id=session)
        return call.at_start(begin).at_done(lambda _: session.end())

    def _heard(self, message: Message) -> AgentMessage:
        sender = self._agent.name if message.role == "assistant" else "user"
        return AgentMessage(content=message.content or "", parts=message.parts, sender=sender)

    def status(self, result: Any) -> str:
        return cast("AgentMessage", result).extra.get("status", "ok")


class _Conversation(Served):
    """A `ConversableAgent` or a group: it is told what was said as one text, and answers once."""

    def __init__(self, participant: ConversableAgent | Group, name: str | None) -> None:
        super().__init__(name or participant.name)
        members = participant.members.values() if isinstance(participant, Group) else ()
        for each in (participant, *members):
            if not isinstance(each, ConversableAgent):
                continue
            if each.human_input_mode != "NEVER" and isinstance(each.human_input, TerminalInput):
                raise ConfigurationError(
                    f"{each.name} asks a person at the server's terminal, and cannot be served:"
                    " give it human_input_mode='NEVER', or another human_input"
                )
        self._participant = participant
        names = (each if isinstance(each, str) else each.name for each in members)
        taken = {participant.name, *names}
        self._client = next(name for name in ("user", "client", "_") if name not in taken)

    def node(self, question: Question) -> Node[Any]:
        """Let a client of its own begin a chat, which all forget at the end."""
        _refuse(question, fields=True, options=True)
        client, session = ConversableAgent(self._client), TemporarySession("@")
        client.identity = session
        chat = Chat(client, self._participant, _transcript(question), max_turns=1)
        return chat.at_done(lambda _: session.end())

    def text(self, result: Any) -> str:
        """Return the last answer, which need not be: a conversation may end without one."""
        last = cast("ChatResult", result).last
        return "" if last.sender == self._client else last.text


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

    needs_text = False

    def __init__(self, make: Callable[..., Node[Any]], name: str) -> None:
        super().__init__(name)
        self._make = make
        self.fields = fields_of(make, name)
        self._fields = {each.name: each for each in self.fields}

    def node(self, question: Question) -> Node[Any]:
        """Fill the fields; the text goes into the first one that is missing and takes one."""
        _refuse(question, options=True)
        given = dict(question.fields)
        if unknown := sorted(given.keys() - self._fields.keys()):
            raise BadQuestion(
                f"there is no field {unknown[0]!r:.200}; there are: {self._known}", "fields"
            )
        missing = [name for name, each in self._fields.items() if each.needed and name not in given]
        takes = [name for name in missing if self._fields[name].takes_text]
        if takes and question.messages:
            given[takes[0]] = _transcript(question)
            missing.remove(takes[0])
        elif self._fields and question.last and not missing:
            raise BadQuestion("all fields are given, and none is left for this text", "messages")
        if missing:
            raise BadQuestion(f"{missing[0]!r} is missing; there are: {self._known}", "fields")
        for name, value in given.items():
            try:
                given[name] = self._fields[name].read(value)
            except InvalidValue as error:
                raise BadQuestion(f"{name!r}: {error}", "fields") from None
        try:
            return self._make(**given)
        except (TypeError, ValueError) as error:
            text = "%s refuses its fields"
            log_failure(text, self.name, error=error, level=logging.WARNING)
            raise BadQuestion("these are refused", "fields") from None

    @property
    def _known(self) -> str:
        return ", ".join(self._fields) or "none"


class _Backend(Served):
    """A model by itself: what a client says goes to it as it is."""

    keeps = True

    def __init__(self, backend: Backend, name: str | None) -> None:
        super().__init__(name or backend.model)
        self._backend = backend

    def node(self, question: Question) -> Node[Any]:
        _refuse(question, fields=True, system=False, parts=False)
        _check_parts(self._backend, question)
        try:
            options = read_options(question.options)
        except ValueError as error:
            name, text = error.args
            raise BadQuestion(text, name) from None
        most = self._backend.default_options.get("max_tokens")
        if isinstance(most, int) and options.get("max_tokens", 0) > most:
            raise BadQuestion(f"at most {most} are offered", "max_tokens")
        conversation = Conversation()
        conversation.add(*question.messages)
        try:
            request = conversation.request(tools=question.tools, **options)
        except ConfigurationError as error:
            raise BadQuestion(f"{error}", "tools") from None
        return ask_model(self._backend, request)

    def text(self, result: Any) -> str:
        message = cast("Message", result)
        return "\n".join(filter(None, (message.content, message.refusal)))

    def refused(self, result: Any) -> bool:
        message = cast("Message", result)
        return bool(message.refusal) and not message.content

    def status(self, result: Any) -> str:
        message = cast("Message", result)
        reason = message.finish_reason or "stop"
        return "tool_calls" if message.tool_calls and reason == "stop" else reason

    def calls(self, result: Any) -> Sequence[ToolCall]:
        return cast("Message", result).tool_calls

    def items(self, result: Any) -> Sequence[ProviderItem]:
        """Return them without the names of servers, which are not the client's affair."""
        return [item.without_name() for item in cast("Message", result).provider_items]


@handler
async def ask_model(node: Node[Any], backend: Backend, request: Request) -> Message:
    """Ask a model once; calls of tools are for whoever has asked."""
    reply = fork(node, backend.stream(request), formats=backend.formats)
    node.call_handler(show(reply.text, lambda _: None))
    return await reply.message


_KINDS = (Agent, Group, Backend, HandlerFunction, type)


def serve_thing(given: object, name: str | None = None) -> Served:
    """Return how something is served; raise `ConfigurationError` for what cannot be."""
    if isinstance(given, Served):
        return given
    if isinstance(given, (ConversableAgent, Group)):
        return _Conversation(given, name)
    if isinstance(given, Agent):
        return _Agent(cast("Any", given), name)
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
        try:
            made: Any = thing()
        except Exception as error:
            raise ConfigurationError(
                f"{thing!r:.200} cannot be served: called without arguments it raises"
                f" {type(error).__name__}: {error}"
            ) from error
        if isinstance(cast("object", made), Orchestrator):
            return _Orchestrator(cast("Any", thing), name or made.name)
        if not callable(made) or isinstance(cast("object", made), _KINDS):
            return serve_thing(made, name)
    raise ConfigurationError(
        f"{thing!r:.200} cannot be served: it is no Agent, ConversableAgent, group, Backend, class"
        " of jobs or handler, nor a function that makes an orchestrator"
    )


def _refuse(
    question: Question,
    *,
    fields: bool = False,
    options: bool = False,
    system: bool = True,
    parts: bool = True,
) -> None:
    """Refuse what this kind of thing does not take."""
    if fields and question.fields:
        raise BadQuestion("they are for jobs and handlers; this has none", "fields")
    if options and (names := chosen(question.options)):
        name = names[0]
        known = name in ModelOptions.model_fields
        raise BadQuestion("the server chooses it" if known else "it is not supported here", name)
    if system and any(each.role in ("system", "developer") for each in question.messages):
        raise BadQuestion("the system prompt is the server's to choose", "messages")
    if system and question.tools:
        raise BadQuestion("the server chooses them", "tools")
    if system and any(each.role == "tool" or each.tool_calls for each in question.messages):
        raise BadQuestion("calls of tools are the server's affair", "messages")
    if parts and any(each.parts for each in question.messages):
        raise BadQuestion("images and files are not taken here", "messages")


def _check_parts(backend: Backend, question: Question) -> None:
    try:
        backend.check_parts(question.messages)
    except ConfigurationError:  # which tells more than is a client's affair
        text = "there are images or files that this model does not take"
        raise BadQuestion(text, "messages") from None


def _transcript(question: Question) -> str:
    """Return what was said as one text: for what keeps no conversation of a client's."""
    if len(question.messages) == 1:
        return question.last
    return "\n\n".join(f"{each.role}: {each.content}" for each in question.messages)
