"""`anabranch runs` with unusual input: one line, a status, and JSON if requested."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.runs_command import begin, python, run_runs, runs_json

pytest.importorskip("typer", reason="the command line is not installed: anabranch[cli]")

CODEC = """
class Turned:
    def encode(self, data):
        return data[::-1]
    def decode(self, data):
        return data[::-1]
turned = Turned()
"""


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["show", "nobody"], 2, "ConfigurationError: the journal 'runs.db' has no run 'nobody'"),
        (["list", "--state", "nix"], 2, "ConfigurationError: unknown state 'nix'"),
        (["purge", "--before", "99999999999d"], 2, "--before must be a time span"),
        (
            ["fork", "nap", "a\nb", "--at", "0"],
            2,
            "a run_id must be a text of 1 to 1,000 characters",
        ),
        (["resume", "gone"], 1, "since it was cancelled"),
        (["cancel", "gone"], 1, "which is over (cancelled)"),
        (["resume", "nap", "--app", "nix"], 2, "--app nix cannot be imported"),
        (["list", "--journal", "orders.py"], 1, "JournalError: the journal 'orders.py' is no SQL"),
    ],
)
async def test_an_error_is_json_too(
    options: list[str], status: int, said: str, tmp_path: Path
) -> None:
    """The JSON is on standard output, in addition to the line on standard error."""
    await begin(tmp_path, "nap=Nap(1)", "gone=Nap(1)")
    await run_runs(tmp_path, "cancel", "gone")
    found, out, err = await run_runs(tmp_path, *options, "--json")
    assert found == status
    assert said in json.loads(out)["error"]
    assert err.startswith("anabranch: ")
    assert err.count("\n") == 1


@pytest.mark.parametrize("value", ["NaN", "1e999", "Infinity", "[" * 5000], ids=lambda v: v[:9])
async def test_what_is_no_json_is_sent_as_text(value: str, tmp_path: Path) -> None:
    """Values such as NaN, which only Python reads as JSON, are sent as text."""
    await begin(tmp_path, "nap=Nap(1)")
    sent = await runs_json(tmp_path, "signal", "nap", "x", value)
    assert sent["value"] == value


async def test_a_long_value_leaves_the_other_columns_their_place(tmp_path: Path) -> None:
    """In a wide pipe and in a narrow terminal the other columns stay visible."""
    await begin(tmp_path, "mail=Mail('x' * 5000)")
    await python(
        tmp_path,
        "-c",
        "from orders import *\nfrom anabranch import run\n"
        "def long() -> str: return 'long ' * 5000\n"
        "class Long(Durable[str]):\n"
        "    async def task(self): return await self.durable.step(long)\n"
        "run(Long(), journal='runs.db', run_id='long')\n",
    )
    for columns in ("80", "200"):
        _, out, _ = await run_runs(tmp_path, "show", "long", COLUMNS=columns)
        assert any(line.split()[:1] == ["1"] and "result" in line for line in out.splitlines())


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
async def test_any_encoding_of_the_output(encoding: str, tmp_path: Path) -> None:
    """Characters outside the encoding are escaped; the JSON is complete."""
    name = "\N{GRINNING FACE} grün \u202e"
    await begin(tmp_path, f"{name}=Nap(1)")
    for options in (["list"], ["show", name], ["list", "--json"]):
        status, out, err = await run_runs(tmp_path, *options, PYTHONIOENCODING=encoding)
        assert (status, err) == (0, "")
    assert json.loads(out)[0]["run_id"] == name


async def test_a_journal_with_a_codec(tmp_path: Path) -> None:
    """An environment variable names the codec. If it is missing or wrong, an error says so."""
    await begin(tmp_path)
    (tmp_path / "codec.py").write_text(CODEC)
    await python(
        tmp_path,
        "-c",
        "from orders import *\nfrom codec import turned\nfrom anabranch import run\n"
        "print(run(Pack('pen'), journal=Journal('coded.db', codec=turned), run_id='a'))\n",
    )
    coded = ["show", "a", "--journal", "coded.db"]
    status, out, _ = await run_runs(tmp_path, *coded, ANABRANCH_CODEC="codec:turned")
    assert status == 0
    assert "item: pen" in out
    for name, said in [("", "open it with the codec"), ("codec:nix", "codec has no nix")]:
        status, out, err = await run_runs(tmp_path, *coded, ANABRANCH_CODEC=name)
        assert said in err
        assert status


@pytest.mark.parametrize(
    ("command", "status", "said"),
    [
        ("list --json >&-", 0, ""),
        ("show nap >&-", 0, ""),
        ("show nobody 2>&-", 2, ""),
        ("purge --before 0s <&-", 2, "Confirm with --yes"),
        ("show nap --rows >/dev/full", 1, "No space left"),
    ],
)
async def test_a_stream_that_is_closed_or_full(
    command: str, status: int, said: str, tmp_path: Path
) -> None:
    """The effect of the command is the same, without a traceback."""
    await begin(tmp_path, "nap=Nap(1)", "gone=Nap(1)")
    await run_runs(tmp_path, "cancel", "gone")
    program = f"{sys.executable} -m anabranch runs {command}"
    found = await asyncio.to_thread(
        subprocess.run, program, shell=True, cwd=tmp_path, capture_output=True, text=True
    )
    assert found.returncode == status
    assert said in found.stderr
    assert found.stderr.count("\n") <= 1
