"""T12: a body that blocks the loop is named."""

import asyncio
import gc
import inspect
import logging
import sys
import threading
import time
import weakref
from contextlib import AsyncExitStack

import pytest
from support.waiting import settle_loop, wait_until

from anabranch.commander import Commander, Retry
from anabranch.commander._block_detector import BlockDetector
from anabranch.commander._frames import is_library
from anabranch.commander.plugins import lazy_names
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.messages import Delta, Message
from anabranch.serve import serve
from anabranch.serve._served_model import RunInput
from anabranch.testing import ScriptedBackend

pytestmark = pytest.mark.contract("T12")

# Seconds of real time: a thread watches the loop by the real clock.
AFTER = 0.02
BLOCK = 0.3


warned = threading.Event()


@pytest.fixture(autouse=True)
def _listen_for_warnings():
    class Listener(logging.Handler):
        def emit(self, record):
            warned.set()

    listener = Listener()
    logging.getLogger("anabranch").addHandler(listener)
    yield
    logging.getLogger("anabranch").removeHandler(listener)


def block():
    """Block until the warning is logged, however late that is, then a little longer."""
    warned.clear()
    warned.wait(10)
    time.sleep(4 * AFTER)


@handler
async def blocking(node):
    block()


@handler
async def patient(node):
    await asyncio.sleep(BLOCK)


def line_of(function, text):
    lines, first = inspect.getsourcelines(function)
    return first + next(index for index, line in enumerate(lines) if text in line)


async def test_a_body_that_blocks_the_loop_is_named_with_its_path_and_line(caplog):
    """The logger `anabranch` has one warning with the innermost line of the user's code."""
    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        node = blocking()
        await commander.run(node)
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("anabranch", logging.WARNING)
    message = record.getMessage()
    assert node.path in message
    assert f"{__file__}:{line_of(block, 'warned.wait')}" in message
    assert str(AFTER) in message


def work():
    time.sleep(AFTER / 2)


@handler
async def brief(node):
    work()


@handler
async def blocking_before_others(node):
    for _ in range(5):
        node.call_handler(brief())
    block()


async def test_the_event_says_how_long_a_body_blocked_though_others_run_before_it_is_told():
    """Other bodies run in the same turn. The time counts from the start of the turn."""
    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        events = commander.events(kinds={"slow"})
        await commander.run(blocking_before_others())
    told = [event.data.seconds async for event in events]
    assert told
    assert min(told) > AFTER


async def test_a_job_and_an_async_callback_that_block_are_named_too(caplog):
    """The warning has the path of each."""

    class Blocks(Job[None]):
        async def task(self):
            block()

    async def callback(node):
        await asyncio.sleep(0)
        block()

    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        await commander.run(Blocks())
        await commander.run(patient().at_end(callback))
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 2
    assert "Blocks#1" in messages[0]
    assert "patient#2" in messages[1]


async def test_each_block_is_warned_of_once(caplog):
    """A long block gives one warning. A second block gives a second one."""
    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        await commander.run(blocking())
        await commander.run(blocking())
    assert len(caplog.records) == 2


async def test_a_block_is_warned_of_once_however_many_commanders_the_loop_has(caplog):
    """Commanders may have different limits. Closing one leaves the others watching."""
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        for number in range(50):
            await stack.enter_async_context(Commander(slow_after=AFTER * (1 + number % 3)))
        commander = await stack.enter_async_context(Commander(slow_after=1_000))
        await commander.run(blocking())
        assert len(caplog.records) == 1
        assert f"{AFTER:g} s" in caplog.text
        async with Commander(slow_after=AFTER / 2) as inner:
            await inner.run(blocking())
        await commander.run(blocking())
    assert [f"{each:g} s at" in caplog.text for each in (AFTER, AFTER / 2)] == [True, True]
    assert len(caplog.records) == 3


async def test_a_body_that_waits_is_not_named(caplog):
    """An idle loop is not named either, nor a loop that is busy in many short turns."""

    @handler
    async def busy(node):
        deadline = time.monotonic() + BLOCK
        while time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0)

    async with asyncio.timeout(30), Commander(slow_after=AFTER * 5) as commander:
        await commander.run(patient())
        await asyncio.sleep(BLOCK)
        await commander.run(busy())
    assert caplog.records == []


async def test_a_long_turn_of_many_short_bodies_is_not_named(caplog):
    """Ten short bodies exceed the limit in one turn without a warning. A long one is named."""
    watch, now = BlockDetector(1_000), time.monotonic()

    def passes(seconds):
        nonlocal now
        now += seconds
        watch.look(now)

    @handler
    async def body(node, seconds):
        passes(1)
        passes(seconds)

    async with asyncio.timeout(30), Commander(slow_after=None) as commander:
        for _ in range(10):
            commander.call_handler(body(900))
        await settle_loop()
        assert caplog.records == []
        await commander.call_handler(body(1_100))
    watch.close()
    assert len(caplog.records) == 1


async def test_code_beside_the_tree_is_not_named(caplog):
    """A task outside the tree is not the tree's concern."""

    async def stranger():
        time.sleep(BLOCK)  # noqa: ASYNC251

    async with asyncio.timeout(30), Commander(slow_after=AFTER):
        await asyncio.create_task(stranger())
    assert caplog.records == []


async def test_none_turns_it_off(caplog):
    """No warning is logged."""

    @handler
    async def body(node):
        time.sleep(BLOCK)  # noqa: ASYNC251

    async with asyncio.timeout(30), Commander(slow_after=None) as commander:
        await commander.run(body())
    assert caplog.records == []


