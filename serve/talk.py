"""Served things for the person at this machine's own terminal: the same runs, without HTTP.

The terminal needs no web server, so no module that is imported here needs the extra `serve`.
"""

from __future__ import annotations

from ..commander import Event
from ..tools import Approval
from ._fields import BadQuestion as BadQuestion
from ._log import EntriesExpired as Gone
from ._log import Entry as Entry
from ._run import Run
from ._served import Question as Question
from ._served import Served as Served
from ._served import serve_thing as serve_thing

__all__ = ["BadQuestion", "Entry", "Gone", "Question", "Served", "Talk", "serve_thing"]


class Talk(Run):
    """A run for one person, who may see all of it; a cancel stops the answer.

    Texts of agents below are entries of kind "text" in `log` too, with `aside`: they are no part of
    the answer. Like any run it never fails: `failure` is its exception, which is not logged.
    """

    def __init__(self, served: Served, question: Question) -> None:
        super().__init__(served, question, "", "cancel", asks=True)
        self.failure: BaseException | None = None

    def approval(self, number: int) -> Approval | None:
        """Return the call that waits for approval under a number; None if it has an answer."""
        found = self._questions.get(number)
        return found if isinstance(found, Approval) else None

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    def _add_inner_text(self, event: Event) -> None:
        self._add("text", text=event.data, aside=True, **self._speaker)
