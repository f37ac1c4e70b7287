"""The README's program, word for word."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


async def test_the_readmes_program_chats_with_the_real_model(tmp_path: Path) -> None:
    """Two rounds on the small model, then the end of the input."""
    program = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[0]
    (tmp_path / "chat.py").write_text(program)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "chat.py",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=tmp_path,
    )
    said = b"What is the capital of France?\nWhat is the weather in Paris?\n"
    async with asyncio.timeout(300):
        out, err = await process.communicate(said)
    assert process.returncode == 0, err.decode()
    assert "Paris" in out.decode()
    assert out.count(b"> ") == 3


def test_the_readme_names_no_extra_that_is_not_there() -> None:
    """The table of extras is the one in pyproject.toml."""
    import tomllib

    settings = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())
    extras = set(settings["project"]["optional-dependencies"]) - {"all"}
    named = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert named == extras
