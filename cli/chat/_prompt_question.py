"""Questions in the input line of the live prompt, such as the approval of a tool call.

This module keeps type-ahead and pastes from answering a question:

- A question appears only after the person has stopped typing. Their draft is restored afterwards.
- A guarded question accepts a line only if no further key follows for a short time. A line that
  arrives in a burst with more keys is refused, and the rest of the burst is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document

from .. import _keyboard

__all__ = ["PromptQuestion", "PromptQuestions"]


@dataclass
class PromptQuestion:
    """A question in the input line. `rows(columns, rows)` returns the lines above it."""

    label: str
    rows: Callable[[int, int], list[str]]
    future: asyncio.Future[str | None]
    guarded: bool
    draft: Document | None = None  # the text that the question replaced; None until it is shown
    accepting: asyncio.TimerHandle | None = None  # accepts the answer unless a key comes before
    in_burst = False  # an answer was refused, and the burst of keys may continue


class PromptQuestions:
    """Asks in the input line `buffer`. `draw` redraws it, and `note` prints a line above it."""

    def __init__(
        self,
        buffer: Callable[[], Buffer],
        draw: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._draw = draw
        self._note = note
        self._question: PromptQuestion | None = None
        self._one_question = asyncio.Lock()
        self._last_key = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether a question is visible, or waits until the person stops typing."""
        return self._question is not None

    @property
    def is_waiting_for_pause(self) -> bool:
        """Whether a question waits until the person stops typing."""
        return self._question is not None and self._question.draft is None

    @property
    def visible(self) -> PromptQuestion | None:
        """The question in the input line, None if there is none."""
        return None if self.is_waiting_for_pause else self._question

    async def ask(
        self,
        label: str,
        rows: Callable[[int, int], list[str]] = lambda columns, rows: [],
        draft: str = "",
        *,
        guarded: bool = True,
    ) -> str | None:
        """Ask in the input line, below `rows(columns, rows)`; return None for no answer.

        The question appears once the person stops typing. Their draft is restored afterwards. The
        answer to a guarded question must be typed alone, not pasted or in a burst of keys.
        """
        async with self._one_question:
            future = asyncio.get_running_loop().create_future()
            self._question = question = PromptQuestion(label, rows, future, guarded)
            try:
                await self._wait_until_quiet()
                question.draft = self._buffer().document
                self._buffer().reset(Document(draft))
                self._draw()
                return await future
            finally:
                self._question = None
                if question.accepting is not None:
                    question.accepting.cancel()
                if question.draft is not None:
                    self._buffer().reset(question.draft)
                self._draw()

    async def _wait_until_quiet(self) -> None:
        checked = asyncio.get_running_loop().time()
        is_typing = checked - self._last_key < _keyboard.STOPPED_SECONDS

        def has_typed() -> bool:
            nonlocal checked
            before, checked = checked, asyncio.get_running_loop().time()
            return self._last_key >= before

        await _keyboard.wait_until_quiet(has_typed, is_typing=is_typing)

    def answer(self, question: PromptQuestion, text: str) -> None:
        """Accept a line, for a guarded question only if no further key follows."""
        if not question.guarded:
            self._settle(question, text)
        elif question.in_burst:
            self._refuse_burst(question)
        else:
            loop = asyncio.get_running_loop()
            seconds = _keyboard.QUIET_SECONDS
            question.accepting = loop.call_later(seconds, self._settle, question, text)

    def dismiss(self) -> bool:
        """End the visible question without an answer; return False if there is none."""
        if (question := self.visible) is None:
            return False
        self._settle(question, None)
        return True

    def end(self) -> None:
        """End any question without an answer."""
        if self._question is not None:
            self._settle(self._question, None)

    def _settle(self, question: PromptQuestion, text: str | None) -> None:
        self._last_key = 0.0  # so the keys of this answer do not delay the next question
        if not question.future.done():
            question.future.set_result(text)

    def note_key(self, _: object) -> None:
        """Record that a key was pressed."""
        now, before = asyncio.get_running_loop().time(), self._last_key
        self._last_key = now
        question = self._question
        if question is None:
            return
        if question.accepting is not None:
            question.accepting.cancel()
            question.accepting = None
            self._refuse_burst(question)
        elif question.in_burst and now - before > _keyboard.QUIET_SECONDS:
            question.in_burst = False
            self._buffer().reset()

    def _refuse_burst(self, question: PromptQuestion) -> None:
        question.in_burst = True
        self._buffer().reset()
        self._note("(not accepted: type the answer alone, do not paste it)")
