"""Collect the texts that users of the product can see: errors, help, prompts, status lines, logs.

make messages       # prints one text per line, and writes tests/data/messages.txt
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT, TESTS

__all__ = ["SNAPSHOT", "message_texts"]

SNAPSHOT = TESTS / "data/messages.txt"
NOT_PRODUCT = {"anabranch", "benchmarks", "build", "docs", "examples", "tests"}
SQL = re.compile(
    r"\s*(SELECT|INSERT|UPDATE|DELETE|CREATE|DROP|ALTER|PRAGMA|WITH|BEGIN|SAVEPOINT|FROM|WHERE|AND"
    r"|ORDER|VALUES|ON CONFLICT|JOIN|LEFT|UNION|LIMIT|RELEASE|ROLLBACK|SET|RETURNING|GROUP BY)\b",
    re.IGNORECASE,
)


def message_texts() -> list[str]:
    """Return each text as `file: text`, sorted; `{}` stands for a value."""
    found = set[str]()
    for path in product_files():
        name = path.relative_to(ROOT)
        found.update(f"{name}: {text}" for text in texts_in(path.read_text(encoding="utf-8")))
    return sorted(found)


def product_files() -> Iterator[Path]:
    """Yield each Python file of the product."""
    for folder in sorted(ROOT.iterdir()):
        if folder.name.startswith((".", "_")) or folder.name in NOT_PRODUCT:
            continue
        if (folder / "__init__.py").exists():
            yield from sorted(folder.rglob("*.py"))


def texts_in(source: str) -> Iterator[str]:
    """Yield each literal of three words or more that is neither a docstring nor SQL."""
    tree = ast.parse(source)
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            skipped.add(id(node.value))  # a docstring
        elif isinstance(node, ast.JoinedStr):
            skipped.update(id(part) for part in ast.walk(node) if part is not node)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        text = " ".join(text.split())
        if len(re.findall(r"[A-Za-z]{2,}", text)) >= 3 and " " in text and not SQL.match(text):
            yield text


def main() -> None:
    """Print the texts and store them."""
    texts = message_texts()
    SNAPSHOT.write_text("\n".join(texts) + "\n", encoding="utf-8")
    print("\n".join(texts))


if __name__ == "__main__":
    main()
