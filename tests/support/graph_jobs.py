"""Jobs for the tests of edges and graphs."""

from __future__ import annotations

from anabranch.jobs import Job

__all__ = ["Guess", "Step"]


class Step(Job[str]):
    """A job that notes its name in `seen` and returns `answer`."""

    name: str
    seen: list[str]
    answer: str = "done"

    async def task(self) -> str:
        self.seen.append(self.name)
        return self.answer


class Guess(Job[str]):
    """A job that counts its runs in shared data, and requests another until the third."""

    runs: list[int]
    tries: int = 0

    async def task(self) -> str:
        self.tries += 1
        self.runs.append(self.tries)
        return "again" if len(self.runs) < 3 else "enough"
