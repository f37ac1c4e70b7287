"""The programs of docs/agents.md and agent-replies.md with the real small model."""

import re
from contextlib import redirect_stdout
from io import StringIO
from typing import Any

import pytest
from support.paths import ROOT

PAGES = [ROOT / "docs" / name for name in ("agents.md", "agent-replies.md")]
DOCS = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


@pytest.mark.usefixtures("small_model")
def test_the_programs_of_the_docs_run() -> None:
    """One after the other, unchanged; replies are shortened to save time."""
    programs = re.findall(r"```python\n(.*?)```", DOCS, re.DOTALL)
    code = "\n".join(programs).replace(
        'connect("local")', 'connect("local", max_tokens=6, temperature=0)'
    )
    space: dict[str, Any] = {"__name__": "docs"}
    out = StringIO()
    with redirect_stdout(out):
        exec(compile(code, "docs/agents.md", "exec"), space)

    assert out.getvalue().startswith("sage ")
    assert space["city"].name == "Paris"
