"""`ServedModel`: an agent, group, job, handler or backend, as a model that clients can use."""

from __future__ import annotations

import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import PydanticJsonSchemaWarning

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
from ..jobs.fields import Field, InvalidValue, hints_of, parameters_of
from ..messages import Conversation, Message, ProviderItem, Request, ToolCall
from ..store import Live
from ..tools import result_text
from ._failure import log_failure
from ._model_options import ModelOptions, non_default_options, read_options

__all__ = ["InvalidInput", "RunInput", "ServedModel", "fields_of", "served_model_of"]

# The annotation of a field that the caller supplies at each start of a durable run.
LIVE_METADATA = cast("Any", Live).__metadata__


class InvalidInput(Exception):
    """The model does not take this input: `text` says why, `field` names the request's field."""

    def __init__(self, text: str, field: str | None = None) -> None:
        super().__init__(text)
        self.text = text
        self.field = field


@dataclass(frozen=True, slots=True)
class RunInput:
    """The input of a run: the conversation, the fields of a job, options and tools for the model.

    The client runs the `tools`. Each is a mapping as in a chat completions request.
    """

    messages: Sequence[Message]
    fields: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    tools: Sequence[Mapping[str, Any]] = ()

    @property
    def last_text(self) -> str:
        """The text of the last message; "" without messages."""
        return (self.messages[-1].content or "") if self.messages else ""


class ServedModel(ABC):
    """An object that answers requests of clients. They select it by `name`, as a model.

    The answer has only the texts of the agent `speaker`. With None it has all texts of the tree.
    """

    speaker: str | None = None
    # Whether a journal can store its runs. That requires replies in the same order in each
    # execution: the log recognizes repeated entries by their order.
    is_durable = False
    # The agent itself, for `_ServedAgent` only.
    agent: Agent[Any] | None = None
    # Whether an input without a message is refused.
    needs_text = True
    # Fields that an input may have.
    fields: Sequence[Field] = ()

    def __init__(self, name: str) -> None:
        self.name = name

    @abstractmethod
    def make_node(self, run_input: RunInput) -> Node[Any]:
        """Make the node that answers, without starting it; raise `InvalidInput` to refuse."""

    # The other methods read the result of that node.

    def text(self, result: Any) -> str:
        """Return the text of the answer."""
        if isinstance(result, AgentMessage):
            refusal = result.extra.get("refusal")
            behind = [refusal] if isinstance(refusal, str) and refusal != result.text else []
            return "\n".join([result.text, *behind])
        if isinstance(result, ChatResult):
            return result.text
        return result_text(result)

    def status(self, result: Any) -> str:
        """Return why the answer ended: "ok", "length", "content_filter", "tool_calls"."""
        return "ok"

    def is_refusal(self, result: Any) -> bool:
        """Return whether the text is the model's refusal."""
        return isinstance(result, AgentMessage) and result.extra.get("refusal") == result.text

    def calls(self, result: Any) -> Sequence[ToolCall]:
        """Return the calls that the client must run."""
        return ()

    def items(self, result: Any) -> Sequence[ProviderItem]:
        """Return the data that the model's provider needs back with the answer."""
        return ()


class _ServedAgent(ServedModel):
    is_durable = True

    def __init__(self, agent: Agent[Any], name: str | None) -> None:
        super().__init__(name or agent.name)
        self.speaker = agent.name
        self.agent = self._agent = agent

    def make_node(self, run_input: RunInput) -> Node[Any]:
        """Call the agent with the last message, in a session that has the earlier messages."""
        _refuse(run_input, fields=True, options=True, parts=False)
        agent, session = self._agent, TemporarySession()
        if agent.backend is not None:
            _check_parts(agent.backend, run_input)
        *before, last = [self._as_agent_message(message) for message in run_input.messages]

        def begin(_: Node[Any]) -> None:
            # At the start: a node that never starts is never done, and would leak its session. A
            # retry starts the node again, and must not add the messages twice.
            if agent not in session.forget:
                session.forget[agent] = lambda: agent.forget(session)
                agent.memory.add(*before, session_id=session)

        call = agent.call(last, session_id=session)
        return call.at_start(begin).at_done(lambda _: session.end())

    def _as_agent_message(self, message: Message) -> AgentMessage:
        sender = self._agent.name if message.role == "assistant" else "user"
        return AgentMessage(content=message.content or "", parts=message.parts, sender=sender)

    def status(self, result: Any) -> str:
        return cast("AgentMessage", result).extra.get("status", "ok")


