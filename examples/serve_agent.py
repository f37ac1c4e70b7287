"""An agent served over HTTP, for any OpenAI client, and with a chat page.

    pip install "anabranch[http,local,serve]"
    python examples/serve_agent.py [--model openai:gpt-5-mini] [--port 8000]

Then open http://127.0.0.1:8000, or:

    OPENAI_BASE_URL=http://127.0.0.1:8000/v1 OPENAI_API_KEY=none your-program

A tool with `approve=True` asks on the page before it runs. If a client cannot approve calls, they
are denied.
"""

from __future__ import annotations

import argparse

from anabranch import Agent, AnabranchError, connect, tool
from anabranch.serve import serve


@tool(read_only=True)
def opening_hours(day: str) -> str:
    """Get the opening hours of the library on a day of the week."""
    closed = day.lower() in ("sunday", "monday")
    return f"The library is closed on {day}." if closed else f"On {day} it is open from 9 to 17."


@tool(approve=True)
def reserve(title: str) -> str:
    """Reserve a book of the library."""
    return f"{title!r} is reserved."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="local", help="as in anabranch.connect")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    try:
        backend = connect(options.model)
        agent = Agent(backend, "You help visitors of a library.", name="librarian",
                      tools=[opening_hours, reserve])  # fmt: skip
        serve(agent).run(
            port=options.port, on_start=lambda url: print(f"chat page: {url}/", flush=True)
        )
    except (AnabranchError, OSError) as error:
        raise SystemExit(f"{error}") from None


if __name__ == "__main__":
    main()
