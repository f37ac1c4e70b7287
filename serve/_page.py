"""The page to talk on: one file of HTML, made of the parts in `page/`, that loads nothing else."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

__all__ = ["page"]

PARTS = Path(__file__).parent / "page"
SCRIPTS = "wire", "speech", "talk", "tree", "main"


@cache
def page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers, which let run no script but its own, and frame it nowhere.

    It may ask nobody but the server that it came from.
    """
    style = _part("page.css")
    parts = "\n".join(_part(f"{name}.js") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{parts}}})();\n'
    html = _part("page.html").replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        "default-src 'none'; connect-src 'self'; form-action 'self'; img-src data:;"
        f" script-src '{_hash(script)}'; style-src '{_hash(style)}';"
        " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
        " trusted-types 'none'"
    )
    return html, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
