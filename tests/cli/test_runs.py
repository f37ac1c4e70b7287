"""`anabranch runs` with a real journal: output, effects, and one line for each error."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from support.chat_command import environment
from support.runs_command import RUNS, begin, python, run_runs, runs_json
from support.waiting import wait_until

from anabranch.cli import _runs_view
from anabranch.store import Durable, Journal


class Nap(Durable[None]):
    hours: int


SHOP = ("--live", "shop=orders:shop")


def outside(folder: Path) -> list[str]:
    """Return the effects of the runs."""
    path = folder / "outside.log"
    return path.read_text().splitlines() if path.exists() else []


async def resumed(folder: Path, run_id: str, *options: str) -> str:
    """Resume a run to its end; return its output."""
    status, out, err = await run_runs(folder, "resume", run_id, *options)
    assert status == 0, err
    return out


def taking_up(folder: Path, run_id: str, *options: str) -> subprocess.Popen[str]:
    """Resume a run in a process that continues."""
    return subprocess.Popen(
        [*RUNS, "resume", run_id, *options],
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


async def waits(folder: Path, run_id: str) -> dict[str, Any]:
    """Return the waits of a run once a process executes it and it waits."""
    async with Journal(str(folder / "runs.db")) as journal:
        async with asyncio.timeout(60):
            seen = None
            while not ((view := await journal.look(run_id)).run.owner and view.waits):
                seen = await journal._file.watch(seen)
    return view.waits[-1]._asdict()


# --- list and show


async def test_runs_are_listed_the_newest_first_and_filtered(tmp_path: Path) -> None:
    """Filters are the state, a prefix of the name, and a limit."""
    await begin(tmp_path, "a-1=Nap(1)", "b-1=Nap(1)", "a-2=Nap(0)")
    assert await resumed(tmp_path, "a-2") == '{\n  "slept": 0\n}\n'

    async def names(*options: str) -> list[str]:
        return [each["run_id"] for each in await runs_json(tmp_path, "list", *options)]

    assert await names() == ["a-2", "b-1", "a-1"]
    assert await names("--state", "pending") == ["b-1", "a-1"]
    assert await names("--prefix", "a-") == ["a-2", "a-1"]
    assert await names("--limit", "1") == ["a-2"]
    assert await names("--state", "failed") == []
    _, out, _ = await run_runs(tmp_path, "list", "--limit", "1")
    assert "there are more" in out
    _, out, _ = await run_runs(tmp_path, "list", "--state", "failed")
    assert "no run matches" in out


async def test_very_many_runs_are_lines_that_say_what_a_table_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Columns are aligned for names of any width."""
    async with Journal(tmp_path / "runs.db") as journal:
        for name in ("a-1", "b" * 30, "\u6587\u66f8"):
            await journal.start(Nap(1), run_id=name)
        views = [await journal.look(run.run_id) for run in await journal.runs()]
    _runs_view.show_runs(views)
    table = capsys.readouterr().out
    monkeypatch.setattr(_runs_view, "MAX_TABLE_RUNS", 2)
    _runs_view.show_runs(views)
    lines = capsys.readouterr().out.splitlines()
    # Their ages may be a second apart.
    texts = [re.sub(r"\b\d+ s\b", "N s", line).split() for line in (*lines, *table.splitlines())]
    assert texts[: len(lines)] == texts[len(lines) :]
    assert len({cell_len(line.split("pending")[0]) for line in lines[1:]}) == 1


async def test_a_journal_without_runs_says_how_one_is_started(tmp_path: Path) -> None:
    """The text says how to start a run; the JSON is an empty list."""
    await begin(tmp_path)
    status, out, _ = await run_runs(tmp_path, "list")
    assert status == 0
    assert "has no runs yet" in out
    assert "--run-id NAME" in out
    assert await runs_json(tmp_path, "list") == []


