"""Agents on the real small model: the docs' programs, JSON, a stream."""

import asyncio
import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from anabranch.agents import Agent

DOCS = (Path(__file__).parent.parent / "docs" / "agents.md").read_text()


def test_the_programs_of_the_docs_run() -> None:
    """One after the other, as they stand; replies are cut short to save time."""
    layers = DOCS[: DOCS.index("## Agents that converse")]
    programs = re.findall(r"```python\n(.*?)```", layers, re.DOTALL)
    code = "\n".join(programs).replace(
        'connect("local")', 'connect("local", max_tokens=20, seed=1)'
    )
    space: dict[str, Any] = {"__name__": "docs"}
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(code, "docs/agents.md", "exec"), space)

    assert out.getvalue().startswith("sage ")
    assert len(space["posts"]) == 3
    assert space["city"].name == "Paris"
    assert "Blogger('Blogger')\n  (writer): Agent('writer', " in out.getvalue()


async def test_json_fits_and_grows_on_the_real_model() -> None:
    """Its form is the grammar's, and the stream has all of it."""
    from pydantic import BaseModel

    from anabranch import connect
    from anabranch.agents import JsonParser

    class Colours(BaseModel):
        colours: list[str]

    async with asyncio.timeout(300), connect("local", seed=1) as backend:
        agent = Agent(
            backend, output_format=JsonParser(Colours, constrain=True), max_tokens=80, temperature=0
        )
        seen = [message async for message in agent.stream("Name three colours.")]

    assert isinstance(seen[-1].formatted, Colours)
    assert "".join(m.extra.get("delta", "") for m in seen).endswith(seen[-1].content)