class _ServedConversation(ServedModel):
    """A `ConversableAgent` or a group; it receives the conversation as one text."""

    def __init__(self, participant: ConversableAgent | Group, name: str | None) -> None:
        super().__init__(name or participant.name)
        members = participant.members.values() if isinstance(participant, Group) else ()
        for each in (participant, *members):
            if not isinstance(each, ConversableAgent):
                continue
            if each.human_input_mode != "NEVER" and isinstance(each.human_input, TerminalInput):
                raise ConfigurationError(
                    f"{each.name} cannot be served: it asks a person at the server's terminal."
                    " Give it human_input_mode='NEVER', or another human_input"
                )
        self._participant = participant
        names = (each if isinstance(each, str) else each.name for each in members)
        used = {participant.name, *names}
        self._client = next(name for name in ("user", "client", "_") if name not in used)

    def make_node(self, run_input: RunInput) -> Node[Any]:
        """Start a chat with a new client; all participants forget it at the end."""
        _refuse(run_input, fields=True, options=True)
        client, session = ConversableAgent(self._client), TemporarySession("@")
        client.identity = session
        chat = Chat(client, self._participant, _transcript(run_input), max_turns=1)
        return chat.at_done(lambda _: session.end())

    def text(self, result: Any) -> str:
        """Return the last answer; "" if the conversation ended without one."""
        last = cast("ChatResult", result).last
        return "" if last.sender == self._client else last.text


class _ServedOrchestrator(ServedModel):
    """Makes an orchestrator for each run, because an orchestrator has only one state."""

    def __init__(self, make: Callable[[], Orchestrator[Any]], name: str) -> None:
        super().__init__(name)
        self._make = make

    def make_node(self, run_input: RunInput) -> Node[Any]:
        _refuse(run_input, fields=True, options=True)
        return self._make().call(_transcript(run_input))

    def text(self, result: Any) -> str:
        return cast("Action", result).content


class _ServedNode(ServedModel):
    """A class of jobs, or a handler: its fields come from the request, checked by their types."""

    needs_text = False

    def __init__(self, make: Callable[..., Node[Any]], name: str) -> None:
        super().__init__(name)
        self._make = make
        self.fields = fields_of(make, name)
        self._fields = {each.name: each for each in self.fields}

    def make_node(self, run_input: RunInput) -> Node[Any]:
        """Fill the fields; the text fills the first missing field that accepts text."""
        _refuse(run_input, options=True)
        values = dict(run_input.fields)
        if unknown := sorted(values.keys() - self._fields.keys()):
            raise InvalidInput(
                f"there is no field {unknown[0]!r:.200}; there are: {self._names}", "fields"
            )
        missing = [
            name for name, each in self._fields.items() if each.needed and name not in values
        ]
        text_fields = [name for name in missing if self._fields[name].takes_text]
        if text_fields and run_input.messages:
            values[text_fields[0]] = _transcript(run_input)
            missing.remove(text_fields[0])
        elif self._fields and run_input.last_text and not missing:
            raise InvalidInput(
                "no field is left for this text: all of them are in the request", "messages"
            )
        if missing:
            raise InvalidInput(f"{missing[0]!r} is missing; there are: {self._names}", "fields")
        for name, value in values.items():
            try:
                values[name] = self._fields[name].read(value)
            except InvalidValue as error:
                raise InvalidInput(f"{name!r}: {error}", "fields") from None
        try:
            return self._make(**values)
        except (TypeError, ValueError) as error:
            # The user's code wrote the message, which may have details that clients must not see.
            text = "%s refuses its fields"
            log_failure(text, self.name, error=error, level=logging.WARNING)
            raise InvalidInput("these are refused", "fields") from None

    @property
    def _names(self) -> str:
        return ", ".join(self._fields) or "none"


class _ServedBackend(ServedModel):
    """A model without an agent: it receives the client's messages unchanged."""

    is_durable = True

    def __init__(self, backend: Backend, name: str | None) -> None:
        super().__init__(name or backend.model)
        self._backend = backend

    def make_node(self, run_input: RunInput) -> Node[Any]:
        _refuse(run_input, fields=True, system=False, parts=False)
        _check_parts(self._backend, run_input)
        try:
            options = read_options(run_input.options)
        except ValueError as error:
            name, text = error.args
            raise InvalidInput(text, name) from None
        most = self._backend.default_options.get("max_tokens")
        if isinstance(most, int) and options.get("max_tokens", 0) > most:
            raise InvalidInput(f"must be at most {most}", "max_tokens")
        conversation = Conversation()
        conversation.add(*run_input.messages)
        try:
            request = conversation.request(tools=run_input.tools, **options)
        except ConfigurationError as error:
            raise InvalidInput(f"{error}", "tools") from None
        return ask_model(self._backend, request)

    def text(self, result: Any) -> str:
        message = cast("Message", result)
        return "\n".join(filter(None, (message.content, message.refusal)))

    def is_refusal(self, result: Any) -> bool:
        message = cast("Message", result)
        return bool(message.refusal) and not message.content

    def status(self, result: Any) -> str:
        message = cast("Message", result)
        reason = message.finish_reason or "stop"
        return "tool_calls" if message.tool_calls and reason == "stop" else reason

    def calls(self, result: Any) -> Sequence[ToolCall]:
        return cast("Message", result).tool_calls

    def items(self, result: Any) -> Sequence[ProviderItem]:
        """Return them without the names of servers, which clients must not see."""
        return [item.without_name() for item in cast("Message", result).provider_items]


@handler
async def ask_model(node: Node[Any], backend: Backend, request: Request) -> Message:
    """Send one request to a model; the client runs the tool calls of the reply."""
    reply = fork(node, backend.stream(request), formats=backend.formats)
    node.call_handler(show(reply.text, lambda _: None))
    return await reply.message


