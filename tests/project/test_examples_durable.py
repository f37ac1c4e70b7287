"""The durable order: as a program, killed, and with the customer in another process."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from support.examples import EXAMPLES
from support.seeds import SEED, example_count

ANSWER = "Charged and announced."
QUICK = ("--way", "0.02")


def start(name: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    environment = {**os.environ, "ANABRANCH_SEED": str(SEED)}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def finish(process: subprocess.Popen[str]) -> str:
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0
    return out


def outside(folder: Path) -> list[list[tuple[str]]]:
    with closing(sqlite3.connect(folder / "shop.db")) as sql:
        return [sql.execute(f"select name from {each}").fetchall() for each in ("charge", "mail")]


def test_an_order_is_handled_once(tmp_path: Path) -> None:
    """A second start prints the same without a second effect."""
    said = [finish(start("durable_order.py", "--folder", str(tmp_path), *QUICK)) for _ in range(2)]

    done = f"A-17: {ANSWER} The customer says nothing.\n"
    acts = "charged\nmailed\n"
    packed = "".join(f"packed {item}\n" for item in ("lamp", "shade", "bulb"))
    assert said == [f"begins\n{acts}{packed}{done}", f"begins\n{done}"]
    assert outside(tmp_path) == [[("A-17",)], [("A-17",)]]


def test_the_customer_speaks_in_another_process(tmp_path: Path) -> None:
    """The signal arrives while the order waits for it, or after a kill."""
    arguments = ("--folder", str(tmp_path), "--order", "B-7", *QUICK)
    order = start("durable_order.py", *arguments, "--feedback")
    assert order.stdout is not None
    assert "packed bulb\n" in iter(order.stdout.readline, "")
    finish(start("durable_order.py", *arguments, "--say", "well packed"))
    order.kill()
    order.communicate()

    said = finish(start("durable_order.py", *arguments, "--feedback"))
    assert said.endswith(f"B-7: {ANSWER} The customer says well packed.\n")
    assert outside(tmp_path) == [[("B-7",)], [("B-7",)]]


def test_what_goes_wrong_with_an_order_is_one_line(tmp_path: Path) -> None:
    arguments = ("durable_order.py", "--folder", str(tmp_path), *QUICK)
    finish(start(*arguments))
    for more, text in {
        ("--order", "C-1", "--say", "hi"): "has no run 'order-C-1'",
        ("--feedback",): "it was started with other inputs",
    }.items():
        command = [sys.executable, str(EXAMPLES / arguments[0]), *arguments[1:], *more]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 1
        assert text in done.stderr
        assert done.stderr.count("\n") == 1


def test_no_kill_doubles_or_loses_anything() -> None:
    """Killed at random moments of a real process.

    Without `reconcile`, a person decides about calls in doubt.
    """
    kills = example_count(4, 50)
    said = finish(start("durable_kills.py", "--kills", str(kills), "--mail", "reconcile", "person"))
    first, _, *counts = said.splitlines()
    assert first == f"seed {SEED}"
    for line, mail in zip(counts, ("reconcile", "person"), strict=True):
        name, killed, _, waiting, doubled, lost = line.split()
        assert (name, killed, doubled, lost) == (mail, str(kills), "0", "0")
        assert mail == "person" or waiting == "0"
