"""Documents for an agent: an `Index`, which finds passages that a model can cite.

    _index       `Index`: add documents, search them, be a tool
    _folder      goes through a folder: which files, how many at once, the progress
    _reader      reads one file at a time in a separate process, `_read_main`
    _pieces      cuts documents into pieces, and counts tokens
    _quote       passages as text for a model, and the citations in its answer
    _store       the interface of a store, and the words that it searches
    _sqlite      the store in an SQLite file, with the vectors in memory: `_vectors`
    _postgres    the store in PostgreSQL
    errors       the error of an index

Needs the extra `knowledge` for files other than plain text, and for vectors; `postgres` for an
index in PostgreSQL.
"""

from __future__ import annotations

from ._folder import FolderProgress as FolderProgress
from ._folder import FolderReport as FolderReport
from ._index import Embed as Embed
from ._index import Index as Index
from ._pieces import estimate_tokens as estimate_tokens
from ._pieces import token_counter as token_counter
from ._quote import Passage as Passage
from ._store import IndexedDocument as IndexedDocument
from .errors import KnowledgeError as KnowledgeError