async def test_a_run_is_shown_with_all_its_rows(tmp_path: Path) -> None:
    """The text has the last rows, or all with --rows; the JSON has all."""
    await begin(tmp_path, "order=Order('A-17', note='two words')")
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    assert await resumed(tmp_path, "order", *SHOP) == "A-17: 6 for 2, fine\n"
    found = await runs_json(tmp_path, "show", "order")
    assert found["state"] == "completed"
    assert found["class"] == "orders:Order"
    assert found["inputs"] == {"order": "A-17", "note": "two words"}
    assert found["result"] == "A-17: 6 for 2, fine"
    assert [each["number"] for each in found["history"]] == list(range(1, found["rows"] + 1))
    assert [each["value"] for each in found["letters"]] == ["fine"]
    _, out, _ = await run_runs(tmp_path, "show", "order", "--rows")
    shown = [line.split()[0] for line in out.splitlines() if line.split()]
    assert set(map(str, range(1, found["rows"] + 1))) <= set(shown)
    assert "two words" in out
    assert "A-17: 6 for 2, fine" in out


async def test_a_long_history_is_cut_and_says_so(tmp_path: Path) -> None:
    """`--rows` shows all."""
    await begin(tmp_path, "nap=Nap(0)")
    program = (
        "import asyncio\nfrom anabranch.store import Journal, Durable\nclass Many(Durable[int]):\n"
        "    async def task(self):\n        for _ in range(30): self.durable.random()\n"
        "        return 1\nasync def main():\n    async with Journal('runs.db') as journal:\n"
        "        await journal.run(Many(), run_id='many')\nasyncio.run(main())\n"
    )
    (tmp_path / "many.py").write_text(program)
    await python(tmp_path, "many.py")
    _, out, _ = await run_runs(tmp_path, "show", "many")
    assert "earlier rows: --rows shows all" in out
    _, whole, _ = await run_runs(tmp_path, "show", "many", "--rows")
    assert "earlier rows" not in whole
    assert len(whole.splitlines()) > len(out.splitlines())


async def test_what_looks_like_a_key_is_not_shown(tmp_path: Path) -> None:
    """Neither the table nor the JSON shows keys of known formats or keys in the environment."""
    key, own = "sk-proj-abcdefgh1234567890abcdefgh", "a secret of my own"
    await begin(tmp_path, f"order=Order({key!r}, note='it is {own}')")
    for options in (["list"], ["list", "--json"], ["show", "order"], ["show", "order", "--json"]):
        status, out, _ = await run_runs(tmp_path, *options, SHOP_API_KEY=own)
        assert status == 0
        assert key not in out
        assert own not in out
    assert "***" in out


# --- taking up


async def test_a_run_is_taken_up_where_it_was(tmp_path: Path) -> None:
    """Effects are not repeated; Ctrl-C and a signal suspend the run with a note."""
    await begin(tmp_path, "order=Order('A-17')")
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        child = taking_up(tmp_path, "order", *SHOP)
        assert (await waits(tmp_path, "order"))["name"] == "feedback"
        await wait_until(
            lambda: outside(tmp_path)[-1] == "open" or "weigh ink" in outside(tmp_path)
        )
        child.send_signal(number)
        out, err = await asyncio.to_thread(child.communicate)
        assert (child.returncode, out) == (status, "")
        assert "order is suspended" in err
        assert "Continue: anabranch runs resume order" in err
        assert "Traceback" not in err
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    assert await resumed(tmp_path, "order", *SHOP) == "A-17: 6 for 2, fine\n"
    did = outside(tmp_path)
    assert sorted(each for each in did if each.startswith("weigh")) == ["weigh ink", "weigh pen"]
    assert did.count("open") == did.count("close") == 3


