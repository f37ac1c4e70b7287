"""Durable runs: what has been done is kept in a journal, and is not done again after a restart.

Words: a *run* has *lives*, one for each time that a process takes it up. What is *kept* is a *row*
of its journal; what an earlier life has kept is *recorded*. A *root* is the job that the run began
with, or a later *round*, which is put outside the tree of its putter. An *effect* is something done
outside. A *letter* is what somebody sends to a run: a signal, an answer, a cancel.

The files, on the way from a user's job to the disk:

- `_durable`: `Durable`, a job whose result is kept, and what it may call, as `self.durable`
- `_shape`: what its class says: which fields are written, which are `Live`
- `_journal`: `Journal`, all runs of one file
- `_run`: a run is taken up, driven to its end and handed back
- `_session`: a run that stays open, and is called again and again
- `_scope`: a node of a run: what becomes of it, as rows
- `_identity`: who that node is, and what the journal has of it
- `_endings`: the order in which durable nodes end, the same in each execution
- `_held`: nodes whose cancel the journal has, until they are cancelled again
- `_effect`: what a node does outside
- `_call`: a tool that the run's own code calls: an effect whose result is typed
- `_claim`: which recorded effect a call is
- `_unreplayed`: recorded effects that an execution has not replayed yet
- `_approvals`: the questions that runs have for a person, and the answers
- `_reply`: what models said
- `_conversation`: conversations whose messages are rows
- `_transaction`: statements in the journal's own database
- `_usage`: what nodes and replies have spent
- `_ledger`: one life of a run in memory: what is added, and what stops it
- `_rows`: the rows of the run, as this life finds them
- `_roots`: the roots that this life puts
- `_put`: how a round was put
- `_gone`: what the journal has, and the run's code does not come to any more
- `_inbox`: what is sent to the run
- `_keys`: what is cut out of all that is written
- `_canonical`: inputs as a text, and the digests of which identities are made
- `_codec`: values as JSON, by their types
- `_lost_fields`: fields that a stored value has and its class has not
- `_failure`: exceptions as JSON
- `_file`: the journal's file: runs, rows and letters, in SQL
- `_purge`: removing runs in small transactions
- `_watch`: waiting until the file has changed
- `_lock`: who has a run
- `_mark`: what was committed last, so that a lost WAL is noticed
- `_writer`: the one thread that reads and writes the file
- `_seal`: values as they stand there: through the user's codec, with a sum of their bytes
- `_schema`: the tables, how they are made, and what can be wrong with a file
- `_look`: and back: what a run is about, for somebody who does not drive it
- `errors`: what can go wrong with a journal and its runs

The engine asks a node's scope (`commander/scope.py`) when the node is put, tried again and closed;
tools ask it for effects, backends for replies (`commander/kept.py`). Nothing below knows this room.
"""

from ..tools import Done as Done
from ..tools import NotDone as NotDone
from ..tools import Unknown as Unknown
from ..tools import effect_key as effect_key
from ._approvals import PendingApproval as PendingApproval
from ._approvals import PendingDoubt as PendingDoubt
from ._codec import Live as Live
from ._codec import live as live
from ._durable import Durable as Durable
from ._durable import DurableCalls as DurableCalls
from ._file import Letter as Letter
from ._file import Row as Row
from ._file import RunRow as RunRow
from ._journal import Journal as Journal
from ._look import Partial as Partial
from ._look import RunView as RunView
from ._look import Wait as Wait
from ._session import Session as Session
from ._session import SessionCall as SessionCall
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
