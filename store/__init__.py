"""Durable runs: what has been done is kept in a journal, and is not done again after a restart.

Words: a *run* has *lives*, one for each time that a process takes it up. What is *kept* is a *row*
of its journal; what an earlier life has kept is *recorded*. A *root* is the job that the run began
with, or a later *round*, which is put outside the tree of its putter. An *effect* is something done
outside. A *letter* is what somebody sends to a run: a signal, an answer, a cancel.

- `_durable`: `Durable`, a job whose result is kept, and what it may call, as `self.durable`
- `_shape`: how its class says what is written, and what is `Live`
- `_ledger`: one run in memory: what its journal has, and how more is added
- `_scope`: a node of a run: who it is, what the journal has of it, what is added as it goes on
- `_endings`: in which order nodes end whose outcome the journal has; `_held`: nodes whose cancel is
  kept, until they are cancelled again; `_usage`: what nodes have spent
- `_put`: how a round was put; `_transaction`: statements in the journal's own database
- `_call`: a tool that is called without a model
- `_effect`, `_reply`: what is done outside, and what models said; `_inbox`: what is sent to a run
- `_conversation`: conversations whose messages are rows
- `_approvals`: the questions that runs have for a person, and the answers
- `_run`: a run is taken up, driven to its end and handed back; `_journal`: `Journal`, all runs
- `_session`: a run that stays open, and is called again and again
- `_file`: the SQLite file (`_schema`), its one writer (`_writer`), and who has a run (`_lock`)
- `_seal`: values in the file, with a sum of their bytes and through the user's codec
- `_canonical`, `_codec`, `_failure`: values as JSON
- `_look`: what a run is about, for somebody who does not drive it; `_gone`: what its code does not
  come to any more
- `errors`: what can go wrong with a journal and its runs

The engine asks a node's scope (`commander/scope.py`) when the node is put, tried again and closed;
tools ask it for effects, backends for replies. Nothing below knows this room.
"""

from ..tools import Done as Done
from ..tools import NotDone as NotDone
from ..tools import Unknown as Unknown
from ..tools import effect_key as effect_key
from ._approvals import PendingApproval as PendingApproval
from ._approvals import PendingDoubt as PendingDoubt
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
from ._shape import Live as Live
from ._shape import live as live
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
