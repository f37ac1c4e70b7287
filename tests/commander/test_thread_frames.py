"""Frames of a running thread are read safely, whatever finalizers do."""

import gc
import itertools
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from anabranch.commander.thread import frames_of_thread, local_in

pytestmark = pytest.mark.contract("T12")

# The reader's garbage lets the other thread leave all its frames and enter others.
# Runs in a separate process: reading frames that the thread has left crashes.
FINALIZER = """
    import gc, sys, threading
    from anabranch.commander.thread import frames_of_thread, local_in

    DEEP = 200
    arrived, may_go_on, over = threading.Event(), threading.Event(), threading.Event()
    moved = threading.Event()
    finalized = []

    def first(left):
        if left:
            first(left - 1)
        else:
            arrived.set()
            may_go_on.wait()

    def second(left, a=1, b=2, c=3, d=4):
        e, f, g = [a], [b], {"c": c}
        if left:
            second(left - 1, e, f, g, d)
        else:
            moved.set()
            over.wait()

    def body():
        first(DEEP)
        second(DEEP)

    class Garbage:
        def __init__(self):
            self.circle = self

        def __del__(self):
            may_go_on.set()
            moved.wait()
            finalized.append(True)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    arrived.wait()
    gc.collect()
    gc.disable()
    Garbage()
    gc.set_threshold(%d, 1, 1)
    gc.enable()
    read = frames_of_thread(thread.ident)
    gc.disable()
    names = [frame.f_code.co_name for frame in read]
    lefts = [local_in(frame, "left") for frame in read]
    lefts = [left for left in lefts if left is not None]
    gc.set_threshold(1, 1, 1)
    gc.enable()
    [[] for _ in range(100)]
    assert finalized
    over.set()
    thread.join()
    inner = {name for name in names if name in ("first", "second")}
    assert len(inner) == 1, names
    assert names.count(inner.pop()) == DEEP + 1, names
    assert names[-4:] == ["body", "run", "_bootstrap_inner", "_bootstrap"], names
    assert lefts == list(range(DEEP + 1)), lefts
"""


@pytest.mark.parametrize("threshold", [1, 5, 50, 150, 1_000])
def test_a_finalizer_does_not_let_the_thread_run_on_while_its_frames_are_read(threshold):
    """Wherever the collector would start, all frames are of the same moment."""
    program = textwrap.dedent(FINALIZER % threshold)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_the_frames_of_a_thread_that_calls_and_returns_are_read_from_another():
    """Each read is a possible stack, deep or shallow, also with garbage that has finalizers."""
    over, called = threading.Event(), threading.Event()
    calls = itertools.count()

    class Garbage:
        def __init__(self):
            self.circle = self

        def __del__(self):
            time.sleep(0)  # lets the other thread run

    def deep(left):
        if left:
            deep(left - 1)
        if next(calls) % 37 == 0 and not called.is_set():
            Garbage()  # one per read, or the reader would spend its time on finalizers
            called.set()
        return [left]

    def body():
        while not over.is_set():
            for depth in (0, 300, 20, 100):
                deep(depth)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    depths = set()
    threshold = gc.get_threshold()
    gc.set_threshold(100, 2, 2)
    try:
        for _ in range(100):
            called.clear()
            assert called.wait(30)
            frames = frames_of_thread(thread.ident)
            names = [frame.f_code.co_name for frame in frames]
            assert names[-3:] == ["run", "_bootstrap_inner", "_bootstrap"]
            lefts = [local_in(frame, "left") for frame in frames if frame.f_code is deep.__code__]
            assert lefts == [lefts[0] + index for index in range(len(lefts))]
            depths.add(len(frames))
    finally:
        gc.set_threshold(*threshold)
        over.set()
        thread.join(30)
    assert not thread.is_alive()
    assert len(depths) > 10
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off():
    """An enabled collector stays enabled, also if the thread has ended."""
    ended = threading.Thread(target=int)
    ended.start()
    ended.join()
    assert frames_of_thread(ended.ident) == ()
    assert gc.isenabled()
    gc.disable()
    try:
        assert frames_of_thread(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()
