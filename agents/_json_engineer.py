"""`JsonEngineer`: a prompt engineer with a prompt in a file, whose model answers with JSON."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from ..messages import Message
from ._engineer import PromptEngineer
from ._parser import JsonParser
from ._state import State
from ._strategy import Prompts

__all__ = ["JsonEngineer"]

S = TypeVar("S", bound=State)
T = TypeVar("T")


class JsonEngineer(PromptEngineer[S], Generic[S, T]):
    """Fills the prompt `name`, and reads answers as `model`, any type that pydantic knows.

    The prompt's `{form}` is what the model is told about the JSON. An answer that does not fit is
    signalled. `parser.options()` are for the agent's model: once `parser.constrain` is set, the
    server allows nothing but what fits.
    """

    def __init__(self, name: str, model: type[T], prompts: Prompts) -> None:
        self.name = name
        self.prompts = prompts
        self.parser: JsonParser[T] = JsonParser(model)

    def render_prompt(self, obs: str | None, history: list[Message], state: S) -> None:
        """Make the prompt anew."""
        values = {"form": self.parser.instruction(), **self.values(obs, state)}
        history[:] = [Message(role="user", content=self.prompts.fill(self.name, **values))]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: S
    ) -> str:
        """Read it, and let `accept` take it."""
        try:
            accepted = self.accept(self.parser.parse(response), state)
        except ValueError as error:
            state.signal_error(
                str(error), f"That cannot be used: {error}\nAnswer again, correctly."
            )
            return response
        return response if accepted is None else accepted

    @abstractmethod
    def values(self, obs: str | None, state: S) -> Mapping[str, Any]:
        """Return the values for the prompt's fields."""

    @abstractmethod
    def accept(self, said: T, state: S) -> str | None:
        """Take what was said, or raise `ValueError`; return the agent's answer if it is another."""
