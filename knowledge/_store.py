"""Where an index is kept: what each kind of store does, and what it keeps of a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from ._pieces import Piece
from .errors import KnowledgeError

__all__ = ["Document", "Found", "Maker", "Source", "Store", "other_maker"]


class Source(NamedTuple):
    """A document of an index."""

    name: str
    """As passages name it: for a file its path, as it was given."""
    origin: str
    """Which document it is: for a file its absolute path. One document is there once."""
    digest: str
    """Of its bytes, and of how it was cut and embedded."""
    pieces: int
    added: float
    """In seconds since the epoch."""


class Maker(NamedTuple):
    """Who makes the vectors of an index, and of how many numbers they are."""

    embedder: str
    size: int


class Document(NamedTuple):
    """A document that is to be put into an index; it has a vector for each piece, or none."""

    name: str
    origin: str
    digest: str
    pieces: Sequence[Piece]
    vectors: Sequence[bytes] = ()
    maker: Maker | None = None


class Found(NamedTuple):
    """A piece as it stands in an index."""

    number: int  # which no other piece of the index has, or will have
    source: str
    piece: Piece


class Store(Protocol):
    """An open index. All methods raise `KnowledgeError` if it cannot be read or written."""

    async def close(self) -> None:
        """Let go of it; the next call opens it again. Twice is harmless."""
        ...

    async def put(self, document: Document) -> None:
        """Put a document in the place of the one of its origin: all of it, or nothing.

        Refuses pieces with vectors of another maker than those that are there, or with none.
        """
        ...

    async def rename(self, origin: str, name: str) -> None:
        """Call a document by another name."""
        ...

    async def remove(self, origins: Sequence[str]) -> int:
        """Remove documents, all or none; return how many of them were there."""
        ...

    async def sources(self) -> list[Source]:
        """Return the documents, by name."""
        ...

    async def maker(self) -> Maker | None:
        """Return who makes the vectors; None if there are none yet."""
        ...

    async def by_words(self, question: str, most: int) -> list[int]:
        """Return the pieces in which words of a question stand, the best first."""
        ...

    async def by_vector(self, vector: bytes, most: int) -> list[int]:
        """Return the pieces whose vectors are nearest to one of `pack_vector`, nearest first."""
        ...

    async def read(self, numbers: Sequence[int]) -> list[Found]:
        """Return pieces, in the order of their numbers as given; those that are gone are not."""
        ...


def other_maker(name: str, before: Maker | None, maker: Maker | None) -> KnowledgeError:
    """Return the error that says that the vectors of an index are another maker's."""
    there = "no vectors" if before is None else f"vectors of {before.size} by {before.embedder}"
    here = "none is given" if maker is None else f"here are {maker.size} by {maker.embedder}"
    why = f"has {there}, and {here}"
    return KnowledgeError(name, why, "give the same embed=, or make another index")
