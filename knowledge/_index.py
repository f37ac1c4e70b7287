"""`Index`: documents in pieces, found by their words and by their meaning."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias, get_args

import anyio.to_thread

from ..commander.errors import ConfigurationError, MissingExtra
from ..commander.stored_names import stored_name
from ..tools import Tool
from ._folder import Added, Progress, add_files, gone, name_of, origin_of, shown, walk
from ._pieces import Piece, cut
from ._postgres import PostgresStore, is_address
from ._quote import Passage, cited, passage, quote_passages
from ._read_main import encodable, read_text
from ._reader import Reader, Refused, Said
from ._sqlite import SqliteStore
from ._store import Document, Maker, Source, Store, other_maker
from ._tokens import CountTokens, estimate_tokens
from ._vectors import pack_vector
from .errors import KnowledgeError

__all__ = ["Embed", "Index"]

logger = logging.getLogger("anabranch.knowledge")

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Makes a vector of each text: `connect("openai:text-embedding-3-small").embed`."""

Text: TypeAlias = Literal["markdown", "html", "code", "text"]
TEXTS = get_args(Text)
FORMAT = 1  # of how documents are cut; with another, all are cut anew
BATCH = 64  # texts that are embedded at once
CANDIDATES = 50  # that are looked for by words, and as many by vectors
MOST = 2**63 - 1  # that a store can be asked for
DAMPING = 60  # of ranks: Cormack, Clarke and Buettcher, "Reciprocal Rank Fusion", SIGIR 2009


