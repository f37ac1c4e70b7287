"""Count phrases that make text hard to read, in docstrings, comments and Markdown.

make prose                  # all figures, and each file above its limit
make prose ARGS=store       # the phrases of one folder, with their places

The phrases are an indicator. Respected projects use them 0.4 to 1.9 times per 1,000 words.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from support.paths import ROOT

__all__ = ["Figures", "figures", "files", "odd_sentences"]

ODD = re.compile(
    r"\b(?:what (?:is|was|are|were|has|had|can|may|comes|came|goes|they|it|he|one|others|each|all)"
    r"|nobody|somebody|whoever|who(?: is| are| was| has| had)? (?:then|it is)|anew|likewise"
    r"|so many|manieth|stands? (?:there|in|on|at|for itself)|stood|hear[sd]?|told|tells? of|spoke"
    r"|said twice|goes? on|went on|gone|gives? its|by itself|of (?:its|their|his|our) own"
    r"|as (?:it|they) (?:is|are|was|were)|(?:is|are|has|had) no|lets? go|let(?:s)? all|are those"
    r"|is (?:that|one) (?:which|that|of)|(?:in|of|by|for|to|from|with) which|(?:in|of) whose"
    r"|does it|lives? (?:of|on|in)|in vain|thereby|therein|whereof|beyond that|apart from"
    r"|take[sn]? up|put away|meanwhile|at home|elsewhere)\b",
    re.IGNORECASE,
)
LONG_WORDS = 30
PROMPTS = "agents/orchestration/prompts"  # models read these, and recorded requests have them


class Figures(NamedTuple):
    """The counts of one or more files."""

    words: int
    odd: int
    sentences: int
    long: int

    @property
    def odd_per_1000(self) -> float:
        """Odd phrases per 1,000 words."""
        return 1000 * self.odd / max(self.words, 1)

    @property
    def mean(self) -> float:
        """Words per sentence."""
        return self.words / max(self.sentences, 1)

    @property
    def long_share(self) -> float:
        """The share of sentences above 30 words."""
        return self.long / max(self.sentences, 1)


def files() -> list[Path]:
    """Return each Python and Markdown file of the repository, without links and build folders."""
    folders = [path for path in ROOT.iterdir() if path.is_dir() and is_source(path)]
    found = [path for folder in folders for path in folder.rglob("*") if is_source(path)]
    return sorted(
        path
        for path in [*found, *ROOT.iterdir()]
        if path.suffix in {".py", ".md"} and path.is_file()
    )


def is_source(path: Path) -> bool:
    """Return whether a path is neither hidden, nor built, nor a link, nor below a link."""
    parts = path.relative_to(ROOT).parts
    if path.relative_to(ROOT).is_relative_to(PROMPTS):
        return False
    if any(part.startswith(".") or part in {"build", "dist", "node_modules"} for part in parts):
        return False
    return not any((ROOT / Path(*parts[: i + 1])).is_symlink() for i in range(len(parts)))


def figures(paths: list[Path]) -> Figures:
    """Return the sum of the counts of several files."""
    return Figures(*map(sum, zip(*map(figures_of, paths), strict=True)))


@cache
def figures_of(path: Path) -> Figures:
    """Return the counts of one file."""
    found = [sentence for _line, sentence in sentences(path)]
    words = [count_words(sentence) for sentence in found]
    odd = sum(len(ODD.findall(sentence)) for sentence in found)
    return Figures(sum(words), odd, len(found), sum(each > LONG_WORDS for each in words))


def odd_sentences(path: Path) -> Iterator[tuple[int, str, list[str]]]:
    """Yield line, sentence and phrases of each sentence with an odd phrase."""
    for line, sentence in sentences(path):
        if phrases := ODD.findall(sentence):
            yield line, sentence, phrases


def sentences(path: Path) -> Iterator[tuple[int, str]]:
    """Yield each sentence of three words or more, with the line where its text begins."""
    reader = python_texts if path.suffix == ".py" else markdown_texts
    for line, text in reader(path.read_text(encoding="utf-8")):
        text = re.sub(r"`[^`]*`", "X", text)
        for part in re.split(r"(?<=[.?!])\s+|\n\s*\n|\n\s*(?:[-*]|\d+\.) ", text):
            if count_words(part) >= 3:
                yield line, " ".join(part.split())


def count_words(text: str) -> int:
    """Return the number of words of a text."""
    return len(re.findall(r"[A-Za-z][A-Za-z'-]*", text))


def python_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each docstring and each block of comments."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if text := ast.get_docstring(node):
            yield node.body[0].lineno, text
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if token.start[0] != last + 1 and block:
            yield first, " ".join(block)
            block = []
        if not block:
            first = token.start[0]
        block.append(token.string.lstrip("#! "))
        last = token.start[0]
    if block:
        yield first, " ".join(block)


def markdown_texts(source: str) -> Iterator[tuple[int, str]]:
    """Yield each paragraph and list, without code blocks, tables and headings."""
    source = re.sub(r"```.*?```", lambda m: "\n" * m.group().count("\n"), source, flags=re.DOTALL)
    line = 1
    for block in re.split(r"(\n\s*\n)", source):
        if block.strip() and not block.lstrip().startswith(("|", "<", "#")):
            yield line, re.sub(r"\]\([^)]*\)", "]", block)
        line += block.count("\n")


def main(names: list[str]) -> None:
    """Print the figures of the repository, or the odd phrases below the given paths."""
    paths = files()
    if names:
        below = [(ROOT / name).resolve() for name in names]
        for path in paths:
            if any(path == each or each in path.parents for each in below):
                for line, sentence, phrases in odd_sentences(path):
                    print(f"{path.relative_to(ROOT)}:{line}: {phrases}: {sentence[:200]}")
        return
    for suffix in (".py", ".md"):
        chosen = [path for path in paths if path.suffix == suffix]
        total = figures(chosen)
        print(
            f"{suffix} {total.words} words, {total.odd_per_1000:.1f} odd per 1,000, "
            f"mean {total.mean:.1f}, over {LONG_WORDS} words {100 * total.long_share:.1f} %"
        )
    for path in paths:
        own = figures([path])
        if own.odd_per_1000 > 10 and own.odd > 1:
            print(f"{own.odd_per_1000:6.1f}  {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main(sys.argv[1:])
