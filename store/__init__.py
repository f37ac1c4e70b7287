"""Durable runs: a journal records what a run has done, so that a restart does not repeat it.

A *run* has *executions*: one for each time that a process acquires it. An execution appends *rows*
to the journal and finds those of earlier executions there (these are *recorded*). A *root* is the
first job of the run, or a later *round*: a job that another job of the run puts beside itself.
An *effect* is something that a run does outside the process. A *letter* is a message to a run: a
signal, an answer, a cancel.

For users:

- `_durable`: `Durable`, a job whose result is recorded, and its calls, `self.durable`
- `_journal`: `Journal`, all runs of one file; `_view`: a run's state and its questions to a person
- `_session`: a run that stays open and is called repeatedly, such as an agent's session
- `errors`: the exceptions

An execution:

- `_run`: acquires a run, drives it to its end and releases it
- `_execution`: its state: the rows in memory, the appended rows, and the error that stopped it
- `_roots`: the roots that it puts; `_inbox`: letters
- `_unreplayed`: recorded entries that it has not replayed yet
- `_match`: finds the recorded entry for a new effect or cancel; holds a new effect until then, or
  parks the run

A node of an execution:

- `_scope`: implements `commander/durable.py`, which the engine calls for each node: `enter` gives a
  put node its identity and ordinal, `effect` waits for recorded entries before a new effect
- `_identity`: computes an identity that is the same in each execution
- `_completion_order`: ends nodes in the same order in each execution
- `_effect`: calls outside the process; `_call`: a tool that the run's own code calls
- `_reply`: replies of models and their usage; `_conversation`: durable conversations
- `_transaction`: SQL statements in the journal's own database

Values:

- `_codec`: values by their annotation; `_json`: values as JSON, and digests; `_failure`: exceptions
- `_keys`: removes the keys of backends from all that is written

The file:

- `_journal_file`: runs, rows and letters in SQL; `_purge`: removes runs in small transactions
- `_file_thread`: the thread that executes the SQL, and its commits
- `_open_file`: opens the file, or explains why it cannot; defines the tables
- `_checksums`: stored values with checksums; `_last_commit`: detects lost commits
- `_lock`: the lease of a run
"""

from ..tools import Done as Done
from ..tools import NotDone as NotDone
from ..tools import Unknown as Unknown
from ..tools import effect_key as effect_key
from ._codec import Live as Live
from ._codec import live as live
from ._durable import Durable as Durable
from ._durable import DurableCalls as DurableCalls
from ._journal import Journal as Journal
from ._journal_file import Letter as Letter
from ._journal_file import Row as Row
from ._journal_file import RunRow as RunRow
from ._session import Session as Session
from ._session import SessionCall as SessionCall
from ._view import Partial as Partial
from ._view import PendingApproval as PendingApproval
from ._view import PendingDoubt as PendingDoubt
from ._view import RunView as RunView
from ._view import RunWait as RunWait
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
