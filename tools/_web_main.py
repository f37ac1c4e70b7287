"""A process of its own that reads one page: its text, its article or the hits of a search.

Run as a script, by its path: a page that takes forever, or all memory, is killed with it. Standard
input is a line of JSON, the request, and then the page; standard output is the answer as JSON. An
import that fails is an answer; whatever else goes wrong ends the process.
"""

import json
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any, cast

MEMORY = 2 * 2**30
FIELD = 2000  # characters of a title, an address or an excerpt


def main() -> None:
    """Do what the request asks."""
    request = json.loads(sys.stdin.buffer.readline())
    limit(request["seconds"])
    page = sys.stdin.buffer.read().decode(request["codec"], "replace").removeprefix("\ufeff")
    try:
        found = {"text": text, "article": article, "hits": hits}[request["wanted"]](page, request)
        answer = {"found": found}
    except ImportError as error:
        answer = {"missing": f"{type(error).__name__}: {error}"}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def limit(seconds: float) -> None:
    """Bound the memory and the time of this process, also if nobody is left to kill it."""
    with suppress(ImportError, ValueError, OSError, OverflowError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, int(seconds) + 2))


def text(page: str, request: Any) -> str:
    """Return the page as it is."""
    return page[: request["most"]]


def article(page: str, request: Any) -> str:
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
    return (extracted or "")[: request["most"]]


def hits(page: str, request: Any) -> list[list[str]] | None:
    """Return title, address and excerpt of each hit; None for a page that is no list of hits."""
    read = json_rows if request["syntax"] == "json" else xpath_rows
    found = read(page, request)
    return found and [[clean(field) for field in row] for row in found]


def clean(field: str) -> str:
    """Return a field on one line, without the halves of characters that JSON can hold."""
    return " ".join(field[: 10 * FIELD].encode("utf-8", "replace").decode().split())[:FIELD]


def json_rows(page: str, request: Any) -> list[list[str]] | None:
    """Read JSON: `rows` is the key of the list, `fields` are keys of what it holds."""
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
    """Read HTML or XML by XPath; nothing in it makes the parser fetch or expand anything."""
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
