"""Questions in the line of the live prompt, one after the other.

This is where type-ahead and pastes are kept from answering a question:

- A question appears only after a time without keys, and the person's draft is put away first.
- A guarded question accepts a line only if no further key follows for a short time. A line that
  came in a burst with more keys is refused, and the rest of the burst is dropped.
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
    """A question in the line; `rows` returns the lines above it for a size."""

    label: str
    rows: Callable[[int, int], list[str]]
    future: asyncio.Future[str | None]
    guarded: bool
    draft: Document | None = None  # the text that the question replaced; None: not shown yet
    accepting: asyncio.TimerHandle | None = None  # accepts the answer unless a key comes first
    in_burst = False  # a refused answer came with more keys, and no pause has followed


class PromptQuestions:
    """Asks in the line `buffer`; `draw` redraws it and `note` prints a line above it."""

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
        """Whether a question is shown or waits until the person stops typing."""
        return self._question is not None

    @property
    def is_holding_back(self) -> bool:
        """Whether a question waits until the person stops typing."""
        return self._question is not None and self._question.draft is None

    @property
    def standing(self) -> PromptQuestion | None:
        """The question that is shown in the line."""
        return None if self.is_holding_back else self._question

    async def ask(
        self,
        label: str,
        rows: Callable[[int, int], list[str]] = lambda columns, rows: [],
        draft: str = "",
        *,
        guarded: bool = True,
    ) -> str | None:
        """Ask in the line, below `rows(columns, rows)`; return None for no answer.

        The question waits until the person stops typing; their draft is restored afterwards. The
        answer to a guarded question must be typed by itself.
        """
        async with self._one_question:
            future = asyncio.get_running_loop().create_future()
            self._question = question = PromptQuestion(label, rows, future, guarded)
            try:
                await self._until_quiet()
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

    async def _until_quiet(self) -> None:
        checked = asyncio.get_running_loop().time()
        is_typing = checked - self._last_key < _keyboard.STOPPED_SECONDS

        def has_typed() -> bool:
            nonlocal checked
            before, checked = checked, asyncio.get_running_loop().time()
            return self._last_key >= before

        await _keyboard.until_quiet(has_typed, is_typing=is_typing)

    def answer(self, question: PromptQuestion, text: str) -> None:
        """Accept a line; for a guarded question, only once no further key has come."""
        if not question.guarded:
            self._settle(question, text)
        elif question.in_burst:
            self._refuse_burst(question)
        else:
            loop = asyncio.get_running_loop()
            seconds = _keyboard.QUIET_SECONDS
            question.accepting = loop.call_later(seconds, self._settle, question, text)

    def dismiss(self) -> bool:
        """End the question that is shown without an answer; False if there is none."""
        if (question := self.standing) is None:
            return False
        self._settle(question, None)
        return True

    def end(self) -> None:
        """End any question without an answer."""
        if self._question is not None:
            self._settle(self._question, None)

    def _settle(self, question: PromptQuestion, text: str | None) -> None:
        self._last_key = 0.0  # the keys of this answer do not delay the next question
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
        self._note("(that came together with more; an answer is typed by itself)")
