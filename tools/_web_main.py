"""The process that reads one web page: its text, its article or its search hits.

Runs as a script, so that a page that takes forever or all memory can be killed with it. Standard
input is one line of JSON, the request, followed by the page. Standard output is the answer as JSON.
A failed import is an answer; any other error ends the process.
"""

import json
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

MEMORY_BYTES = 2 * 2**30
# of a title, an address or an excerpt
MAX_FIELD_CHARS = 2000


def main() -> None:
    """Read the request and the page, and write the answer."""
    request = json.loads(sys.stdin.buffer.readline())
    set_limits(request["seconds"])
    page = sys.stdin.buffer.read().decode(request["codec"], "replace").removeprefix("\ufeff")
    try:
        found = {"text": read_text, "article": read_article, "hits": read_hits}[request["wanted"]](
            page, request
        )
        answer = {"found": found}
    except ImportError as error:
        answer = {"missing": f"{type(error).__name__}: {error}"}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def set_limits(seconds: float) -> None:
    """Bound the memory and CPU time of this process, in case its parent dies before killing it."""
    with suppress(ImportError, ValueError, OSError, OverflowError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))


def read_text(page: str, request: Any) -> str:
    """Return the page unchanged."""
    return page[: request["max_chars"]]


def read_article(page: str, request: Any) -> str:
    """Return the main text of an HTML page as Markdown."""
    from trafilatura import extract

    extracted = extract(
        page,
        url=request["url"],
        output_format="markdown",
        include_links=True,
        with_metadata=True,
        favor_recall=True,
        fast=True,
    )
    return (extracted or "")[: request["max_chars"]]


def read_hits(page: str, request: Any) -> list[list[str]] | None:
    """Return title, address and excerpt of each hit; None for a page that is no list of hits."""
    read = json_rows if request["syntax"] == "json" else xpath_rows
    found = read(page, request)
    return found and [[clean(field) for field in row] for row in found]


def clean(field: str) -> str:
    """Return a field on one line, without lone surrogates, which JSON can contain."""
    return " ".join(field[: 10 * MAX_FIELD_CHARS].encode("utf-8", "replace").decode().split())[
        :MAX_FIELD_CHARS
    ]


def json_rows(page: str, request: Any) -> list[list[str]] | None:
    """Read JSON: `rows` is the key of the list, `fields` are keys of its objects."""
    try:
        found = json.loads(page)[request["rows"]]
    except (ValueError, RecursionError, LookupError, TypeError):
        return None
    if not isinstance(found, list):
        return None
    objects = [cast("dict[str, Any]", row) for row in cast("list[Any]", found) if type(row) is dict]
    made = [[str(row.get(field) or "") for field in request["fields"]] for row in objects]
    return [row for row in made if row[1]][: request["limit"]]


def xpath_rows(page: str, request: Any) -> list[list[str]] | None:
    """Read HTML or XML by XPath; the parser fetches and expands nothing."""
    etree: Any = import_module("lxml.etree")
    options = {"encoding": "utf-8", "no_network": True, "recover": True, "huge_tree": False}
    if request["syntax"] == "html":
        parser = etree.HTMLParser(**options)
    else:
        parser = etree.XMLParser(resolve_entities=False, load_dtd=False, **options)
    try:
        root = etree.fromstring(page.encode("utf-8", "replace"), parser)
    except etree.LxmlError:
        return None
    if root is None or not root.xpath(f"boolean({request['sign']})"):
        return None
    rows = root.xpath(request["rows"])[: request["limit"]]
    return [[str(row.xpath(f"string({field})")) for field in request["fields"]] for row in rows]


if __name__ == "__main__":
    main()
