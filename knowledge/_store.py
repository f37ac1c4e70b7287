"""The interface of a store, and the words of documents and questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol
from unicodedata import normalize

from ._pieces import DocumentPiece
from .errors import KnowledgeError

__all__ = [
    "ACCENT_MARKS",
    "MAX_QUESTION_WORDS",
    "Document",
    "IndexedDocument",
    "Store",
    "StoredPiece",
    "VectorSpace",
    "extract_words",
    "separate_words",
    "vector_space_error",
]


class IndexedDocument(NamedTuple):
    """A document of an index."""

    name: str
    """The name in passages: for a file its path, as it was given."""
    origin: str
    """The identity, of which an index has one document: for a file its absolute path."""
    digest: str
    """Identifies the bytes, and the settings with which they were cut and embedded."""
    pieces: int
    added: float
    """In seconds since the epoch."""


class VectorSpace(NamedTuple):
    """The embedding model of an index, and the number of dimensions of its vectors."""

    embedder: str
    size: int


class Document(NamedTuple):
    """A document to add to an index, with a vector for each piece or none."""

    name: str
    origin: str
    digest: str
    pieces: Sequence[DocumentPiece]
    vectors: Sequence[bytes] = ()
    vector_space: VectorSpace | None = None


class StoredPiece(NamedTuple):
    """A piece of an indexed document."""

    number: int  # unique in the index, also over time
    source: str
    piece: DocumentPiece


class Store(Protocol):
    """An open index. All methods raise `KnowledgeError` if it cannot be read or written."""

    async def close(self) -> None:
        """Close the index; the next call opens it again. Twice is harmless."""
        ...

    async def put(self, document: Document) -> None:
        """Add a document, or replace the one with its origin: completely, or not at all.

        Refuses pieces whose vectors are missing or come from another vector space than those in the
        index.
        """
        ...

    async def rename(self, origin: str, name: str) -> None:
        """Change the name of a document."""
        ...

    async def remove(self, origins: Sequence[str]) -> int:
        """Remove documents, all or none; return how many of them existed."""
        ...

    async def sources(self) -> list[IndexedDocument]:
        """Return the documents, ordered by name."""
        ...

    async def vector_space(self) -> VectorSpace | None:
        """Return the vector space of the index; None if it has no vectors yet."""
        ...

    async def search_words(self, question: str, limit: int) -> list[int]:
        """Return the pieces that contain words of a question, the best first."""
        ...

    async def search_vectors(self, vector: bytes, limit: int) -> list[int]:
        """Return the pieces with the nearest vectors to one of `pack_vector`, nearest first."""
        ...

    async def read(self, numbers: Sequence[int]) -> list[StoredPiece]:
        """Return pieces in the order of `numbers`, without those that no longer exist."""
        ...


def vector_space_error(
    name: str, before: VectorSpace | None, vector_space: VectorSpace | None
) -> KnowledgeError:
    """Return the error for vectors that do not fit the vectors of the index."""
    there = "no vectors" if before is None else f"vectors of {before.size} by {before.embedder}"
    here = (
        "no embedding model is given"
        if vector_space is None
        else f"the given model makes {vector_space.size} by {vector_space.embedder}"
    )
    why = f"has {there}, but {here}"
    return KnowledgeError(name, why, "give the same embed=, or make another index")


MAX_QUESTION_WORDS = 64

# Scripts that are written without spaces: each letter counts as a word.
UNSPACED_SCRIPTS = re.compile(
    r"([\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff])"
)
# Accents on letters that have no composed form in Unicode.
ACCENT_MARKS = re.compile(r"[\u0300-\u036f]")

# Too common in questions to help a search.
COMMON_WORDS = """
a about after all also am an and any are as at be been before being but by can could did do does
doing for from had has have having he her here him his how i if in into is it its may me might
more most must my no nor not of on once only or other our out over own please same she should so
some such tell than that the their them then there these they this those through to too under
until up us very was we were what when where which while who whom why will with would you your
"""

_COMMON_SET = frozenset(COMMON_WORDS.split())


def separate_words(text: str) -> str:
    """Put spaces around letters of scripts without spaces; normalize equal letters."""
    if text.isascii():
        return text
    return UNSPACED_SCRIPTS.sub(r" \1 ", ACCENT_MARKS.sub("", normalize("NFKC", text)))


def extract_words(question: str) -> list[str]:
    """Return the distinct words of a question, without common words if others remain.

    A name with underscores or dots is one word: its parts must be adjacent in the text.
    """
    names = re.findall(r"\w+(?:[._-]\w+)*", separate_words(question[:10_000]))
    # Keep the spelling: lowercasing turns some letters into two.
    words = {word.lower(): word for word in names}
    rare = [word for key, word in words.items() if key not in _COMMON_SET] or [*words.values()]
    return rare[:MAX_QUESTION_WORDS]
