"""Questions in the line of the prompt, one after the other; a draft there waits meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from prompt_toolkit.buffer import Buffer
from prompt_toolkit.document import Document

from .. import _keyboard

__all__ = ["Asking", "Question"]


@dataclass
class Question:
    """A question: what stands before the answer, and the rows above it, for a size."""

    label: str
    rows: Callable[[int, int], list[str]]
    future: asyncio.Future[str | None]
    guarded: bool
    draft: Document | None = None  # what stood in the line before; None: it is not asked yet
    answered: asyncio.TimerHandle | None = None  # when the answer is known to stand alone
    in_burst = False  # more came with an answer, and keys have come without a pause since


class Asking:
    """Puts questions into the line `buffer`; `draw` draws it anew, `note` says something above."""

    def __init__(
        self,
        buffer: Callable[[], Buffer],
        draw: Callable[[], None],
        note: Callable[[str], None],
    ) -> None:
        self._buffer = buffer
        self._draw = draw
        self._note = note
        self._question: Question | None = None
        self._one = asyncio.Lock()
        self._last_key = 0.0

    @property
    def is_asked(self) -> bool:
        """Whether a question stands in the line, or waits until nobody is typing."""
        return self._question is not None

    @property
    def is_holding_back(self) -> bool:
        """Whether a question waits until nobody is typing: what is typed now is no answer."""
        return self._question is not None and self._question.draft is None

    @property
    def standing(self) -> Question | None:
        """The question that stands in the line."""
        return None if self.is_holding_back else self._question

    async def ask(
        self,
        label: str,
        rows: Callable[[int, int], list[str]] = lambda columns, rows: [],
        draft: str = "",
        *,
        guarded: bool = True,
    ) -> str | None:
        """Ask something in the line, below `rows(columns, rows)`; None for no answer.

        It is asked once nobody is typing, and what was written by then comes back afterwards.
        A guarded one is answered by a line that was typed by itself: what comes in a burst with
        more, as what is pasted does, is no answer. One question at a time, in the order of calls.
        """
        async with self._one:
            question = Question(label, rows, asyncio.get_running_loop().create_future(), guarded)
            self._question = question
            try:
                await self._until_quiet()
                question.draft = self._buffer().document
                self._buffer().reset(Document(draft))
                self._draw()
                return await question.future
            finally:
                self._question = None
                if question.answered is not None:
                    question.answered.cancel()
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

    def answer(self, question: Question, text: str) -> None:
        """Take an answer; of a guarded question, once no key has come behind it."""
        if not question.guarded:
            self._settle(question, text)
        elif question.in_burst:
            self._refuse_burst(question)
        else:  # a key that comes before this takes the answer back
            loop = asyncio.get_running_loop()
            question.answered = loop.call_later(
                _keyboard.QUIET_SECONDS, self._settle, question, text
            )

    def dismiss(self) -> bool:
        """Give the question that stands there no answer; False if there is none."""
        if (question := self.standing) is None:
            return False
        self._settle(question, None)
        return True

    def end(self) -> None:
        """Give no answer to whatever is asked."""
        if self._question is not None:
            self._settle(self._question, None)

    def _settle(self, question: Question, text: str | None) -> None:
        self._last_key = 0.0  # the keys of an answer do not hold up the next question
        if not question.future.done():
            question.future.set_result(text)

    def note_key(self, _: object) -> None:
        """Take note that a key was pressed."""
        now, before = asyncio.get_running_loop().time(), self._last_key
        self._last_key = now
        question = self._question
        if question is None:
            return
        if question.answered is not None:
            question.answered.cancel()
            question.answered = None
            self._refuse_burst(question)
        elif question.in_burst and now - before > _keyboard.QUIET_SECONDS:
            question.in_burst = False
            self._buffer().reset()

    def _refuse_burst(self, question: Question) -> None:
        question.in_burst = True
        self._buffer().reset()
        self._note("(that came together with more; an answer is typed by itself)")
