"""How the small model is spoken to: what was found, by trying, to make it answer at all well."""

from __future__ import annotations

from ._local_tools import Manner

__all__ = ["SMALL_MANNER"]

# Without a system message it takes that of its own template, and answers questions about France in
# French. Without examples it goes round in circles, and tells of a tool's result what it likes.
SMALL_MANNER = Manner(
    system="You are a knowledgeable assistant who gives short, correct answers in English.",
    exchanges=(
        ("What is the capital of Norway?", "The capital of Norway is Oslo."),
        (
            "Who invented the telephone?",
            "The telephone was invented by Alexander Graham Bell in 1876.",
        ),
        ("How many months are in a year?", "A year has twelve months."),
    ),
    found=(
        (
            "Is the museum open today?",
            "closed on Mondays; today is Monday",
            "The museum is closed today, because it is Monday.",
        ),
        (
            "How much is the ticket to Lyon?",
            "adult 49 euros, child 25 euros",
            "A ticket to Lyon costs 49 euros for an adult and 25 euros for a child.",
        ),
        (
            "When does the next bus leave?",
            "line 12 at 14:05, line 7 at 14:20",
            "The next bus is line 12, which leaves at 14:05.",
        ),
        (
            "Find the file report.pdf.",
            "Error: no such file",
            "I could not find it: there is no such file.",
        ),
    ),
    longest=120,
)
