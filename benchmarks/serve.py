"""The cost of serving: CPU for a delta, compared with bare Starlette on the same uvicorn.

    python benchmarks/serve.py [--clients 100 1000] [--pause 0.02] [--only NAME ...] [--fast]

Many clients send requests to a server in a separate process, and each reads 200 deltas, one every
`--pause` seconds. The figure is the CPU time of the server for a delta, in the better of two rounds
after a warm-up. No answer may be lost: each client must receive all deltas and the end. The bare
server writes the same chunks by hand. `--fast` uses uvicorn with uvloop and httptools instead of
asyncio and h11.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import sys
from collections.abc import Generator
from contextlib import contextmanager

from _serve_servers import DELTAS, SERVERS, ask, serve_one

ROUNDS = 2
SPREAD = (
    1.0  # seconds over which clients start; in lockstep, many deltas would share a turn of the loop
)
BASE = "bare Starlette"


async def _cpu(port: int) -> float:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /cpu HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    said = (await reader.read()).rpartition(b"\r\n\r\n")[2]
    writer.close()
    return float(said)


async def _client(port: int, request: bytes, last: bytes, start: float) -> int:
    """Send a request after `start` seconds; return the number of deltas, -1 without an end."""
    await asyncio.sleep(start)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(request)
        deltas = 0
        while line := await reader.readline():
            deltas += b"word " in line and b"delta" in line
            if line.startswith(last):
                return deltas
        return -1
    finally:
        writer.close()


async def _round(name: str, port: int, clients: int) -> tuple[float, int]:
    """Return the CPU microseconds for a delta, and the number of clients with lost deltas."""
    request, last = ask(name)
    before = await _cpu(port)
    counts = await asyncio.gather(
        *(_client(port, request, last, SPREAD * n / clients) for n in range(clients)),
        return_exceptions=True,
    )
    spent = await _cpu(port) - before
    return spent / (clients * DELTAS) * 1e6, sum(count != DELTAS for count in counts)


async def _measure(name: str, port: int, clients: int) -> tuple[float, int]:
    await _round(name, port, min(clients, 20))
    rounds = [await _round(name, port, clients) for _ in range(ROUNDS)]
    return min(cost for cost, _ in rounds), sum(lost for _, lost in rounds)


@contextmanager
def _server(name: str, pause: float, fast: bool) -> Generator[int]:
    processes = multiprocessing.get_context("spawn")
    here, there = processes.Pipe()
    kind = ("uvloop", "httptools") if fast else ("asyncio", "h11")
    server = processes.Process(target=serve_one, args=(name, there, pause, *kind), daemon=True)
    server.start()
    try:
        yield here.recv()
    finally:
        server.terminate()
        server.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--pause", type=float, default=0.02)
    parser.add_argument("--only", nargs="+", default=list(SERVERS), choices=list(SERVERS))
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    counts: list[int] = options.clients
    base: dict[int, float] = {}
    print("| server CPU, us a delta | " + " | ".join(f"{n} clients" for n in counts) + " | lost |")
    print("|---|" + "---:|" * (len(counts) + 1))
    for name in dict.fromkeys([BASE, *options.only]):
        cells: list[str] = []
        lost = 0
        with _server(name, options.pause, options.fast) as port:
            for clients in counts:
                cost, missing = asyncio.run(_measure(name, port, clients))
                cells.append(f"{cost:.0f} ({cost / base.setdefault(clients, cost):.2f})")
                lost += missing
        print(f"| {name} | " + " | ".join([*cells, str(lost)]) + " |")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