async def test_a_run_whose_process_was_killed_is_marked_and_taken_up(tmp_path: Path) -> None:
    """The list marks the run as abandoned."""
    await begin(tmp_path, "order=Order('A-17')")
    child = taking_up(tmp_path, "order", *SHOP)
    await waits(tmp_path, "order")
    (run,) = await runs_json(tmp_path, "list")
    assert (run["state"], run["abandoned"]) == ("running", False)
    child.kill()
    await asyncio.to_thread(child.communicate)
    (run,) = await runs_json(tmp_path, "list")
    assert (run["state"], run["abandoned"]) == ("running", True)
    _, out, _ = await run_runs(tmp_path, "show", "order")
    assert "its process has died" in out
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    assert await resumed(tmp_path, "order", *SHOP) == "A-17: 6 for 2, fine\n"


async def test_of_a_failed_run_only_what_failed_runs_again(tmp_path: Path) -> None:
    """The first resume ends with status 1 and one line; the second runs the failed parts only."""
    await begin(tmp_path, "order=Order('A-17')")
    (tmp_path / "closed").touch()
    status, out, err = await run_runs(tmp_path, "resume", "order", *SHOP)
    assert (status, out) == (1, "")
    assert "the run 'order' is failed: ValueError: the shop is closed for A-17" in err
    assert len(err.splitlines()) == 1
    (run,) = await runs_json(tmp_path, "list")
    assert (run["state"], run["error"]) == ("failed", "ValueError: the shop is closed for A-17")
    (tmp_path / "closed").unlink()
    await run_runs(tmp_path, "fork", "order", "other", "--at", "1")
    await run_runs(tmp_path, "cancel", "other")
    child = taking_up(tmp_path, "order", *SHOP)
    await waits(tmp_path, "order")
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    out, _ = await asyncio.to_thread(child.communicate)
    assert out == "A-17: 6 for 2, fine\n"
    assert sorted(each for each in outside(tmp_path) if each.startswith("weigh")) == [
        "weigh ink",
        "weigh pen",
    ]


@pytest.mark.parametrize(
    ("place", "opened"), [("shop", 1), ("found_shop", 1), ("THE_SHOP", 1), ("Shop", 1)]
)
async def test_a_live_field_is_an_object_or_is_made(
    place: str, opened: int, tmp_path: Path
) -> None:
    """It can be an object, a class or a function, also async. Context managers are entered."""
    await begin(tmp_path, "order=Order('A-17')")
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    out = await resumed(tmp_path, "order", "--live", f"shop=orders:{place}", "--json")
    assert json.loads(out) == {
        "run_id": "order",
        "state": "completed",
        "result": "A-17: 6 for 2, fine",
        "error": None,
    }
    assert [outside(tmp_path).count(each) for each in ("open", "close")] == [opened, opened]


async def test_a_module_can_be_imported_first(tmp_path: Path) -> None:
    """`--app` works several times."""
    await begin(tmp_path, "nap=Nap(0)")
    (tmp_path / "plugin.py").write_text("open('plugged', 'w').close()\n")
    await resumed(tmp_path, "nap", "--app", "json", "--app", "plugin")
    assert (tmp_path / "plugged").exists()


# --- from another process


async def test_a_signal_and_a_cancel_reach_a_run_in_another_process(tmp_path: Path) -> None:
    """The run in another process ends, and no part of it continues."""
    await begin(tmp_path, "order=Order('A-17')", "other=Order('A-18')")
    children = [taking_up(tmp_path, name, *SHOP) for name in ("order", "other")]
    await waits(tmp_path, "order")
    await waits(tmp_path, "other")
    assert (await run_runs(tmp_path, "signal", "order", "feedback", "12", "--text"))[0] == 0
    assert await runs_json(tmp_path, "cancel", "other", "--reason", "no more pens")
    outs = [await asyncio.to_thread(child.communicate) for child in children]
    assert [child.returncode for child in children] == [0, 1]
    assert outs[0][0] == "A-17: 6 for 2, 12\n"
    assert "no more pens" in outs[1][1]
    (run,) = await runs_json(tmp_path, "list", "--prefix", "other")
    assert run["state"] == "cancelled"
    assert "no more pens" in run["error"]
    status, _, err = await run_runs(tmp_path, "resume", "other", *SHOP)
    assert status == 1
    assert "since it was cancelled" in err


