"""Documents beside an agent: an `Index` in which passages are found, and cited.

    _index       `Index`: put documents in, search, be a tool
    _folder      which files of a folder are read, and how far it has come
    _reader      reads files in a process of its own: `_read_main`
    _pieces      cuts documents into pieces, of so many `_tokens`
    _words, _vectors   what is looked for
    _quote       how passages are put to a model, and who is cited
    _store       what a store does: `_sqlite`, `_postgres`
    errors       what can go wrong

Needs the extra `knowledge` for other files than plain text, and for vectors; `postgres` for an
index in PostgreSQL.
"""

from __future__ import annotations

from ._folder import Added as Added
from ._folder import Progress as Progress
from ._index import Embed as Embed
from ._index import Index as Index
from ._quote import Passage as Passage
from ._store import Source as Source
from ._tokens import estimate_tokens as estimate_tokens
from ._tokens import token_counter as token_counter
from .errors import KnowledgeError as KnowledgeError
