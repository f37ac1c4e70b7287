"""The chat page: one file of HTML that loads no other."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from ..tracing.pages import assemble

__all__ = ["page"]

SCRIPTS = "wire", "speech", "talk", "tree", "main"
POLICY = (
    "default-src 'none'; connect-src 'self'; form-action 'self'; img-src data:;"
    " script-src '{script}'; style-src '{style}';"
    " base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script';"
    " trusted-types 'none'"
)


@cache
def page() -> tuple[str, dict[str, str]]:
    """Return the page and its headers: no other script runs, no other site can frame it.

    It can connect only to its own server.
    """
    html, policy = assemble(Path(__file__).parent / "page", SCRIPTS, POLICY)
    return html, {
        "Content-Security-Policy": policy,
        "X-Content-Type-Options": "nosniff",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