@pytest.mark.parametrize(("value", "sent"), [('{"a": [1]}', {"a": [1]}), ("a b", "a b")])
async def test_a_signal_is_json_or_text(value: str, sent: Any, tmp_path: Path) -> None:
    """The value is JSON if it is valid JSON, otherwise text."""
    await begin(tmp_path, "nap=Nap(1)")
    assert (await runs_json(tmp_path, "signal", "nap", "s", value))["value"] == sent
    found = await runs_json(tmp_path, "show", "nap")
    assert [(each["name"], each["value"]) for each in found["letters"]] == [("s", sent)]


async def test_a_signal_with_a_key_is_sent_once(tmp_path: Path) -> None:
    """A repeated key is not an error, even after the run was purged; an unknown run is."""
    await begin(tmp_path, "nap=Nap(1)")
    for value in ("1", "2"):
        assert (await run_runs(tmp_path, "signal", "nap", "s", value, "--key", "k"))[0] == 0
    found = await runs_json(tmp_path, "show", "nap")
    assert [each["value"] for each in found["letters"]] == [1]
    await run_runs(tmp_path, "cancel", "nap")
    await run_runs(tmp_path, "purge", "--before", "0h", "--yes")
    assert (await run_runs(tmp_path, "signal", "nap", "s", "3", "--key", "k"))[0] == 0
    assert (await run_runs(tmp_path, "signal", "nap", "s", "3", "--key", "other"))[0] == 2


async def test_a_busy_run_says_which_process_has_it(tmp_path: Path) -> None:
    """The run stays with the process that executes it."""
    await begin(tmp_path, "nap=Nap(1)")
    child = taking_up(tmp_path, "nap")
    await waits(tmp_path, "nap")
    status, out, err = await run_runs(tmp_path, "resume", "nap")
    assert (status, out) == (1, "")
    assert f"process {child.pid}" in err
    assert len(err.splitlines()) == 1
    child.terminate()
    await asyncio.to_thread(child.communicate)


# --- questions

APPROVALS: list[tuple[list[str], str]] = [
    ([], "sent to Ann"),
    (["--deny", "--reason", "not on Sundays"], "not on Sundays"),
    (["--arguments", '{"to": "Bob"}'], "sent to Bob"),
]


@pytest.mark.parametrize("drives", [True, False])
@pytest.mark.parametrize(("options", "gave"), APPROVALS)
async def test_a_call_is_approved_from_another_process(
    options: list[str], gave: str, drives: bool, tmp_path: Path
) -> None:
    """Approval works while another process executes the run, and while none does."""
    await begin(tmp_path, "mail=Mail('Ann')")
    child = taking_up(tmp_path, "mail")
    number = str((await waits(tmp_path, "mail"))["number"])
    assert child.stderr is not None
    hint = await asyncio.to_thread(child.stderr.readline)
    assert f"anabranch runs approve mail {number}" in hint
    if not drives:
        child.terminate()
        await asyncio.to_thread(child.communicate)
    (run,) = await runs_json(tmp_path, "list")
    assert [each["kind"] for each in run["waits"]] == ["approval"]
    found = await runs_json(tmp_path, "show", "mail")
    (question,) = found["questions"]
    assert question["arguments"] == {"to": "Ann", "text": "hello"}
    await runs_json(tmp_path, "approve", "mail", number, *options)
    if drives:
        out, _ = await asyncio.to_thread(child.communicate)
    else:
        out = await resumed(tmp_path, "mail")
    assert gave in out
    assert [each for each in outside(tmp_path) if "send" in each] == (
        [] if "--deny" in options else [f"send {gave.split()[-1]} {'' if options else 'hello'}"]
    )
    status, _, err = await run_runs(tmp_path, "approve", "mail", number)
    assert status == 2
    assert "It has no open questions" in err


