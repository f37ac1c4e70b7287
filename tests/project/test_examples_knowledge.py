"""The examples with documents: on the intended path, and on the small local model."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from support.examples import EXAMPLES, load_example, run_example
from support.leaks import child_processes

from anabranch.knowledge import Index
from anabranch.testing import ScriptedBackend

RIVERS = EXAMPLES / "rivers"


def cite(place: str) -> Any:
    """Answer with the number of the passage in the prompt."""

    def reply(request: Any) -> str:
        said = "\n".join(str(message.content) for message in request.messages)
        number = re.search(rf'"number": (\d+), "place": "[^"]*{place}"', said)
        return f"It says so [{number[1] if number else 0}]."

    return reply


async def test_a_librarian_answers_and_says_from_where(capsys: pytest.CaptureFixture[str]):
    """The cited sources are listed below the answer. Without a citation, the found ones are."""
    async with Index(":memory:") as notes:
        await notes.add_folder(RIVERS)
        backend = ScriptedBackend(cite("danube.md:3"), "I do not know.")
        for _ in range(2):
            await load_example("ask_documents").ask(
                backend, notes, "Which river has four capitals?"
            )

    first, _, second = (
        capsys.readouterr().out.partition("user (to librarian)")[2].partition("user (to librarian)")
    )
    assert re.search(r"\n\[\d+\] \S+danube\.md:3  The Danube\n", first)
    assert "cites nothing" not in first
    assert re.search(r"cites nothing\. What was found:\n\[\d+\] \S+danube\.md:3", second)


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_librarian_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The answer is not empty, and passages are found."""
    run_example(
        monkeypatch, "ask_documents", "--folder", str(RIVERS), "Where does the Danube rise?"
    )
    assert re.search(r"\[\d+\] \S+danube\.md:8  The Danube > Its course", capsys.readouterr().out)


async def test_a_question_is_made_plainly_from_memory_or_by_a_model(
    capsys: pytest.CaptureFixture[str],
):
    """The prompt contains the found passages."""
    example = load_example("rag_modules")
    questions = ["Which river flows through Budapest?", "And how long is it?"]
    replies = {
        "plain": ["The Danube.", "2,850 km."],
        "memory": ["The Danube.", "2,850 km."],
        "model": ["Budapest river", "The Danube.", "Danube long", "2,850 km."],
    }
    asked: dict[str, str] = {}
    for kind, said in replies.items():
        backend = ScriptedBackend(*said)
        await example.read_and_talk(backend, RIVERS, kind, questions)
        asked[kind] = str(backend.requests[-1].messages[-1].content)

    shown = capsys.readouterr().out
    assert "(searched for: And how long is it?)" in shown
    assert "(searched for: Which river flows through Budapest? The Danube. And how" in shown
    assert "(searched for: Danube long)" in shown
    assert "danube.md" in asked["memory"]
    assert "danube.md" in asked["model"]
    assert asked["model"].count('{"number"') <= 3


@pytest.mark.long
@pytest.mark.usefixtures("small_model")
def test_the_geographer_runs_on_the_local_model(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """The small model finds the answer in passages that are short enough."""
    run_example(monkeypatch, "rag_modules", "Which river flows through Budapest?")
    assert "Danube" in capsys.readouterr().out.partition("geographer: ")[2]


async def test_a_blogger_cites_the_documents_it_writes_from(capsys: pytest.CaptureFixture[str]):
    """The sources are listed below each post. The critic gets no documents."""
    example = load_example("blogging_agents")
    backend = ScriptedBackend("A post.", "More!", cite("nile.md:8"))
    await example.publish(backend, ["the floods of the Nile"], 1, RIVERS)
    shown = capsys.readouterr().out
    assert re.search(r"It says so \[\d+\]\.\n\nSources:\n\[\d+\] \S+nile\.md:8\n", shown)
    assert "number" not in str(backend.requests[1].messages)

    await example.publish(ScriptedBackend(otherwise="A post."), ["the Nile"], 0, RIVERS)
    assert re.search(r"cites nothing.*\n(\[\d+\] \S+\n)+", capsys.readouterr().out)


async def test_an_analysis_says_where_its_figures_are_from(capsys: pytest.CaptureFixture[str]):
    """The explainer gets the documents. The cited ones are listed below its answer."""
    example, left = load_example("data_analysis"), child_processes()
    program = "```python\nprint(sum(int(row['length_km']) for row in rows))\n```"
    backend = ScriptedBackend(program, cite("lengths.md:3"))
    async with asyncio.timeout(120):
        question = "How long are the rivers together?"
        await example.analyse(backend, question, sources=example.SOURCES)
    assert any("It printed:\n46425" in str(each.content) for each in backend.requests[-1].messages)
    assert re.search(r"\[\d+\] \S+lengths\.md:3  How the", capsys.readouterr().out)
    assert child_processes() == left


@pytest.mark.parametrize(
    ("name", "option", "why"),
    [
        ("ask_documents", "--folder", "there is no folder"),
        ("rag_modules", "--folder", "there is no folder"),
        ("blogging_agents", "--folder", "there is no folder"),
        ("data_analysis", "--sources", "there is no folder"),
        ("data_analysis", "--file", "there is no file"),
    ],
)
def test_what_is_missing_is_said(
    name: str,
    option: str,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    """Before a model is loaded, with the exit status of wrong usage."""
    with pytest.raises(SystemExit) as ended:
        run_example(monkeypatch, name, option, str(tmp_path / "nowhere"))
    assert ended.value.code == 2
    assert why in capsys.readouterr().err
