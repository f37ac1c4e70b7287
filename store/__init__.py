"""Durable runs: the journal records what a run has done, so that a restart does not repeat it.

A *run* has *executions*, one for each time that a process acquires it. An execution finds the
*rows* of earlier ones in the journal (they are *recorded*) and appends its own. A *root* is the job
that the run began with, or a later *round*, which is put outside the tree of its putter. An
*effect* is something done outside of the run. A *letter* is sent to a run: a signal, an answer, a
cancel.

From a user's job to the disk:

- `_durable`: `Durable`, a job whose result is recorded, and `DurableCalls`, as `self.durable`
- `_journal`: `Journal`, all runs of one file; `_view`: a run as others see it, and its questions
- `_run`: an execution begins, drives the run to its end and releases it; `_session`: a run that
  stays open and is called again and again
- `_scope`: the rows of a node; `_identity`: which node of earlier executions it is; `_endings`: the
  order in which nodes end, the same in each execution
- `_effect`: calls outside of the run; `_call`: a tool that the run's own code calls
- `_reply`: replies of models; `_conversation`: conversations whose messages are rows
- `_transaction`: SQL statements in the journal's own database; `_usage`: the usage of nodes
- `_state`: the journal state of one execution: its rows in memory, and what it appends
- `_roots`: the roots that an execution puts; `_inbox`: letters
- `_unreplayed`: recorded entries that are not replayed yet; `_match`: new effects and cancels are
  matched with these
- `_keys`: keys of backends are removed from all that is written
- `_codec`: values by their annotation; `_json`: values as JSON, and digests; `_failure`: exceptions
- `_file`: the journal's file in SQL; `_purge`: runs are removed in small transactions
- `_writer`: the thread that reads and writes the file; `_seal`: values with checksums
- `_schema`: tables, and where a file may be; `_lock`: the lease of a run; `_mark`: a lost WAL is
  noticed
- `errors`: the exceptions

The engine calls a node's scope (`commander/durable.py`) when the node is put, tried again and
closed. Tools ask it for effects, backends for replies. No lower package imports this one.
"""

from ..tools import Done as Done
from ..tools import NotDone as NotDone
from ..tools import Unknown as Unknown
from ..tools import effect_key as effect_key
from ._codec import Live as Live
from ._codec import live as live
from ._durable import Durable as Durable
from ._durable import DurableCalls as DurableCalls
from ._file import Letter as Letter
from ._file import Row as Row
from ._file import RunRow as RunRow
from ._journal import Journal as Journal
from ._session import Session as Session
from ._session import SessionCall as SessionCall
from ._view import Partial as Partial
from ._view import PendingApproval as PendingApproval
from ._view import PendingDoubt as PendingDoubt
from ._view import RunView as RunView
from ._view import Wait as Wait
from .errors import JournalError as JournalError
from .errors import JournalMismatch as JournalMismatch
from .errors import LeaseLost as LeaseLost
from .errors import NotDurable as NotDurable
from .errors import NotPending as NotPending
from .errors import NotStorable as NotStorable
from .errors import RunBusy as RunBusy
from .errors import RunExists as RunExists
from .errors import RunNotFound as RunNotFound
from .errors import RunParked as RunParked