@pytest.mark.parametrize(
    ("options", "gave", "paid"),
    [(["--done", "paid by hand"], "paid by hand\n", 1), (["--not-done"], "paid 5\n", 2)],
)
async def test_a_call_in_doubt_is_settled(
    options: list[str], gave: str, paid: int, tmp_path: Path
) -> None:
    """The call runs again only if a person says that it did not happen."""
    await begin(tmp_path, "pay=Pay(5)")
    (tmp_path / "hang").touch()
    child = taking_up(tmp_path, "pay")
    await wait_until(lambda: outside(tmp_path) == ["pay 5"])
    child.kill()
    await asyncio.to_thread(child.communicate)
    (tmp_path / "hang").unlink()
    child = taking_up(tmp_path, "pay")
    wait = await waits(tmp_path, "pay")
    assert wait["kind"] == "doubt"
    number = str(wait["number"])
    _, out, _ = await run_runs(tmp_path, "show", "pay")
    assert "did it happen?" in out
    assert f"anabranch runs approve pay {number} --not-done" in out
    for wrong in ([], ["--deny"], ["--done", "x", "--not-done"]):
        status, _, err = await run_runs(tmp_path, "approve", "pay", number, *wrong)
        assert status == 2
        assert "--done RESULT" in err
    status, out, _ = await run_runs(tmp_path, "approve", "pay", number, *options)
    assert status == 0
    out, _ = await asyncio.to_thread(child.communicate)
    assert (out, outside(tmp_path)) == (gave, ["pay 5"] * paid)


async def test_an_answer_that_means_nothing_is_refused(tmp_path: Path) -> None:
    """Each gives one line, and the question stays open."""
    await begin(tmp_path, "mail=Mail('Ann')")
    child = taking_up(tmp_path, "mail")
    number = str((await waits(tmp_path, "mail"))["number"])
    for options, expected in (
        ([number, "--done", "x"], "whether send may run"),
        ([number, "--not-done"], "whether send may run"),
        ([number, "--reason", "x"], "--reason requires --deny"),
        ([number, "--arguments", "{"], "--arguments must be JSON"),
        ([number, "--arguments", "[]"], "must be a JSON object"),
        ([number, "--deny", "--arguments", "{}"], "--deny and --arguments cannot be combined"),
        (["999"], f"Open questions: {number} (send)"),
    ):
        status, out, err = await run_runs(tmp_path, "approve", "mail", *options)
        assert (status, out) == (2, "")
        assert expected in err
        assert len(err.splitlines()) == 1
    assert (await runs_json(tmp_path, "show", "mail"))["questions"]
    child.terminate()
    await asyncio.to_thread(child.communicate)


# --- fork and purge


async def test_a_fork_goes_on_from_a_row(tmp_path: Path) -> None:
    """Effects before the row are not repeated, and later ones are."""
    await begin(tmp_path, "order=Order('A-17')")
    await run_runs(tmp_path, "signal", "order", "feedback", "fine")
    await resumed(tmp_path, "order", *SHOP)
    rows = (await runs_json(tmp_path, "show", "order"))["history"]
    at = next(row["number"] for row in rows if row["kind"] == "letter") - 1
    made = await runs_json(tmp_path, "fork", "order", "order-2", "--at", str(at))
    assert (made["state"], made["rows"]) == ("pending", at)
    await run_runs(tmp_path, "signal", "order-2", "feedback", "bad")
    assert await resumed(tmp_path, "order-2", *SHOP) == "A-17: 6 for 2, bad\n"
    assert len([each for each in outside(tmp_path) if each.startswith("weigh")]) == 2
    assert await resumed(tmp_path, "order", *SHOP) == "A-17: 6 for 2, fine\n"


