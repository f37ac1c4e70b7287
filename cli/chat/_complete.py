"""What the prompt completes: commands, what may follow them, and files after `@`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document

__all__ = ["ChatCompleter", "Choices"]

Choices: TypeAlias = Callable[[], Iterable[tuple[str, str]]]
"""What may follow a command: each with a few words about it."""


class ChatCompleter(Completer):
    """Completes commands by their beginning, what follows them by any part, and files by `files`.

    `commands` has a line of help for each, `choices` what may follow some of them.
    """

    def __init__(
        self, commands: Mapping[str, str], choices: Mapping[str, Choices], files: Completer
    ) -> None:
        self._commands = commands
        self._choices = choices
        self._files = files

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield what may stand where the cursor is."""
        before = document.text_before_cursor
        if not before.startswith("/") or "\n" in before:
            yield from self._files.get_completions(document, complete_event)
            return
        name, space, argument = before.partition(" ")
        if not space:
            for each, words in self._commands.items():
                if each.startswith(name):
                    yield Completion(each, -len(name), display_meta=words)
        elif name in self._choices:
            sought = argument.casefold().split()
            for text, words in self._choices[name]():
                there = f"{text} {words}".casefold()
                if all(word in there for word in sought):
                    yield Completion(text, -len(argument), display_meta=words)
        else:
            yield from self._files.get_completions(document, complete_event)