async def test_the_default_is_a_tenth_of_a_second(caplog):
    """A block of three tenths is named without any option."""
    async with asyncio.timeout(30), Commander() as commander:
        await commander.run(blocking())
    assert len(caplog.records) == 1
    assert "0.1 s" in caplog.text


async def test_a_commander_with_a_long_limit_does_not_keep_another_from_being_watched(caplog):
    """The watcher sleeps as long as the limits allow, and wakes up for a new one."""
    async with asyncio.timeout(30), Commander(slow_after=1_000):
        await asyncio.sleep(BLOCK)  # the watching thread falls asleep
        async with Commander(slow_after=AFTER) as commander:
            await commander.run(blocking())
    assert len(caplog.records) == 1


@pytest.mark.parametrize("after", [0, -1])
async def test_a_time_that_is_not_above_zero_is_refused(after):
    """The limit would warn of everything."""
    with pytest.raises(ValueError, match="slow_after"):
        async with Commander(slow_after=after):
            pass


async def test_one_daemon_thread_watches_for_the_whole_process():
    """Several commanders on several loops share the thread."""

    def watchers():
        return [thread for thread in threading.enumerate() if thread.name == "anabranch"]

    async def main():
        async with Commander(slow_after=AFTER):
            await settle_loop()
            return watchers()

    async with asyncio.timeout(30), Commander(slow_after=AFTER), Commander(slow_after=AFTER):
        one = watchers()
        two = await asyncio.to_thread(asyncio.run, main())
    assert one == two
    assert len(one) == 1
    assert one[0].daemon


async def test_a_callback_that_blocks_is_its_own_nodes(caplog):
    """A parent's callback may run in the task of its last child. Predicates are covered too."""

    @handler
    async def parent(node, failing):
        node.call_handler(leaf(failing))

    @handler
    async def leaf(node, failing):
        await asyncio.sleep(0)
        if failing:
            raise ValueError

    def blocks(*_):
        block()

    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        await commander.run(parent(False).at_end(blocks))
        with pytest.raises(ValueError):
            await commander.run(parent(True), retry=Retry(on=blocks))
    messages = [record.getMessage() for record in caplog.records]
    assert [message.split(" ")[0] for message in messages] == [
        "Commander/parent#1",
        "Commander/parent#3",
    ]
    assert all(f"{__file__}:{line_of(block, 'warned.wait')}" in each for each in messages)


async def test_what_the_package_loads_by_itself_is_not_the_users_block(
    caplog, tmp_path, monkeypatch
):
    """The warning names the module being loaded. Imports in the user's code count as the user's."""
    (tmp_path / "library_of_ours").mkdir()
    for file in ("library_of_ours/late.py", "library_of_theirs.py"):
        waits = "import test_t12_slow as t; t.warned.clear(); t.warned.wait(10)"
        (tmp_path / file).write_text(f"{waits}\nimport time; time.sleep(4 * t.AFTER); late = 1")
    (tmp_path / "library_of_ours" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "test_t12_slow", sys.modules[__name__])
    import library_of_ours  # noqa: F401

    monkeypatch.setattr(
        "anabranch.commander._block_detector.is_library",
        lambda file: "library_of" in file or is_library(file),
    )
    load = lazy_names("library_of_ours", {"late": "late"})

    @handler
    async def ours(node):
        load("late")

    @handler
    async def theirs(node):
        import library_of_theirs  # noqa: F401

    async with asyncio.timeout(30), Commander(slow_after=AFTER) as commander:
        await commander.run(ours())
        await commander.run(theirs())
    first, second = (record.getMessage() for record in caplog.records)
    assert "the import of library_of_ours.late" in first
    assert f"blocks the event loop for more than {AFTER:g} s at {__file__}" in second


async def test_a_loop_that_closes_while_it_is_looked_at_ends_no_watcher(monkeypatch):
    """The watcher looks from its own thread, and continues to watch other loops."""
    watch = BlockDetector(1_000)

    def closed(*_):
        raise RuntimeError("Event loop is closed")

    with monkeypatch.context() as patch:
        patch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", closed)
        watch.look(time.monotonic())
    watch.close()


async def test_who_blocks_a_server_is_named_once(caplog):
    """Each request's run has a separate tree. The server's commander watches all of them."""
    waiting = asyncio.Event()

    def answer(_):
        block()
        return "Done."

    backend = ScriptedBackend(*[[waiting, "late", Delta(done=True)]] * 4, answer)
    server = serve({"writer": backend})
    question = RunInput([Message(role="user", content="hi")])
    async with asyncio.timeout(30), server.running():
        for number in range(5):
            server.runs.start(server.served["writer"], question, "me", "detach")
            await wait_until(lambda number=number: backend.opened > number)
        waiting.set()
        await wait_until(lambda: server.runs.running == 0)
    assert sum("blocks the event loop" in message for message in caplog.messages) == 1


async def test_the_watch_keeps_no_node_that_has_ended(monkeypatch):
    """This holds also while the watcher calls the loop, which may continue in that call."""
    loop = asyncio.get_running_loop()
    ask, asks, may_go_on = loop.call_soon_threadsafe, threading.Event(), threading.Event()

    def ask_slowly(*args, **options):
        if threading.current_thread().name == "anabranch":
            asks.set()
            may_go_on.wait(5)
        return ask(*args, **options)

    @handler
    async def until_it_asks(node):
        assert asks.wait(5)

    monkeypatch.setattr(loop, "call_soon_threadsafe", ask_slowly)
    async with asyncio.timeout(10), Commander() as commander:
        node = until_it_asks()
        reference = weakref.ref(node)
        await commander.run(node)
        del node
        gc.collect()
        is_kept = reference() is not None
        may_go_on.set()
    assert not is_kept