async def test_only_runs_that_are_over_are_removed(tmp_path: Path) -> None:
    """Runs that ended before the time are removed, and only after a confirmation."""
    await begin(tmp_path, "done=Nap(0)", "new=Nap(0)", "naps=Nap(1)", "gone=Nap(1)")
    await resumed(tmp_path, "done")
    await resumed(tmp_path, "new")
    await run_runs(tmp_path, "cancel", "gone")
    with sqlite3.connect(tmp_path / "runs.db") as file:
        file.execute("update anabranch_run set updated = 1 where run_id != 'new'")
        file.execute("update anabranch_row set time = 1 where run != 2")
    file.close()
    status, _, err = await run_runs(tmp_path, "purge", "--before", "30d")
    assert status == 2
    assert "2 runs would be deleted. Confirm with --yes" in err
    assert await runs_json(tmp_path, "purge", "--before", "30d", "--state", "failed", "--yes") == {
        "removed": 0
    }
    options = ("purge", "--before", "2020-01-31", "--state", "cancelled", "--yes")
    assert await runs_json(tmp_path, *options) == {"removed": 1}
    status, out, _ = await run_runs(tmp_path, "purge", "--before", "30d", "--yes")
    assert (status, out) == (0, "1 run deleted\n")
    left = [each["run_id"] for each in await runs_json(tmp_path, "list")]
    assert left == ["naps", "new"]


# --- errors

ONE_RUN = "order-17=Nap(1)"
WRONG: list[tuple[list[str], str]] = [
    (["show", "order-71"], "Did you mean 'order-17'?"),
    (["resume", "nobody"], "has no run 'nobody'. List all: anabranch runs list"),
    (["cancel", "order-71"], "Did you mean"),
    (["signal", "order-71", "s"], "Did you mean"),
    (["fork", "order-17", "new", "--at", "99"], "--at must be from 0 to 0"),
    (["fork", "order-17", "order-17", "--at", "0"], "a fork needs a new name"),
    (["list", "--state", "done"], "one of: pending, running"),
    (["purge", "--before", "soon"], "not 'soon'"),
    (["purge", "--before", "30d", "--state", "running"], "--state must be one of"),
    (["resume", "order-17", "--live", "shop"], "FIELD=module:name"),
    (["resume", "order-17", "--live", "shop=orders:no"], "orders has no no"),
    (["resume", "order-17", "--live", "shop=nowhere:x"], "No module named 'nowhere'"),
    (["resume", "order-17", "--app", "nowhere"], "No module named 'nowhere'"),
    (["list", "--journal", "none.db"], "there is no journal 'none.db'"),
    (["list", "--journal", "empty.db"], "is empty, not a journal"),
]


@pytest.mark.parametrize(("options", "expected"), WRONG)
async def test_wrong_usage_is_one_line_and_status_2(
    options: list[str], expected: str, tmp_path: Path
) -> None:
    """The line says what to do, and no file is created."""
    await begin(tmp_path, ONE_RUN)
    (tmp_path / "empty.db").touch()
    before = set(os.listdir(tmp_path))
    status, out, err = await run_runs(tmp_path, *options)
    assert (status, out) == (2, "")
    assert expected in err
    assert len(err.splitlines()) == 1
    assert set(os.listdir(tmp_path)) - before <= {"__pycache__", "runs.db-locks"}


async def test_a_run_that_is_over_takes_nothing_more(tmp_path: Path) -> None:
    """One line says so; resuming a completed run prints its result."""
    await begin(tmp_path, "nap=Nap(0)")
    gave = await resumed(tmp_path, "nap")
    for options in (["signal", "nap", "s"], ["cancel", "nap"]):
        status, out, err = await run_runs(tmp_path, *options)
        assert (status, out) == (1, "")
        assert "which is over (completed): anabranch runs show nap shows how" in err
        assert len(err.splitlines()) == 1
    (tmp_path / "orders.py").unlink()
    assert await resumed(tmp_path, "nap") == gave


