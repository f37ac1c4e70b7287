"""Random programs over random trees keep every invariant under each policy.

Runs 3,000 programs, or 30,000 in `make test-all`. `ANABRANCH_SEED` selects other programs.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.seeds import example_count, seeds
from support.tree_checks import check_program
from support.tree_puppet import Operation
from support.tree_world import COMMANDS, STEPS, World

from anabranch.commander import quorum

pytestmark = pytest.mark.usefixtures("light_heap")
PROGRAMS = example_count(1_500, 30_000)
COMMON = ("new", "turns", "callback", "time", "cancel", "await", "await_new", "fail", "return")
NAMES = (*STEPS, *COMMANDS, *COMMANDS, *COMMON, *COMMON)
# Programs for timeouts, and for taking and returning slots under a limit.
LATE = ("new", "put", "put", "fail", "fail", "time", "time", "turns", "callback", "start", "cancel")
SLOTS = (
    *("new", "new", "new", "put", "await", "await_new", "await_two", "run", "turns"),
    *("return", "return_new", "fail", "sleep", "time", "cancel", "callback", "start"),
)
POLICIES = ("isolate", "isolate", "collect", "fail_fast", quorum(2))
NUMBERS = st.integers(0, 999)


def draw(seed: int) -> tuple[list[Operation], dict[str, Any]]:
    """Return a program and the settings to run it with."""
    chance = random.Random(seed)
    theme = chance.choice(("any", "some", "late", "slots"))
    names = {"any": NAMES, "late": LATE, "slots": SLOTS}.get(theme) or chance.sample(NAMES, 12)
    if chance.random() < 0.8:
        names = [name for name in names if name != "exit"]
    length = chance.choice((5, 10, 20, 40))
    numbers = (chance.randrange(1000) for _ in range(3 * length))
    program = [
        (chance.choice(names), a, b, c) for a, b, c in zip(numbers, numbers, numbers, strict=True)
    ]
    setting = {
        "limit": chance.choice((1, 2, 3) if theme == "slots" else (None, None, 1, 2)),
        "policy": chance.choice(POLICIES),
        "ending": chance.choice((0, 0, 0, 0, 1, 2, 3, 4, 5)),
        "listen": chance.random() < 0.4,
        "hurry": theme == "late",
        "sweep": chance.choice((1, 2, 5, 500, 500)),
    }
    return program, setting


def play(seed: int, program: list[Operation], setting: dict[str, Any]) -> None:
    random.seed(seed)  # the jitter of retries
    check_program(World(program, seed, **setting))


@pytest.mark.parametrize("part", range(10))
def test_every_invariant_holds_in_random_programs(part: int) -> None:
    """Check states, callbacks, slots, failures and leaks after every turn and at the end."""
    for seed in seeds(PROGRAMS)[part::10]:
        program, setting = draw(seed)
        try:
            play(seed, program, setting)
        except Exception as error:
            error.add_note(f"play({seed}, {program}, {setting})")
            raise


@pytest.mark.parametrize("part", range(4))
def test_every_invariant_holds_where_the_world_misbehaves(part: int) -> None:
    """The programs meet odd exceptions, predicates, log handlers and task factories."""
    for seed in seeds(PROGRAMS // 6)[part::4]:
        program, setting = draw(seed)
        try:
            play(seed, program, setting | {"faults": True})
        except Exception as error:
            error.add_note(f"play({seed}, {program}, {setting | {'faults': True}})")
            raise


@settings(
    max_examples=example_count(300, 3_000),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
)
@given(
    seed=st.integers(0, 9),
    program=st.lists(st.tuples(st.sampled_from(NAMES), NUMBERS, NUMBERS, NUMBERS), max_size=25),
    limit=st.sampled_from((None, 1, 2)),
    policy=st.sampled_from(POLICIES),
    ending=st.integers(0, 5),
)
def test_every_invariant_holds_and_a_broken_one_is_shrunk(
    seed: int, program: list[Operation], limit: int | None, policy: Any, ending: int
) -> None:
    """hypothesis generates the programs and shrinks one that fails."""
    play(seed, program, {"limit": limit, "policy": policy, "ending": ending})
