"""The invariants of every tree, after each turn of the loop and at the end."""

from __future__ import annotations

import gc
import re
import weakref
from collections.abc import Iterator
from typing import Any

from anabranch.commander import NodeCancelled, Quorum, QuorumNotMet
from anabranch.commander._events import WIDTH
from anabranch.commander._record import record_of
from support.tree_puppet import DONE, Part
from support.tree_world import World

REACHABLE = {
    "pending": {"pending", "running", "joining", *DONE},
    "running": {"running", "joining", "pending", *DONE},
    "joining": {"joining", "running", "pending", *DONE},
    "completed": {"completed"},
    "failed": {"failed"},
    "cancelled": {"cancelled"},
}
# The valid sequences of one node's events, with one letter for each kind.
LETTERS = {
    "put": "p", "started": "s", "joining": "j", "retried": "r",
    "completed": "C", "failed": "F", "cancelled": "X",
}  # fmt: skip
COURSE = re.compile(r"p(s?j?r)*s?j?[CFX]")


# The most turns that a job may wait while a slot is free.
PATIENCE = 4

LINKS = ("__context__", "__cause__")


# --- after each turn


def check_turn(world: World) -> None:
    """Check the invariants that hold between any two turns."""
    assert not world.violations, world.violations
    for part in world.parts:
        if part.node.parent is not None:
            _check_state(part)
            _check_links(part)
            _check_marks(part)
            _check_timeout(world, part)
    _check_places(world)
    # A broken task factory may start the task later.
    if not world.faults and world.turn > 2 and world.commander._tree.marking is None:
        _check_queue(world)


def _check_state(part: Part) -> None:
    state = part.node.state
    assert state in REACHABLE[part.last_state], f"{part} was {part.last_state}"
    if state == "pending" and part.last_state != "pending":
        assert part.retry is not None, f"{part} is pending again without a retry"
    part.last_state = state
    if part.in_body:
        # An adopted node is awaited in the state joining, after the body.
        assert state == "running", f"{part} is {state} while its body runs"


def _check_links(part: Part) -> None:
    node = part.node
    parent = node.parent
    assert parent is not None
    children = parent.children
    assert (node in children) == (node.state not in DONE), f"{part} is missing or kept"
    ids = [child.node_id for child in children]
    assert ids == sorted(ids), "children out of order"
    if node.state not in DONE:
        assert parent.state not in DONE, f"{part} outlives its parent"


def _check_marks(part: Part) -> None:
    node = part.node
    record = record_of(node)
    under_way = part.world.commander._tree.sweep is not None
    if node.state == "pending" and record.is_ending and not under_way:
        assert record.task is not None, f"{part} waits for its turn in order to end"
    if record_of(node).cancel_reason is None or node.state in DONE:
        return
    if not part.closing:
        part.must_cancel = True
    if part.must_cancel and not under_way:
        for child in node.children:
            record = record_of(child)
            assert record.cancel_reason is not None or record.is_closing, (
                f"{child} is not cancelled"
            )


def _check_timeout(world: World, part: Part) -> None:
    node = part.node
    if part.timeout is None or part.closing or not (part.in_body or node.state == "joining"):
        return
    if part.attempts and world.loop.time() > part.attempt_began + part.timeout + 0.01:
        assert record_of(node).is_ending, f"{part} outlives its timeout"


def _check_places(world: World) -> None:
    if world.limit is None:
        return
    holding = [
        part
        for part in world.parts
        # A job that ends early, by a cancel or a timeout, may exceed the limit during its cleanup.
        if part.is_job and part.in_body and not part.waits and not record_of(part.node).is_ending
    ]
    holding = [part for part in holding if not part.killed]
    assert len(holding) <= world.limit, f"{holding} hold {world.limit} slots"


def _check_queue(world: World) -> None:
    """Check that a free slot goes to a job that can resume, then to the first in the queue."""
    placed = [part for part in world.parts if part.is_job and part.node.parent is not None]
    jobs = [part for part in placed if part.node.state not in DONE]
    queued: list[Part] = []
    resuming: list[Part] = []
    started: list[Part] = []
    for part in jobs:
        record = record_of(part.node)
        pausing = record.attempts is not None and record.attempts.timer is not None
        waits = part.node.state == "pending" and record.task is None
        if waits and not pausing and not record.is_ending:
            queued.append(part)
            part.queued_turns += 1
        else:
            if part.queued_turns and not record.is_ending:
                started.append(part)
            part.queued_turns = 0
        if part.in_body and part.waits and all(node.state in DONE for node in part.waits):
            resuming.append(part)
            part.resuming_turns += 1
        else:
            part.resuming_turns = 0
    busy = [part for part in jobs if part.node.state == "running" and not part.waits]
    free = world.limit is None or len(busy) < world.limit
    waiting = [*queued, *resuming]
    world.idle_turns = world.idle_turns + 1 if free and waiting == world.waiting else 0
    world.waiting = waiting
    stuck = waiting and world.idle_turns > PATIENCE
    assert not stuck, f"{queued} and {resuming} wait, though only {busy} hold {world.limit} slots"
    late = [part for part in resuming if part.resuming_turns > PATIENCE]
    assert not (started and late), f"{started} started before {late} went on"
    early = [part for part in queued if part.queued_turns > PATIENCE]
    if started and early:
        # A retried job has kept its place.
        first = min(early, key=_rank)
        last = max(started, key=_rank)
        assert _rank(last) < _rank(first), f"{last} started before {first}"