async def test_what_cannot_be_read_is_one_line_and_status_1(tmp_path: Path) -> None:
    """A text file, a database of another program and one of a later version give one line."""
    await begin(tmp_path, ONE_RUN)
    (tmp_path / "text.db").write_text("no database, but a text that is long enough" * 99)
    with sqlite3.connect(tmp_path / "other.db") as other:
        other.execute("create table t (a)")
    other.close()
    with sqlite3.connect(tmp_path / "runs.db") as newer:
        newer.execute("pragma user_version = 99")
    newer.close()
    said = {
        "text.db": "is no SQLite file",
        "other.db": "of another program",
        "runs.db": "upgrade anabranch",
        ".": "is a folder",
    }
    for name, expected in said.items():
        status, out, err = await run_runs(tmp_path, "list", ANABRANCH_JOURNAL=name)
        assert (status, out) == (1, "")
        assert expected in err
        assert len(err.splitlines()) == 1


async def test_a_class_that_cannot_be_imported_is_one_line_and_changes_nothing(
    tmp_path: Path,
) -> None:
    """The module is missing, fails to import or lacks the class, or the class is in a script."""
    await begin(tmp_path, ONE_RUN)
    module = tmp_path / "orders.py"
    text = module.read_text()
    for changed, expected in (
        (None, "No module named 'orders'"),
        ("import nothing_like_it", "No module named 'nothing_like_it'"),
        ("def", "SyntaxError"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        (text.replace("class Nap", "class Rest"), "module orders has no Nap"),
    ):
        module.unlink() if changed is None else module.write_text(changed)
        status, out, err = await run_runs(tmp_path, "resume", "order-17")
        assert (status, out) == (2, "")
        assert expected in err
        assert len(err.splitlines()) == 1
        (run,) = await runs_json(tmp_path, "list")
        assert run["state"] == "pending"
    await python(
        tmp_path,
        "-c",
        "import asyncio\nfrom orders import *\nclass Own(Rest): ...\nasync def main():\n"
        "    async with Journal('runs.db') as journal:\n"
        "        await journal.start(Own(1), run_id='own')\nasyncio.run(main())\n",
    )
    status, _, err = await run_runs(tmp_path, "resume", "own")
    assert status == 2
    assert "Run the script again" in err


SCRIPT = """
from pathlib import Path
from anabranch import run
from anabranch.store import Durable

class Opens(Durable[str]):
    async def task(self):
        return Path("door").read_text()

print(run(Opens(), journal="runs.db", run_id="r"))
"""


async def test_a_failed_run_of_a_script_goes_on_when_that_is_run_again(tmp_path: Path) -> None:
    """The command, which cannot resume it, removes the failure, so that the script can continue."""
    (tmp_path / "opens.py").write_text(SCRIPT)
    with pytest.raises(AssertionError):
        await python(tmp_path, "opens.py")
    (tmp_path / "door").write_text("open")
    with pytest.raises(AssertionError):
        await python(tmp_path, "opens.py")  # an ended run stays ended
    status, _, err = await run_runs(tmp_path, "resume", "r")
    assert status == 2
    assert "Run the script again" in err
    await python(tmp_path, "opens.py")
    (run,) = await runs_json(tmp_path, "list")
    assert run["state"] == "completed"


async def test_a_class_of_another_version_parks_its_run_visibly(tmp_path: Path) -> None:
    """With the code of its version the run continues."""
    await begin(tmp_path, "nap=Nap(0)")
    module = tmp_path / "orders.py"
    text = module.read_text()
    module.write_text(
        text.replace(
            "class Nap(Durable[dict[str, float]])",
            "class Nap(Durable[dict[str, float]], version=2)",
        )
    )
    status, _, err = await run_runs(tmp_path, "resume", "nap")
    assert status == 1
    assert "the run began with version 1" in err
    (run,) = await runs_json(tmp_path, "list")
    assert run["state"] == "parked"
    assert "version 1" in run["error"]
    module.write_text(text)
    assert "slept" in await resumed(tmp_path, "nap")


async def test_a_live_field_that_is_not_brought_is_one_line(tmp_path: Path) -> None:
    """The line names the option."""
    await begin(tmp_path, "order=Order('A-17')")
    status, _, err = await run_runs(tmp_path, "resume", "order")
    assert status == 1
    assert "--live shop=module:attribute" in err
    assert len(err.splitlines()) == 1
