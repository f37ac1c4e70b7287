"""A process of its own that reads HTML from standard input and writes its text as Markdown.

Run as a script, by its path: a page that takes forever, or all memory, is killed with it.
"""

import sys
from contextlib import suppress

MEMORY = 2 * 2**30


def main() -> None:
    """Extract the main text of the page at the address that is the first argument."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    from trafilatura import extract

    text = extract(
        sys.stdin.buffer.read().decode("utf-8", "replace"),
        url=sys.argv[1],
        output_format="markdown",
        include_links=True,
        with_metadata=True,
        favor_recall=True,
        fast=True,
    )
    sys.stdout.buffer.write((text or "").encode("utf-8", "replace"))


if __name__ == "__main__":
    main()