def _rank(job: Part) -> tuple[int, int]:
    return -job.priority, job.node.node_id


# --- at the end


def check_end(world: World) -> None:
    """Check the events and the outcome of each node, and that no failure was lost."""
    assert world.turn > 1, "nobody has looked at the tree while it ran"
    check_turn(world)
    assert not world.tasks_left, f"left on the loop: {world.tasks_left}"
    assert world.commander.state in DONE
    assert not world.commander.children
    world.parts = [part for part in world.parts if part.node.parent is not None]
    for part in world.parts:
        part.final_error = part.node.error
        _check_callbacks(part)
        _check_attempts(part)
        _check_outcome(world, part)
        assert part.kept == 0, f"{part}: callbacks at the commander's end"
    _check_futures(world)
    for part in world.parts:
        if part.node.state == "failed":
            _check_failure_is_accounted_for(world, part)
    for error, part, attempt in world.errors:
        _check_error_is_somewhere(world, error, part, attempt)
    if world.events is not None:
        _check_events(world)


def _check_callbacks(part: Part) -> None:
    node = part.node
    assert node.state in DONE, f"{part} never ended"
    ran = [re.sub(r"\d+$", "", label) for label in part.ran]
    kinds = set(ran) - {"done"}
    assert len(kinds) == 1, f"{part} ran {part.ran}"
    (kind,) = kinds
    due = [label for moment, label in part.added if moment in (kind, "done")]
    assert part.ran == due, f"{part} ran {part.ran} and not {due}"
    begun = {"end": "completed", "exception": "failed", "terminate": "cancelled"}[kind]
    if node.state != begun:
        changed = part.callback_errors or part.recovered_from or node.state == "cancelled"
        assert changed, f"{part} ran {kind}"
    if part.must_cancel and not part.callback_errors:
        assert node.state == "cancelled", f"{part} was cancelled before its end"


def _tries(part: Part) -> int:
    """Return the number of attempts, with those that ended before the body began."""
    attempts = record_of(part.node).attempts
    return part.attempts if attempts is None else max(part.attempts, len(attempts.starts))


def _check_attempts(part: Part) -> None:
    if part.doomed:
        assert part.attempts == 0, f"{part} was put below an ending node and ran"
    allowed = 1 if part.retry is None else part.retry.attempts
    assert part.attempts <= allowed, f"{part} was tried {part.attempts} times"
    first = part.final_error
    how, what = part.outcome
    by_body = how == "raised" and what is first and issubclass(type(first), Exception)
    if part.node.state == "failed" and by_body and not part.undecided:
        assert _tries(part) == allowed, f"{part} was tried {_tries(part)} times of {allowed}"


def _check_outcome(world: World, part: Part) -> None:
    node = part.node
    if node.state == "completed":
        assert part.final_error is None
        how, value = part.outcome
        if part.recovered_from:
            assert node.result == part.recovered_with
        else:
            assert how == "returned", f"{part} completed, its body {part.outcome}"
            if isinstance(value, int):
                assert node.result == value
            _check_completed_policy(world, part)
    elif node.state == "cancelled":
        assert isinstance(part.final_error, NodeCancelled)
        assert node.result is None
    else:
        assert part.final_error is not None
        assert node.result is None, f"{part} failed and has the result {node.result}"


def _last_children(part: Part) -> list[Part]:
    return [child for child in part.children if child.parent_attempt == part.attempts]


def _check_completed_policy(world: World, part: Part) -> None:
    children = _last_children(part)
    lost = [
        child
        for child in children
        if child.node.state == "failed" and not child.takers and not child.awaited
    ]
    if part.retry is not None:
        lost = [child for child in lost if not child.early]
    if part.policy in ("fail_fast", "collect"):
        assert not lost, f"{part} completed in spite of {lost}"
    if isinstance(part.policy, Quorum):
        completed = [child for child in children if child.node.state == "completed"]
        assert len(completed) >= part.policy.n, f"{part} completed with {completed}"


