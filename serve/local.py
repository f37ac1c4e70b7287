"""`LocalRun`: runs of served models in this process, without HTTP, for `anabranch chat`.

The terminal needs no web server, so this module imports nothing that needs the extra `serve`.
"""

from __future__ import annotations

from ..commander import Event
from ..tools import Approval
from ._run import Run
from ._run_log import EntriesExpired as EntriesExpired
from ._run_log import Entry as Entry
from ._served_model import InvalidInput as InvalidInput
from ._served_model import RunInput as RunInput
from ._served_model import ServedModel as ServedModel
from ._served_model import served_model_of as served_model_of

__all__ = [
    "EntriesExpired",
    "Entry",
    "InvalidInput",
    "LocalRun",
    "RunInput",
    "ServedModel",
    "served_model_of",
]


class LocalRun(Run, name="Talk"):
    """A run for the person at this terminal, who may see all of it.

    `log` also has the texts of agents below the speaker, as entries of kind "text" with `aside`.
    Like any run it never fails: `failure` is its exception, which is not logged. The end of its
    only reader cancels it.
    """

    def __init__(self, served: ServedModel, run_input: RunInput) -> None:
        super().__init__(served, run_input, "", "cancel", can_ask=True)
        self.failure: BaseException | None = None

    def approval(self, number: int) -> Approval | None:
        """Return the call with this question's number that waits for approval; else None."""
        found = self._questions.get(number)
        return found if isinstance(found, Approval) else None

    def _fail(self, error: BaseException) -> None:
        self.failure = error

    def _add_inner_text(self, event: Event) -> None:
        self._add("text", text=event.data, aside=True, **self._text_fields)
