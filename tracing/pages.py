"""`assemble`: an HTML page in one file from its parts, with a policy that allows only these."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path

__all__ = ["assemble"]

SHARED_PARTS = Path(__file__).parent / "page"


def assemble(folder: Path, scripts: Iterable[str], policy: str) -> tuple[str, str]:
    """Return the page from the parts in `folder`, and its content security policy.

    The style sheet and script that all pages share come before those of the folder. In `policy`,
    `{style}` and `{script}` stand for the hashes of the page's style sheet and script.
    """
    style = _read(SHARED_PARTS / "base.css") + _read(folder / "page.css")
    parts = [_read(SHARED_PARTS / "base.js"), *(_read(folder / f"{name}.js") for name in scripts)]
    script = '(() => {\n"use strict";\n' + "\n".join(parts) + "})();\n"
    policy = policy.format(style=_hash(style), script=_hash(script))
    page = _read(folder / "page.html")
    symbols = _read(SHARED_PARTS / "symbols.html")
    values = {"policy": policy, "style": style, "symbols": symbols, "script": script}
    for name, value in values.items():
        page = page.replace(f"{{{{{name}}}}}", value, 1)
    return page, policy


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
