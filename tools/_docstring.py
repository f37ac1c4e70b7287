"""Read what a docstring says of a function and of each of its parameters.

Google (`Args:`), numpy (`Parameters` underlined) and reST (`:param x:`) are understood, each in
the plain form that their guides show.
"""

from __future__ import annotations

import inspect
import re

__all__ = ["parse_docstring"]

SECTIONS = "args|arguments|parameters|params|returns|return|yields|raises|examples?|notes?|see also"
PARAMETER_SECTIONS = {"args", "arguments", "parameters", "params"}

GOOGLE = re.compile(rf"({SECTIONS}):\s*", re.IGNORECASE)
NUMPY = re.compile(rf"({SECTIONS})", re.IGNORECASE)
REST = re.compile(r":(\w+)((?:\s+[^\s:]+)*?)(?:\s+\*{0,2}(\w+))?:\s*(.*)")
GOOGLE_ENTRY = re.compile(r"\s+\*{0,2}(\w+)\s*(?:\([^)]*\))?:\s*(.*)")
NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
REST_FIELDS = {"param", "parameter", "arg", "argument", "key", "keyword"}


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """Return the description and the parameters' descriptions by name.

    The description is what stands before the first section or field.
    """
    lines = inspect.cleandoc(text or "").splitlines()
    start = 0
    while start < len(lines) and not (_section(lines, start) or REST.fullmatch(lines[start])):
        start += 1
    found: dict[str, list[str]] = {}
    inside = False  # a section of parameters, or the field of one
    names: list[str] = []
    entry = GOOGLE_ENTRY
    depth: int | None = None
    for n, line in enumerate(lines[start:], start):
        piece = line
        if section := _section(lines, n):
            inside, names, depth = section in PARAMETER_SECTIONS, [], None
            entry = GOOGLE_ENTRY if line.rstrip().endswith(":") else NUMPY_ENTRY
        elif match := REST.fullmatch(line):
            inside = match[1] in REST_FIELDS and match[3] is not None
            names, depth = [match[3]] if inside else [], 0
            piece = match[4]
        elif inside and line.strip():
            indent = len(line) - len(line.lstrip())
            depth = indent if depth is None else depth
            if indent <= depth and (match := entry.fullmatch(line)):
                names = re.split(r"\s*,\s*", match[1])
                piece = match[2] if entry is GOOGLE_ENTRY else ""
        else:
            continue
        for name in names:
            found.setdefault(name, []).append(piece.strip())
    description = "\n".join(lines[:start]).strip()
    return description, {name: " ".join(filter(None, pieces)) for name, pieces in found.items()}


def _section(lines: list[str], n: int) -> str | None:
    """Return the name of the section that line `n` opens, in lower case."""
    if match := GOOGLE.fullmatch(lines[n]):
        return match[1].lower()
    underlined = n + 1 < len(lines) and re.fullmatch(r"-{3,}\s*", lines[n + 1])
    match = NUMPY.fullmatch(lines[n].rstrip()) if underlined else None
    return match[1].lower() if match else None
