"""The work of `benchmarks/durable.py` in DBOS and in LangGraph with its SQLite saver."""

from __future__ import annotations

import asyncio
import operator
import sqlite3
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, TypedDict

from durable_contenders import GAVE, Contender, message


class Dbos(Contender):
    """DBOS: a workflow whose steps are rows; launched once, as an application does."""

    name = "DBOS"
    note = "its journal is one file for all rounds, launched once and not timed"

    def __init__(self) -> None:
        from dbos import DBOS

        self.folder = tempfile.TemporaryDirectory()
        url = f"sqlite:///{self.folder.name}/dbos.db"
        DBOS(config={"name": "durable", "system_database_url": url, "log_level": "CRITICAL"})

        @DBOS.step()
        async def step(number: int) -> str:
            return GAVE

        @DBOS.workflow()
        async def workflow(count: int) -> float:
            started = time.perf_counter()
            for number in range(count):
                await step(number)
            return time.perf_counter() - started

        self.workflow: Any = workflow
        DBOS.launch()

    def nodes(self, folder: Path, count: int) -> None:
        self.effects(folder, count)

    def effects(self, folder: Path, count: int) -> float:
        return asyncio.run(self.workflow(count)) / count

    def close(self) -> None:
        from dbos import DBOS

        DBOS.destroy()
        self.folder.cleanup()


class Counted(TypedDict):
    number: int


class Talked(TypedDict):
    said: Annotated[list[str], operator.add]
    number: int


class LangGraph(Contender):
    """LangGraph: a node with an edge to itself, and a checkpoint after each step."""

    name = "LangGraph"
    note = 'with SqliteSaver and durability="sync"'

    def __init__(self) -> None:
        import langgraph.checkpoint.sqlite
        import langgraph.graph

        self.graph = langgraph.graph
        self.saver = langgraph.checkpoint.sqlite.SqliteSaver

    def _run(self, file: Path, state: Any, start: Any, step: Any, count: int) -> float:
        connection = sqlite3.connect(file, check_same_thread=False)
        builder = self.graph.StateGraph(state)
        builder.add_node("step", step)
        builder.add_edge(self.graph.START, "step")
        builder.add_conditional_edges(
            "step", lambda now: "step" if now["number"] < count else self.graph.END
        )
        graph = builder.compile(checkpointer=self.saver(connection))
        config: Any = {"configurable": {"thread_id": "run"}, "recursion_limit": count + 5}
        started = time.perf_counter()
        found = graph.invoke(start, config, durability="sync")
        seconds = time.perf_counter() - started
        assert found["number"] == count
        connection.close()
        return seconds

    def nodes(self, folder: Path, count: int) -> None:
        self.effects(folder, count)

    def effects(self, folder: Path, count: int) -> float:
        def step(now: Counted) -> Counted:
            return {"number": now["number"] + 1}

        return self._run(folder / "graph.db", Counted, {"number": 0}, step, count) / count

    def conversation(self, folder: Path, count: int) -> int:
        def step(now: Talked) -> Talked:
            return {"said": [message(now["number"])], "number": now["number"] + 1}

        file = folder / "talk.db"
        self._run(file, Talked, {"said": [], "number": 0}, step, count)
        return sum(each.stat().st_size for each in folder.glob("talk.db*"))


OTHERS = (Dbos, LangGraph)