# Callable objects that `served_model_of` must not call to make something.
_MODEL_TYPES = (Agent, Group, Backend, HandlerFunction, type)


def served_model_of(given: object, name: str | None = None) -> ServedModel:
    """Return the served model for an object; raise `ConfigurationError` if it cannot be served.

    A function without arguments is called: it makes the object, or an orchestrator for each run.
    """
    if isinstance(given, ServedModel):
        return given
    if isinstance(given, (ConversableAgent, Group)):
        return _ServedConversation(given, name)
    if isinstance(given, Agent):
        return _ServedAgent(cast("Any", given), name)
    if isinstance(given, Backend):
        return _ServedBackend(given, name)
    thing = cast("Any", given)
    if isinstance(given, HandlerFunction) or (isinstance(given, type) and issubclass(given, Job)):
        return _ServedNode(thing, name or thing.__name__)
    if isinstance(given, Orchestrator):
        raise ConfigurationError(
            "an orchestrator has one state: serve a function that makes one for each run"
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
            return _ServedOrchestrator(cast("Any", thing), name or made.name)
        if not callable(made) or isinstance(cast("object", made), _MODEL_TYPES):
            return served_model_of(made, name)
    raise ConfigurationError(
        f"{thing!r:.200} cannot be served: it must be an Agent, a ConversableAgent, a group, a"
        " Backend, a class of jobs, a handler, or a function that makes one of these"
    )


def _refuse(
    run_input: RunInput,
    *,
    fields: bool = False,
    options: bool = False,
    system: bool = True,
    parts: bool = True,
) -> None:
    """Raise `InvalidInput` for parts of the input that this kind of model does not take."""
    if fields and run_input.fields:
        raise InvalidInput("only jobs and handlers have fields", "fields")
    if options and (names := non_default_options(run_input.options)):
        name = names[0]
        known = name in ModelOptions.model_fields
        raise InvalidInput("the server chooses it" if known else "it is not supported here", name)
    if system and any(each.role in ("system", "developer") for each in run_input.messages):
        raise InvalidInput("the server chooses the system prompt", "messages")
    if system and run_input.tools:
        raise InvalidInput("the server chooses the tools", "tools")
    if system and any(each.role == "tool" or each.tool_calls for each in run_input.messages):
        raise InvalidInput("the server runs the tool calls", "messages")
    if parts and any(each.parts for each in run_input.messages):
        raise InvalidInput("images and files are not supported here", "messages")


def _check_parts(backend: Backend, run_input: RunInput) -> None:
    try:
        backend.check_parts(run_input.messages)
    except ConfigurationError:  # its message has details that clients must not see
        text = "this model does not take all of these images or files"
        raise InvalidInput(text, "messages") from None


def _transcript(run_input: RunInput) -> str:
    """Return the conversation as one text, for models that take only one."""
    if len(run_input.messages) == 1:
        return run_input.last_text
    return "\n\n".join(f"{each.role}: {each.content}" for each in run_input.messages)


# --- fields of jobs and handlers


def fields_of(make: Callable[..., Any], name: str) -> list[Field]:
    """Return the parameters that a client may fill: all whose values JSON can express.

    The others keep their defaults, and so do parameters whose names begin with an underscore.
    Raises `ConfigurationError` for such a parameter without a default, and for annotations that
    cannot be read.
    """
    try:
        hints = hints_of(make)
    except Exception as error:  # annotations are a user's code
        raise ConfigurationError(
            f"{name} cannot be served: its annotations cannot be read ({error})"
        ) from error
    fields: list[Field] = []
    for each in parameters_of(make):
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        hint = hints.get(each.name, Any)
        is_live = get_origin(hint) is Annotated and hint.__metadata__ == LIVE_METADATA
        needed = each.default is each.empty or is_live
        named = each.kind is not each.POSITIONAL_ONLY and not each.name.startswith("_")
        adapter = _adapter(hint) if named and not is_live else None
        if adapter is not None:
            takes_text = _takes_text(adapter)
            fields.append(Field(each.name, adapter, needed, takes_text, hint, each.default))
        elif needed:
            raise ConfigurationError(
                f"{name} cannot be served: JSON has no values for its field {each.name!r}. Give it"
                " a default, or serve a handler that fills it"
            )
    return fields


def _adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return the validator of a type; None if JSON cannot express its values."""
    try:
        with warnings.catch_warnings():
            # Make the warning an error: pydantic only warns when it leaves a member out of a union,
            # and would show `Callable | None` to clients as null.
            warnings.simplefilter("error", PydanticJsonSchemaWarning)
            adapter: TypeAdapter[Any] = TypeAdapter(hint)
            adapter.json_schema()
    except (PydanticUserError, PydanticJsonSchemaWarning, NameError, TypeError):
        return None
    return adapter


def _takes_text(adapter: TypeAdapter[Any]) -> bool:
    try:
        adapter.validate_python("text")
    except ValidationError as error:
        # Other errors mean that it accepts some texts: a date, or one of several words.
        return not all(each["type"].endswith("_type") for each in error.errors())
    return True