class Index:
    """Documents in a file of SQLite, or in PostgreSQL, in which passages are found.

        notes = Index("notes.db")
        await notes.add_folder("docs/")
        for hit in await notes.search("how do I cancel a subtree?"):
            print(hit.place, hit.text)

    Words are found without any model: English ones in whatever form, others as they stand. With
    `embed` a vector of each piece is kept too, and the two orders are merged by rank. An index has
    the vectors of one `embedder`, of whom the name is taken from `embed` unless given. Without
    `embed` words alone are looked for, which is said once in the log.

    Documents are cut into pieces of at most `size` tokens, of which up to `overlap` stand in the
    next one too; `count_tokens` counts them, by default by an estimate.

    The file is opened at the first call and let go by `aclose`; `":memory:"` is gone then. It may
    be used from any loop, by several at once and by several processes. What is put in or removed is
    so as a whole or not at all, however the process ends.
    """

    def __init__(
        self,
        name: str | os.PathLike[str],
        *,
        embed: Embed | None = None,
        embedder: str | None = None,
        size: int = 300,
        overlap: int = 30,
        count_tokens: CountTokens = estimate_tokens,
    ) -> None:
        if size < 16 or not 0 <= overlap <= size // 2:
            raise ValueError(
                f"size={size!r}, overlap={overlap!r}: a piece has at least 16 tokens, and at most"
                " half of them from the one before"
            )
        self.name = os.fspath(name)
        self._store: Store
        if is_address(self.name):
            self._store = PostgresStore(self.name)
            self.name = self._store.name  # without the password
        else:
            self._store = SqliteStore(self.name)
        self._embed = embed
        self._embedder = embedder or (None if embed is None else _name_of(embed))
        self._size = size
        self._overlap = overlap
        self._count_tokens = count_tokens
        self._said = False  # that words alone are looked for

    async def __aenter__(self) -> Self:
        await self._store.maker()  # so that a file that cannot be used is one error, here
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()

    def __getstate__(self) -> object:
        raise ConfigurationError(
            f"the index {self.name!r} cannot be copied or sent to another process: make one there,"
            " of the same name"
        )

    async def aclose(self) -> None:
        """Let go of the file. Twice is harmless."""
        await self._store.close()

    # --- what is in it

    async def add(self, name: str, text: str, kind: Text = "markdown") -> int:
        """Put a text in the place of what was called so; return how many pieces it has."""
        if kind not in TEXTS:
            raise ValueError(f"kind={kind!r}: a text is one of {', '.join(TEXTS)}")
        try:
            blocks = await anyio.to_thread.run_sync(read_text, text, kind)
        except ImportError as error:
            raise MissingExtra(f"reading {kind}", "knowledge") from error
        said = Said(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), blocks)
        return await self._put(encodable(name), encodable(name), said)

    async def add_file(
        self, path: str | os.PathLike[str], *, max_bytes: int = 50_000_000, timeout: float = 60.0
    ) -> int:
        """Read a file anew; return how many pieces it has.

        Raises `KnowledgeError` for one that cannot be read, is larger than `max_bytes`, or takes
        more than `timeout` seconds. What was there of it before stays then.
        """
        file = Path(path)
        async with Reader(max_bytes=max_bytes, timeout=timeout) as reader:
            try:
                said = await reader.read(file)
            except Refused as error:
                why = f"cannot take {str(path)!r}, which {error}"
                raise KnowledgeError(self.name, why, "give it another file") from None
        assert said is not None
        return await self._put(name_of(file), origin_of(file), said)

    async def add_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        progress: bool | Callable[[Progress], object] = False,
        max_bytes: int = 50_000_000,
        timeout: float = 60.0,
    ) -> Added:
        """Read the files of a folder and of those in it that have changed; forget those gone.

        Hidden files, links that lead out of it, and files whose kind is not known by their name are
        left out. One that cannot be read, is larger than `max_bytes` or takes more than `timeout`
        seconds is reported, and what was there of it before stays. With `progress` the standard
        error shows how it goes, or a function of yours is called. Cancelled, all files that were
        read by then are in the index.
        """
        root = Path(folder)
        if not await anyio.to_thread.run_sync(root.is_dir):
            why = f"cannot take {str(folder)!r}, which is no folder"
            raise KnowledgeError(self.name, why, "name one that is there")
        known = {each.origin: each for each in await self._store.sources()}
        report = Added()
        files = await anyio.to_thread.run_sync(walk, root, report)
        mark = self._mark()

        async def take(file: Path, reader: Reader) -> None:
            origin, name = origin_of(file), name_of(file)
            before = known.get(origin)
            digest, _, how = ("", "", "") if before is None else before.digest.partition(" ")
            try:
                said = await reader.read(file, digest if how == mark else None)
            except (Refused, MissingExtra) as error:
                report.refused[name] = str(error)
                return
            if said is None:
                report.unchanged.append(name)
                if before is not None and before.name != name:
                    await self._store.rename(origin, name)
                return
            count = await self._put(name, origin, said)  # while others are put in
            report.pieces += count
            (report.added if before is None else report.changed).append(name)

        with shown(progress) as tell:
            await add_files(files, take, tell, max_bytes=max_bytes, timeout=timeout)
        for names in (report.added, report.changed, report.unchanged):
            names.sort()  # several were read at once
        there = {origin_of(file) for file in files}
        lost = await anyio.to_thread.run_sync(gone, root, known.keys() - there)
        await self._store.remove(lost)
        report.removed += sorted(known[origin].name for origin in lost)
        return report

    async def remove(self, name: str) -> int:
        """Remove the documents of this name; return how many there were."""
        name = encodable(name)
        found = [each.origin for each in await self._store.sources() if each.name == name]
        return await self._store.remove(found)

    async def sources(self) -> list[Source]:
        """Return the documents, by name."""
        return await self._store.sources()

    # --- what is found

    async def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return up to `k` passages, the best first; none for a question without a text.

        Raises what `embed` raises, and `KnowledgeError` if its vectors are not those of the index.
        """
        if k < 1:
            raise ValueError(f"k={k!r}: at least one passage is asked for")
        if not question.strip():  # as that of an image alone: servers refuse to embed it
            return []
        most = min(max(CANDIDATES, k), MOST)
        orders = [await self._store.by_words(question, most)]
        if self._embed is not None and (maker := await self._store.maker()) is not None:
            ((vector, here),) = await self._vectors([question])
            if here != maker:
                raise other_maker(self.name, maker, here)
            orders.append(await self._store.by_vector(vector, most))
        elif self._embed is None and not self._said:
            self._said = True
            logger.info("the index %r is searched by words alone, without embed=", self.name)
        scores: dict[int, float] = {}
        for order in orders:
            for rank, number in enumerate(order, 1):
                scores[number] = scores.get(number, 0.0) + 1 / (DAMPING + rank)
        best = sorted(scores, key=lambda number: -scores[number])[:k]
        return [passage(each, scores[each.number]) for each in await self._store.read(best)]

    def as_tool(
        self, name: str = "search_documents", description: str = "", k: int = 5
    ) -> Tool[Any, Any]:
        """Return a tool by which a model searches; what it finds has numbers to cite."""

        async def search_documents(query: str) -> str:
            """Search the documents for passages that answer a question.

            Args:
                query: What to look for, in words that may stand there.
            """
            return quote_passages(await self.search(query, k))

        return Tool(search_documents, name=name, description=description or None, read_only=True)

    @staticmethod
    def cited(answer: str | None, found: Iterable[str]) -> list[dict[str, Any]]:
        """Return what an answer cites of what the tool of `as_tool` gave, in its order.

        Each citation has `number`, `place` and `heading`. A number that was not found is none. None
        instead of an answer gives all that could be cited.
        """
        return cited(answer, [*found])

    # --- inside

    async def _put(self, name: str, origin: str, said: Said) -> int:
        pieces = await anyio.to_thread.run_sync(
            cut, said.blocks, self._size, self._overlap, self._count_tokens
        )
        document = Document(name, origin, f"{said.digest} {self._mark()}", pieces)
        if self._embed is not None and pieces:
            made = await self._vectors([_text_of(piece) for piece in pieces])
            document = document._replace(vectors=[each for each, _ in made], maker=made[0][1])
        await self._store.put(document)
        return len(pieces)

    def _mark(self) -> str:
        """Say how documents are cut and embedded: those that were so are not read again."""
        counter = stored_name(self._count_tokens).partition(":")[2]
        return f"{FORMAT} {self._size} {self._overlap} {counter} {self._embedder or ''}"

    async def _vectors(self, texts: Sequence[str]) -> list[tuple[bytes, Maker]]:
        assert self._embed is not None
        assert self._embedder is not None
        found: list[tuple[bytes, Maker]] = []
        for start in range(0, len(texts), BATCH):
            asked = texts[start : start + BATCH]
            vectors = await self._embed(asked)
            try:
                if len(vectors) != len(asked):
                    raise ValueError(f"it gave {len(vectors)} vectors for {len(asked)} texts")
                found += [(pack_vector(v), Maker(self._embedder, len(v))) for v in vectors]
                if len({maker for _, maker in found}) > 1:
                    raise ValueError("its vectors differ in size")
            except (ValueError, TypeError, OverflowError) as error:
                why = f"cannot use what {self._embedder} gave: {error}"
                raise KnowledgeError(self.name, why, "give another embed=") from error
        return found


def _name_of(embed: Embed) -> str:
    """Return by which name an embedder is known again in another process."""
    backend: Any = getattr(embed, "__self__", None)
    with suppress(AttributeError):
        return f"{backend.provider}:{backend.model}"
    qualname: Any = getattr(embed, "__qualname__", None)
    if not isinstance(qualname, str) or "<" in qualname:
        raise ConfigurationError(
            f"{embed!r} has no name by which its vectors would be known again: give embedder="
        )
    return stored_name(embed)


def _text_of(piece: Piece) -> str:
    return f"{piece.heading}\n{piece.text}" if piece.heading else piece.text
