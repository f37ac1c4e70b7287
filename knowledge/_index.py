"""`Index`: documents in pieces, found by their words and by their vectors."""

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
from ._folder import (
    FolderProgress,
    FolderReport,
    add_files,
    display_name,
    document_origin,
    find_removed,
    list_files,
    show_progress,
)
from ._pieces import CountTokens, DocumentPiece, cut_pieces, estimate_tokens
from ._postgres import PostgresStore, is_postgres_address
from ._quote import Passage, find_citations, make_passage, quote_passages
from ._read_main import escape_surrogates, read_text
from ._reader import FileContent, FileReader, UnreadableFile
from ._sqlite import SqliteStore
from ._store import Document, IndexedDocument, Store, VectorSpace, vector_space_error
from ._vectors import pack_vector
from .errors import KnowledgeError

__all__ = ["Embed", "Index"]

logger = logging.getLogger("anabranch.knowledge")

Embed: TypeAlias = Callable[[Sequence[str]], Awaitable[Sequence[Sequence[float]]]]
"""Returns a vector for each text: `connect("openai:text-embedding-3-small").embed`."""

TextKind: TypeAlias = Literal["markdown", "html", "code", "text"]
TEXT_KINDS = get_args(TextKind)
# The version of the cutting; documents with another one are cut again.
CUTTING_VERSION = 1
# Texts that are embedded in one request.
EMBEDDING_BATCH = 64
# Pieces that a search takes from each of words and vectors.
CANDIDATES = 50
# The largest limit that both stores accept.
MAX_STORE_LIMIT = 2**63 - 1
# The constant of reciprocal rank fusion: Cormack, Clarke and Buettcher, SIGIR 2009.
RANK_CONSTANT = 60


