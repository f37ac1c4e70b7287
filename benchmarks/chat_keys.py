"""The chat in the terminal: the time from a key to its echo while a reply streams.

    python benchmarks/chat_keys.py           # some minutes, on a quiet machine
    python benchmarks/chat_keys.py --quick   # fewer keys

The real `anabranch chat` in a pty, and a server on loopback that streams Markdown with code and
tables, a hundred pieces a second. A key is a letter that is nowhere else on the screen. Its time
runs from the write to the pty to the read of its echo. Keys come at random moments, first while the
chat is idle. CPU is the time of the chat, whose event loop is checked 50 times a second.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

from _chat_terminal import ASK, Terminal, home, percentile, quantiles, server
from chat import PART

LETTERS = "абвгдежзиклмнопрстуфхцчшщъыьэюя"  # in no text of the model
GAP = 0.06  # seconds from a key to the next, on average
RATE = 100  # pieces a second
COMMAND = Path(sys.executable).parent / "anabranch"


def press(terminal: Terminal, keys: int) -> list[float]:
    """Press keys at random moments; return the seconds until each echo."""
    times: list[float] = []
    for number in range(keys):
        if number % len(LETTERS) == 0:
            terminal.write("\x15")  # empties the line
            terminal.drain(0.2)
        terminal.drain(random.expovariate(1 / GAP))
        letter = LETTERS[number % len(LETTERS)]
        terminal.write(letter)
        times.append(terminal.until(letter.encode()))
    terminal.write("\x15")
    return times


def measure(url: str, columns: int, keys: int) -> None:
    with home() as folder:
        command = [str(COMMAND), "chat", "-m", f"{url}", "--name", "m", "-t", "none"]
        terminal = Terminal(command, folder, columns, late=True)
        terminal.until(b"lists the commands")
        terminal.drain(3)
        used = terminal.cpu()
        terminal.drain(3)
        idle = (terminal.cpu() - used) / 3
        signs = [first_sign(terminal) for _ in range(10)]
        terminal.write(ASK.format(read=6, pieces=1, rate=RATE) + "\r")
        terminal.drain(2)
        used = terminal.cpu()
        terminal.drain(3)
        reading = (terminal.cpu() - used) / 3
        terminal.until(b"tokens")
        terminal.drain(2)

        used = terminal.cpu()
        quiet = press(terminal, keys)
        per_key = (terminal.cpu() - used) / keys
        seconds = keys * (GAP + 0.1) + 20
        terminal.write(ASK.format(read=0, pieces=int(seconds * RATE), rate=RATE) + "\r")
        terminal.drain(1)
        used = terminal.cpu()
        terminal.drain(8)
        per_piece = (terminal.cpu() - used) / 8 / RATE
        began = time.perf_counter()
        used = terminal.cpu()
        streaming = press(terminal, keys)
        passed = time.perf_counter() - began
        more = (terminal.cpu() - used - passed * per_piece * RATE) / keys
        terminal.write("\x03")
        terminal.drain(1)
        late = terminal.close()
    ratio = percentile(streaming, 99) / percentile(quiet, 99)
    print(f"\n{columns} columns                        median     90 %     99 %     most (ms)")
    print(f"  a key, nothing goes on       {quantiles(quiet)}")
    print(f"  a key, {RATE} pieces a second   {quantiles(streaming)}   99 %: {ratio:.1f} times")
    print(f"  Enter to the status line     {quantiles(signs)}")
    print(f"  the loop was late by         {quantiles(late)}")
    print(
        f"  CPU: {idle * 1000:.1f} ms a second idle, {reading * 1000:.1f} ms while it reads", end=""
    )
    print(f", {per_piece * 1000:.2f} ms a piece, {per_key * 1000:.2f} ms a key", end="")
    print(f", {more * 1000:.2f} ms a key more while it speaks", flush=True)


def first_sign(terminal: Terminal) -> float:
    """Return the seconds from Enter to the first words of the status line."""
    terminal.write(ASK.format(read=0.5, pieces=2, rate=RATE))
    terminal.drain(0.5)
    terminal.write("\r")
    passed = terminal.until(b"thinking")
    terminal.until(b"tokens")
    terminal.drain(0.5)
    return passed


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--quick", action="store_true", help="fewer keys")
    keys = 120 if options.parse_args().quick else 300
    random.seed(1)
    print(f"{keys} keys; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with server(PART * 3) as url:
        for columns in (80, 200):
            measure(url, columns, keys)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
