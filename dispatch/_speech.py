"""What the user is told: texts of several origins, one after the other, never mixed (F2)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

__all__ = ["Sink", "Speech", "Voice"]

T = TypeVar("T")


class Sink(Generic[T]):
    """A branch, seen from the side of the source: `put` adds an item, `put_all` several.

    They may be other functions once the branch is being read, so they are looked up each time.
    """

    __slots__ = ("put", "put_all")

    def __init__(
        self, put: Callable[[T], None], put_all: Callable[[Iterable[T]], None] | None = None
    ) -> None:
        self.put = put
        self.put_all = put_all or self._put_each

    def _put_each(self, items: Iterable[T]) -> None:
        for item in items:
            self.put(item)


class Voice:
    """One origin of text. What is opened holds the floor until it is closed."""

    __slots__ = ("_speech", "closed")

    def __init__(self, speech: Speech, *, closed: bool = False) -> None:
        self._speech = speech
        self.closed = closed

    def say(self, text: str) -> None:
        """Say more; it waits while another voice has the floor."""
        self._speech.say(self, text)

    def close(self) -> None:
        """Leave the floor to the voices that wait, in the order in which they began."""
        self._speech.close(self)


class Speech:
    """Puts the texts of its voices into one branch, with a newline where the voice changes.

    `said` is all that was put.
    """

    __slots__ = ("_floor", "_last", "_sink", "_waiting", "said")

    def __init__(self, sink: Sink[str]) -> None:
        self.said: list[str] = []
        self._sink = sink
        self._last: Voice | None = None
        self._floor: Voice | None = None
        self._waiting: OrderedDict[Voice, list[str]] = OrderedDict()

    def standing(self) -> Voice:
        """Make a voice that never holds the floor: whatever it has said stands by itself."""
        return Voice(self, closed=True)

    def open(self) -> Voice:
        """Make a voice that takes the floor, now or when it is free."""
        voice = Voice(self)
        if self._floor is None:
            self._floor = voice
        else:
            self._waiting[voice] = []
        return voice

    def say(self, voice: Voice, text: str) -> None:
        """Put `text`, or keep it while another voice has the floor."""
        if self._floor is not None and self._floor is not voice:
            self._waiting.setdefault(voice, []).append(text)
            return
        if self._last is not voice:
            if self._last is not None:
                text = "\n" + text
            self._last = voice
        self.said.append(text)
        self._sink.put(text)

    def close(self, voice: Voice) -> None:
        """Close a voice; if it had the floor, those that wait speak."""
        voice.closed = True
        if voice is self._floor:
            self._floor = None
            self._let_speak()

    def end(self) -> None:
        """Close every voice: the reply is over."""
        for voice in self._waiting:
            voice.closed = True
        if self._floor is not None:
            self.close(self._floor)

    def _let_speak(self) -> None:
        while self._waiting and self._floor is None:
            voice, kept = self._waiting.popitem(last=False)
            if not voice.closed:
                self._floor = voice
            for text in kept:
                self.say(voice, text)