class Index:
    """Documents in an SQLite file or in PostgreSQL, with a search for passages.

        notes = Index("notes.db")
        await notes.add_folder("docs/")
        for hit in await notes.search("how do I cancel a subtree?"):
            print(hit.place, hit.text)

    Words are found without a model: English ones in any inflection, others as written. With `embed`
    the index also stores a vector of each piece, and merges both results by rank. All vectors of an
    index come from one `embedder`, by default the name of the model behind `embed`. Without `embed`
    a search uses words only, and logs that once.

    Documents are cut into pieces of at most `size` tokens, of which up to `overlap` are repeated in
    the next one. `count_tokens` counts them, by default with an estimate.

    The first call opens the file and `aclose` closes it; an index named `":memory:"` is lost then.
    Several event loops and processes may use an index at once. Each document is added or removed
    completely or not at all, even if the process is killed.
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
                f"size={size!r}, overlap={overlap!r}: size must be at least 16, and overlap at most"
                " half of it"
            )
        self.name: str = os.fspath(name)
        self._store: Store
        if is_postgres_address(self.name):
            self._store = PostgresStore(self.name)
            self.name = self._store.name  # without the password
        else:
            self._store = SqliteStore(self.name)
        self._embed = embed
        self._embedder = embedder or (None if embed is None else _embedder_name(embed))
        self._size = size
        self._overlap = overlap
        self._count_tokens = count_tokens
        self._is_warned = False  # that the log says so

    async def __aenter__(self) -> Self:
        # Open the file now, so that an unusable one fails here.
        await self._store.vector_space()
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
            f"the index {self.name!r} cannot be copied or sent to another process: make one there"
            " with the same name"
        )

    async def aclose(self) -> None:
        """Close the file. Twice is harmless."""
        await self._store.close()

    # --- documents

    async def add(self, name: str, text: str, kind: TextKind = "markdown") -> int:
        """Add a text, or replace the one with this name; return its number of pieces."""
        if kind not in TEXT_KINDS:
            raise ValueError(f"kind must be one of {', '.join(TEXT_KINDS)}, not {kind!r}")
        try:
            blocks = await anyio.to_thread.run_sync(read_text, text, kind)
        except ImportError as error:
            raise MissingExtra(f"reading {kind}", "knowledge") from error
        content = FileContent(hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), blocks)
        return await self._put(escape_surrogates(name), escape_surrogates(name), content)

    async def add_file(
        self, path: str | os.PathLike[str], *, max_bytes: int = 50_000_000, timeout: float = 60.0
    ) -> int:
        """Read a file, also if it did not change; return its number of pieces.

        Raises `KnowledgeError` if it cannot be read, is larger than `max_bytes` or takes more than
        `timeout` seconds. The index then keeps the file's last version.
        """
        file = Path(path)
        async with FileReader(max_bytes=max_bytes, timeout=timeout) as reader:
            try:
                content = await reader.read(file)
            except UnreadableFile as error:
                why = f"cannot add {str(path)!r}, which {error}"
                raise KnowledgeError(self.name, why, "add another file") from None
        assert content is not None
        return await self._put(display_name(file), document_origin(file), content)

    async def add_folder(
        self,
        folder: str | os.PathLike[str],
        *,
        progress: bool | Callable[[FolderProgress], object] = False,
        max_bytes: int = 50_000_000,
        timeout: float = 60.0,
    ) -> FolderReport:
        """Add the new and changed files of a folder, and remove those that no longer exist.

            report = await notes.add_folder("docs/", progress=True)

        Hidden files, links that lead out of the folder, and files of unknown kind are skipped. A
        file that cannot be read, is larger than `max_bytes` or takes more than `timeout` seconds is
        reported, and the index keeps its last version. `progress` shows the progress on standard
        error, or is called with it. After a cancel, all files that were read by then are in the
        index.
        """
        root = Path(folder)
        if not await anyio.to_thread.run_sync(root.is_dir):
            why = f"cannot add {str(folder)!r}, which is no folder"
            raise KnowledgeError(self.name, why, "give an existing folder")
        known = {each.origin: each for each in await self._store.sources()}
        report = FolderReport()
        files = await anyio.to_thread.run_sync(list_files, root, report)
        mark = self._settings_mark()

        async def take(file: Path, reader: FileReader) -> None:
            origin, name = document_origin(file), display_name(file)
            before = known.get(origin)
            digest, _, how = ("", "", "") if before is None else before.digest.partition(" ")
            try:
                content = await reader.read(file, digest if how == mark else None)
            except (UnreadableFile, MissingExtra) as error:
                report.refused[name] = str(error)
                return
            if content is None:
                report.unchanged.append(name)
                if before is not None and before.name != name:
                    await self._store.rename(origin, name)
                return
            # Other files are added during this, so `report` must not be read before.
            count = await self._put(name, origin, content)
            report.pieces += count
            (report.added if before is None else report.changed).append(name)

        with show_progress(progress) as tell:
            await add_files(files, take, tell, max_bytes=max_bytes, timeout=timeout)
        for names in (report.added, report.changed, report.unchanged):
            names.sort()  # in the order of their names, not of their ends
        present = {document_origin(file) for file in files}
        removed = await anyio.to_thread.run_sync(find_removed, root, known.keys() - present)
        await self._store.remove(removed)
        report.removed += sorted(known[origin].name for origin in removed)
        return report

    async def remove(self, name: str) -> int:
        """Remove the documents with this name; return how many there were."""
        name = escape_surrogates(name)
        found = [each.origin for each in await self._store.sources() if each.name == name]
        return await self._store.remove(found)

    async def sources(self) -> list[IndexedDocument]:
        """Return the documents, ordered by name."""
        return await self._store.sources()

    # --- search

    async def search(self, question: str, k: int = 5) -> list[Passage]:
        """Return up to `k` passages, the best first; none for a question without text.

        Raises the errors of `embed`, and `KnowledgeError` if its vectors do not fit the index.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k!r}")
        if not question.strip():  # such as an image only: servers refuse to embed it
            return []
        limit = min(max(CANDIDATES, k), MAX_STORE_LIMIT)
        orders = [await self._store.search_words(question, limit)]
        if (
            self._embed is not None
            and (vector_space := await self._store.vector_space()) is not None
        ):
            ((vector, here),) = await self._vectors([question])
            if here != vector_space:
                raise vector_space_error(self.name, vector_space, here)
            orders.append(await self._store.search_vectors(vector, limit))
        elif self._embed is None and not self._is_warned:
            self._is_warned = True
            logger.info("the index %r is searched by words alone, without embed=", self.name)
        scores: dict[int, float] = {}
        for order in orders:
            for rank, number in enumerate(order, 1):
                scores[number] = scores.get(number, 0.0) + 1 / (RANK_CONSTANT + rank)
        best = sorted(scores, key=lambda number: -scores[number])[:k]
        return [make_passage(each, scores[each.number]) for each in await self._store.read(best)]

    def as_tool(
        self, name: str = "search_documents", description: str = "", k: int = 5
    ) -> Tool[Any, Any]:
        """Return a tool with which a model searches; its results have numbers for citations.

        agent = Agent(backend, tools=[notes.as_tool()])
        """

        async def search_documents(query: str) -> str:
            """Search the documents for passages that answer a question.

            Args:
                query: What to look for, in words that may stand there.
            """
            return quote_passages(await self.search(query, k))

        return Tool(search_documents, name=name, description=description or None, read_only=True)

    @staticmethod
    def cited(answer: str | None, found: Iterable[str]) -> list[dict[str, Any]]:
        """Return the citations in an answer, of the tool results in `found`, in the answer's order.

        Each has `number`, `place` and, if there is one, `heading`. Unknown numbers are ignored.
        With None as answer, all passages in the results are returned.
        """
        return find_citations(answer, [*found])

    # --- helpers

    async def _put(self, name: str, origin: str, content: FileContent) -> int:
        pieces = await anyio.to_thread.run_sync(
            cut_pieces, content.blocks, self._size, self._overlap, self._count_tokens
        )
        document = Document(name, origin, f"{content.digest} {self._settings_mark()}", pieces)
        if self._embed is not None and pieces:
            vectors = await self._vectors([_text_to_embed(piece) for piece in pieces])
            document = document._replace(
                vectors=[each for each, _ in vectors], vector_space=vectors[0][1]
            )
        await self._store.put(document)
        return len(pieces)

    def _settings_mark(self) -> str:
        """Return the settings of cutting and embedding, which identify an unchanged file."""
        counter = stored_name(self._count_tokens).partition(":")[2]
        return f"{CUTTING_VERSION} {self._size} {self._overlap} {counter} {self._embedder or ''}"

    async def _vectors(self, texts: Sequence[str]) -> list[tuple[bytes, VectorSpace]]:
        assert self._embed is not None
        assert self._embedder is not None
        found: list[tuple[bytes, VectorSpace]] = []
        for start in range(0, len(texts), EMBEDDING_BATCH):
            batch = texts[start : start + EMBEDDING_BATCH]
            vectors = await self._embed(batch)
            try:
                if len(vectors) != len(batch):
                    raise ValueError(f"it gave {len(vectors)} vectors for {len(batch)} texts")
                found += [(pack_vector(v), VectorSpace(self._embedder, len(v))) for v in vectors]
                if len({vector_space for _, vector_space in found}) > 1:
                    raise ValueError("its vectors differ in size")
            except (ValueError, TypeError, OverflowError) as error:
                why = f"cannot use what {self._embedder} gave: {error}"
                raise KnowledgeError(self.name, why, "give another embed=") from error
        return found


def _embedder_name(embed: Embed) -> str:
    """Return a name of an embedder that is the same in another process."""
    backend: Any = getattr(embed, "__self__", None)
    with suppress(AttributeError):
        return f"{backend.provider}:{backend.model}"
    qualname: Any = getattr(embed, "__qualname__", None)
    if not isinstance(qualname, str) or "<" in qualname:
        raise ConfigurationError(
            f"{embed!r} has no name that identifies its vectors: give embedder="
        )
    return stored_name(embed)


def _text_to_embed(piece: DocumentPiece) -> str:
    return f"{piece.heading}\n{piece.text}" if piece.heading else piece.text