def _inside(error: BaseException | None, seen: int = 0) -> Iterator[BaseException]:
    if error is None or seen > 50:
        return
    yield error
    if type(error) is TimeoutError:  # the body had failed before
        yield from _inside(error.__cause__, seen + 1)
    if issubclass(type(error), BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _inside(inner, seen + 1)
    if issubclass(type(error), QuorumNotMet):
        for inner in error.failures:
            yield from _inside(inner, seen + 1)


def _is_in(error: BaseException, where: BaseException | None) -> bool:
    return any(inner is error for inner in _inside(where))


def _logged(world: World, error: BaseException, path: str | None = None) -> int:
    count = 0
    for record in world.records:
        exception = record.exc_info[1] if record.exc_info else None
        arguments: Any = record.args or ()
        if _is_in(error, exception) and (path is None or arguments[0] == path):
            count += 1
    return count


def _check_failure_is_accounted_for(world: World, part: Part) -> None:
    error = part.final_error
    assert error is not None
    parent = part.parent
    logged = _logged(world, error, part.node.path)
    assert logged <= 1 + len(part.callback_errors), f"{part} was logged {logged} times"
    if part.takers and not part.claim:
        again = [
            r for r in world.records if "nobody awaited" in r.msg and r.args[0] == part.node.path
        ]
        assert not again, f"{part} was awaited and logged"
    assert (
        part.takers
        or part.receivers
        or any(_adopted(each, error) for each in part.adopters)
        or logged
        or (parent is not None and _handed_up(world, part, parent, error))
        or _is_in(error, world.block_error)
        or _logged(world, error)
    ), f"the failure of {part} is lost: {error!r}"


def _adopted(part: Part, error: BaseException) -> bool:
    ends = (part.final_error, *part.recovered_from)
    return part.retry is not None or any(_is_in(error, end) for end in ends)


def _handed_up(world: World, part: Part, parent: Part, error: BaseException) -> bool:
    if part.parent_attempt < _tries(parent) or (part.early and parent.retry is not None):
        return True  # a later attempt followed
    if parent.retry is not None and "terminate" in parent.ran[0]:
        return True  # cancelled before the next attempt
    if issubclass(type(error), NodeCancelled) and parent.node.state == "cancelled":
        return True  # the cancelled parent reports no failures of its children
    earlier = [*parent.recovered_from, parent.final_error]
    return any(_is_in(error, each) for each in earlier)


def _check_error_is_somewhere(world: World, error: BaseException, part: Part, attempt: int) -> None:
    ends = [part.final_error, *part.recovered_from]
    assert (
        attempt < part.attempts
        or part.retry is not None  # an attempt that a start callback or a cancel prevented
        or any(_is_in(error, each) for each in ends)
        or _logged(world, error)
        or _context_of(error, part.final_error)
    ), f"{error!r} of {part} is lost"


def _context_of(error: BaseException, end: BaseException | None) -> bool:
    # A misbehaving exception may override these attributes, so read them from the base class.
    links = () if end is None else (vars(BaseException)[name] for name in LINKS)
    return any(link.__get__(end) is error for link in links)


def _check_futures(world: World) -> None:
    for part, future in world.futures:
        assert future.done(), f"the future of {part} is not done"
        if future.cancelled() or part not in world.parts:
            continue
        error = future.exception()
        if part.node.state == "completed":
            assert error is None
            assert future.result() == part.node.result
        elif part.node.state == "failed":
            assert error is part.node.error
            part.takers += 1
        else:
            assert isinstance(error, NodeCancelled)


def _check_events(world: World) -> None:
    courses: dict[int, str] = {}
    for kind, source, *_ in zip(*[iter(world.events._listener.buffer)] * WIDTH, strict=True):
        courses[source.id] = courses.get(source.id, "") + LETTERS[kind]
    for part in world.parts:
        course = courses[part.node.node_id]
        assert COURSE.fullmatch(course), f"{part} went {course}"


# --- one program


def check_program(world: World) -> None:
    """Execute a world's program with all checks; close the world at the end."""
    try:
        world.play()
        assert not world.unhandled, world.unhandled
        check_end(world)
    finally:
        world.close()
    _check_nothing_is_kept(world)


def _check_nothing_is_kept(world: World) -> None:
    nodes = [weakref.ref(part.node) for part in world.parts]
    nodes.append(weakref.ref(world.commander))
    world.__dict__.clear()
    gc.collect()
    kept = [node() for node in nodes if node() is not None]
    assert not kept, f"kept: {kept}"
