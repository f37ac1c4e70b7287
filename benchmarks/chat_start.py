"""The chat in the terminal: the cost of its start, and of one answer in a pipe.

    python benchmarks/chat_start.py                    # half a minute, on a quiet machine
    python benchmarks/chat_start.py --against FOLDER   # beside another checkout of the package

For each program, the lowest CPU time and the lowest elapsed time of several runs, with checkouts
alternating. `prompt` runs until the prompt appears in a pty, the others until the program ends.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _chat_terminal import ASK, Terminal, environment, home, server

RUNS = 5
DRAWN = b"\x1b[?7h\x1b[0m\x1b[?12l\x1b[?25h"  # the end of a drawing of the prompt
SAID = ASK.format(read=0, pieces=3, rate=0)


def ended(folder: Path, source: str, arguments: list[str], piped: str = "") -> tuple[float, float]:
    """Run a program to its end; return its CPU seconds and its elapsed seconds."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**environment(folder), "PYTHONPATH": source},
        input=piped.encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    passed, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, passed


def stands(folder: Path, source: str, arguments: list[str]) -> tuple[float, float]:
    """Start the chat in a terminal; return its CPU seconds until the prompt appears."""
    os.environ["PYTHONPATH"] = source
    began = time.perf_counter()
    terminal = Terminal([sys.executable, *arguments], folder)
    terminal.until(DRAWN)
    passed, cpu = time.perf_counter() - began, terminal.cpu()
    terminal.drain(0.5)
    terminal.close()
    return cpu, passed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    here = str(Path(__file__).parent.parent)
    options.add_argument("--against", metavar="FOLDER", help="another checkout of the package")
    other = options.parse_args().against
    with server("some words that a model says") as url, home() as folder:
        chat = ["-m", "anabranch", "chat", "-m", url, "--name", "m", "-t", "none"]
        asked = [*chat, SAID]
        programs: dict[str, Callable[[str], tuple[float, float]]] = {
            "python -c 1": lambda source: ended(folder, source, ["-c", "1"]),
            "anabranch chat --help": lambda source: ended(folder, source, [*chat[:3], "--help"]),
            "prompt": lambda source: stands(folder, source, chat),
            "echo ... | anabranch chat": lambda source: ended(folder, source, chat, SAID + "\n"),
        }
        for name, program in programs.items():
            best: dict[str, tuple[float, float]] = {}
            for _ in range(RUNS):
                for source in filter(None, (here, other)):
                    cpu, passed = program(source)
                    least = best.get(source, (cpu, passed))
                    best[source] = min(least[0], cpu), min(least[1], passed)
            for source, (cpu, passed) in best.items():
                where = "" if source == here else "  (the other)"
                show(name, cpu, passed, where)
        show("anabranch chat QUESTION", *min(ended(folder, here, asked) for _ in range(RUNS)))


def show(name: str, cpu: float, passed: float, where: str = "") -> None:
    print(f"{name:28} {cpu * 1000:6.0f} ms CPU {passed * 1000:6.0f} ms{where}", flush=True)


if __name__ == "__main__":
    main()
