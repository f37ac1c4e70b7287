"""Failures are stored as type, arguments, attributes and notes, and raised as that type (D18)."""

from __future__ import annotations

import asyncio
import importlib
import io
import json
import re
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import FrozenInstanceError, dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.broken_objects import ERRORS, FATAL_ERRORS, Broken, Frozen, Mute, Slotted, make_error
from support.seeds import example_count

import anabranch
from anabranch import AnabranchError, Message, NodeCancelled, QuorumNotMet, RateLimited
from anabranch.agents.errors import ConversationTooLong, LimitReached, UnknownAgent
from anabranch.cluster import ActorNotFound
from anabranch.commander._report import group
from anabranch.commander.errors import (
    MissingExtra,
    NodeClosed,
    StreamInterrupted,
    WorkerLost,
)
from anabranch.knowledge import KnowledgeError
from anabranch.messages import ToolCallError
from anabranch.store._failure import decode_failure, encode_failure
from anabranch.store.errors import (
    JournalError,
    JournalMismatch,
    LeaseLost,
    NotPending,
    NotStorable,
    RunBusy,
    RunExists,
    RunNotFound,
    RunParked,
)

pytestmark = pytest.mark.contract("D18")

NOTES = BaseException.__dict__["__dict__"].__get__


def told(error: BaseException) -> Any:
    """Return the parts of an error that identify it, without its own code except for its text."""
    own = dict(NOTES(error))
    notes = own.pop("__notes__", None)
    try:
        text = str(error)
    except Exception:
        text = ""
    members: Any = error.exceptions if issubclass(type(error), BaseExceptionGroup) else ()
    args = error.args if not members else error.args[:1]
    return (
        type(error),
        seen(args),
        seen(own),
        [each for each in notes if type(each) is str] if type(notes) is list else [],
        text,
        [told(each) for each in members],
    )


def seen(value: Any) -> Any:
    if type(value) in (list, tuple):
        return type(value), [seen(each) for each in value]
    if type(value) is dict:
        return {key: seen(each) for key, each in value.items()}
    return told(value) if isinstance(value, BaseException) else value


def kept(error: BaseException) -> BaseException:
    data = encode_failure(error)
    json.loads(data)
    back = decode_failure(data)
    assert encode_failure(back) == data  # after each resume
    return back


# --- the errors of the package

OWN: dict[type, BaseException] = {
    type(each): each
    for each in (
        NodeClosed("a/b", "is closing"),
        NodeCancelled("a/b", "exit"),
        QuorumNotMet(2, 1, [], [1, "two", Message(role="user", content="x")]),
        WorkerLost("a/b", "its machine went away"),
        MissingExtra("Ray", "ray"),
        RateLimited("slow", retry_after=2.5),
        StreamInterrupted("gone", partial=Message(role="assistant", content="Hel")),
        UnknownAgent("bob", ["alice"]),
        ConversationTooLong(7),
        LimitReached("max_steps", 3, "bob", "too many steps"),
        ActorNotFound("agent", "bob", ["alice"], "local"),
        ToolCallError("1", "search", 0, '{"a'),
        JournalError("runs.db", "is locked", "wait"),
        KnowledgeError("notes.db", "is locked", "wait"),
        LeaseLost("r"),
        NotPending("r", 3, "it was answered"),
        RunExists("r", "its class is Order"),
        RunNotFound("r", "runs.db"),
        RunBusy("r", 12, 3.5),
        RunParked("r", "was taken up in vain"),
    )
}


def errors_of_the_package() -> set[type[AnabranchError]]:
    """Import every module of the package that mentions one."""
    root = Path(anabranch.__file__).parent
    found = {"AnabranchError"}
    texts = {path: path.read_text() for room in root.iterdir() for path in room.glob("**/*.py")}
    for _ in range(4):  # levels of the tree
        for path, text in texts.items():
            for name, bases in re.findall(r"^class (\w+)\(([\w, ]+)\):", text, re.MULTILINE):
                if found & set(bases.split(", ")) and name not in found:
                    found.add(name)
                    module = ".".join(path.relative_to(root).with_suffix("").parts)
                    importlib.import_module(f"anabranch.{module}")
    below: list[type[AnabranchError]] = [AnabranchError]
    for kind in below:
        below += kind.__subclasses__()
    kinds = {kind for kind in below if kind.__module__.startswith("anabranch.")}
    assert {kind.__name__ for kind in kinds} == found
    return kinds


def test_every_error_of_the_package_comes_back_as_it_was() -> None:
    """With its text, its attributes and its notes."""
    kinds = errors_of_the_package()
    assert {*OWN, NotStorable, JournalMismatch} <= kinds
    for kind in kinds:
        error = OWN.get(kind) or kind("it failed")
        error.add_note("in Commander/Job#1")
        assert told(kept(error)) == told(error), kind


# --- other errors


class Plain(Exception):
    pass


class Coded(Exception):
    """An error whose constructor takes other arguments than it passes on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code


class Keyword(ValueError):
    def __init__(self, *, code: int) -> None:
        self.code = code

    def __str__(self) -> str:
        return f"code {self.code}"


class Outer:
    class Inner(LookupError):
        pass


class OwnOs(OSError):
    def __init__(self, number: int, why: str, extra: str) -> None:
        super().__init__(number, why)
        self.extra = extra


class Both(Coded, KeyError):
    pass


class SlotError(Exception):
    __slots__ = ("code",)


@dataclass
class Data(Exception):
    code: int
    items: tuple[str, ...] = ()


class OwnGroup(ExceptionGroup[Exception]):
    def __new__(cls, message: str, errors: list[Exception], code: int = 0) -> OwnGroup:
        made = super().__new__(cls, message, errors)
        made.code = code
        return made

    code: int


def raised(body: Callable[[], Any]) -> BaseException:
    try:
        body()
    except BaseException as error:
        return error.with_traceback(None)
    raise AssertionError


def slotted() -> SlotError:
    error = SlotError("x")
    error.code = 3  # type: ignore[attr-defined]
    return error


OTHERS: list[BaseException] = [
    Plain(), Plain("a", 1, None, 2.5, True), Plain(["a", {"b": (1, b"\xff")}]), Plain("\ud800"),
    Plain({"$set": 1}, {1: 2}, {"a"}, float("inf"), 10**5000), Coded(3, "no"), Keyword(code=3),
    Outer.Inner("x"), OwnOs(2, "gone", "extra"), Both(3, "no"), slotted(), Data(3, ("a",)),
    Frozen("x"), Slotted("x"), OwnGroup("g", [Plain(1), Coded(1, "x")], 7),
    Plain(Path("a"), Message(role="user", content="x")), Plain(ValueError(Plain(KeyError(1)))),
    KeyError("x"), KeyError(1), IndexError(), StopIteration(3), StopAsyncIteration(), SystemExit(2),
    SystemExit(), KeyboardInterrupt(), GeneratorExit(), RecursionError("deep"), MemoryError(),
    TimeoutError(), TimeoutError("x"), asyncio.CancelledError(), asyncio.CancelledError("x"),
    asyncio.IncompleteReadError(b"a", 3), asyncio.QueueFull(),
    OSError(), OSError("x"), OSError(28, "full"), FileNotFoundError(2, "gone", "a"),
    OSError(18, "cross", "a", None, "b"), ConnectionResetError(104, "reset"), BrokenPipeError(),
    FileNotFoundError(2, "gone", Path("a")), BlockingIOError(11, "busy"), PermissionError(13, "no"),
    ImportError("x", name="a", path="b"), ModuleNotFoundError("x", name="a"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    UnicodeEncodeError("ascii", "é", 0, 1, "bad"),
    SyntaxError("bad", ("f", 1, 2, "a b", 1, 3)), json.JSONDecodeError("bad", "{", 1),
    io.UnsupportedOperation("read"),
    ExceptionGroup("g", [KeyError(1), ExceptionGroup("h", [Plain()])]),
    BaseExceptionGroup("g", [KeyboardInterrupt(), asyncio.CancelledError()]), NotImplementedError(),
    raised(lambda: json.loads("{")), raised(lambda: int("x")), raised(lambda: {}["a"]),
    raised(lambda: [].nothing), raised(lambda: b"\xff".decode()),
    raised(lambda: Path("/none/at/all").read_text()),
    raised(lambda: compile("a b", "f", "exec")), raised(lambda: importlib.import_module("no_such")),
]  # fmt: skip


@pytest.mark.parametrize("error", OTHERS, ids=lambda error: type(error).__name__)
def test_an_error_comes_back_as_it_was(error: BaseException) -> None:
    """No constructor of the class is called."""
    with suppress(Broken, FrozenInstanceError):
        error.add_note("a note")
    back = kept(error)
    assert told(back) == told(error)
    for name in ("errno", "strerror", "filename", "filename2", "name", "path", "start", "code"):
        if not isinstance(error, AttributeError):  # it contains the object, which is not stored
            assert getattr(back, name, None) == getattr(error, name, None)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.lists(inner, max_size=2).map(tuple)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
        | st.builds(Plain, inner)
    ),
    max_leaves=4,
)
KINDS = (Plain, ValueError, KeyError, Both, Coded, OwnOs, ToolCallError, QuorumNotMet, SlotError)


@settings(max_examples=example_count(100, 3000))
@given(
    st.sampled_from(KINDS),
    st.lists(VALUES, max_size=3),
    st.dictionaries(st.sampled_from(["a", "number", "$x", "two words"]), VALUES, max_size=2),
    st.lists(st.text(max_size=3), max_size=2),
)
def test_arguments_attributes_and_notes_come_back(
    kind: type[Exception], args: list[Any], attributes: dict[str, Any], notes: list[str]
) -> None:
    """For any kind of data."""
    error = kind.__new__(kind, *args)
    vars(error).update(attributes)
    for note in notes:
        error.add_note(note)
    assert told(kept(error)) == told(error)


def test_causes_are_named_in_notes() -> None:
    """Each of them, down to the first, once; `from None` hides the earlier ones."""
    first, second, third = KeyError("a"), ValueError("b\nc"), Plain("d" * 1000)
    third.__cause__, second.__context__ = second, first
    back = kept(third)
    assert back.__notes__ == ["caused by ValueError: b c", "caused by KeyError: 'a'"]
    assert back.__cause__ is back.__context__ is None
    first.__cause__ = third  # a circle
    assert len(kept(third).__notes__) == 2
    second.__suppress_context__ = True
    assert len(kept(third).__notes__) == 1
    met = QuorumNotMet(2, 0, [Plain("x"), KeyError("y")])
    back = kept(met)
    assert isinstance(back, QuorumNotMet)
    assert [told(each) for each in back.failures] == [told(each) for each in met.failures]
    assert back.__notes__ == ["caused by ExceptionGroup: children that failed (2 sub-exceptions)"]


# --- failures that cannot be stored


class Hidden(Exception):
    """Stores something where it cannot be found."""

    def __str__(self) -> str:
        return str(STORE.get(id(self)))


STORE: dict[int, str] = {}


def shadowed() -> BaseException:
    return type("Plain", (Exception,), {"__module__": __name__})("x")


def local() -> BaseException:
    class Local(Exception):
        pass

    return Local("x")


def hidden() -> BaseException:
    error = Hidden()
    STORE[id(error)] = "x"
    return error


def nested() -> BaseException:
    error: BaseException = ValueError()
    for _ in range(10_000):
        error = ValueError(error)
    return error


def circular() -> BaseException:
    error = ValueError()
    error.args = (error,)
    return error


REFUSED: dict[str, tuple[Callable[[], BaseException], str]] = {
    "local": (local, "its class is not "),
    "shadowed": (shadowed, "its class is not "),
    "lock": (lambda: Plain(threading.Lock()), "it contains a lock, which is not data"),
    "object": (lambda: Plain("a", object()), "it contains a object, which is not data"),
    "function": (lambda: Plain(lambda: 0), "it contains a function, which is not data"),
    "attribute": (lambda: coded(threading.Lock()), "it contains a lock, which is not data"),
    "member": (lambda: ExceptionGroup("g", [Plain(1), Plain(object())]), "it contains a object"),
    "local member": (lambda: BaseExceptionGroup("g", [local()]), "its class is not "),
    "hidden": (hidden, "its arguments and attributes do not reproduce it"),
    "deep": (nested, "RecursionError"),
    "circular": (circular, "RecursionError"),
}


def coded(code: Any) -> Coded:
    return Coded(code, "x")


@pytest.mark.parametrize("name", REFUSED)
def test_one_that_cannot_be_made_again_is_refused(name: str) -> None:
    """In the first execution, by a message that names its class and the reason."""
    make, why = REFUSED[name]
    error = make()
    with pytest.raises(NotStorable) as caught:
        encode_failure(error)
    assert f"{type(error).__module__}:{type(error).__qualname__}" in str(caught.value)
    assert why in str(caught.value)


@pytest.mark.parametrize("name", ERRORS | FATAL_ERRORS)
@pytest.mark.parametrize("around", ["bare", "argument", "group", "cause"])
def test_no_odd_error_breaks_it(name: str, around: str) -> None:
    """It is stored or refused, and decoded as its type."""
    odd = make_error(name)
    error: BaseException = odd
    if around == "argument":
        error = Plain(odd)
    elif around == "group":
        error = group("g", [odd])
    elif around == "cause":
        error = Plain()
        error.__cause__ = odd
    try:
        data = encode_failure(error)
    except NotStorable:
        assert name not in ("Mute", "Frozen", "Slotted", "Closed", "Liar", "Nameless", "Group")
        return
    assert type(decode_failure(data)) is type(error)


def test_a_text_that_is_lost_does_not_matter() -> None:
    """An error whose text cannot be read is decoded nevertheless."""
    back = kept(Mute("x"))
    assert type(back) is Mute
    assert back.args == ("x",)


# --- the code has changed


@pytest.mark.parametrize(
    ("module", "qualname"),
    [
        ("no.such.module", "Gone"), (__name__, "Gone"), (__name__, "Outer.Gone"), ("", ""),
        ("..", "x"), (__name__, "kept"), (__name__, "OTHERS"), ("os", "path"), ("builtins", "int"),
        ("os", "system"),
        ("store_broken_module", "Broken"),
    ],
)  # fmt: skip
def test_a_class_that_is_gone_gives_a_mismatch_that_says_what_failed(
    module: str, qualname: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is called, whatever has that name now."""
    (tmp_path / "store_broken_module.py").write_text("raise SystemExit('no')")
    monkeypatch.syspath_prepend(tmp_path)
    found = json.loads(encode_failure(Plain("what happened")))
    found["type"] = [module, qualname]
    back = decode_failure(json.dumps(found).encode())
    assert type(back) is JournalMismatch
    assert "what happened" in str(back)
    assert f"{module}:{qualname}" in str(back)


def test_a_module_that_is_not_loaded_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a restart, when the body that would import it does not run."""
    (tmp_path / "store_late_module.py").write_text("class Late(Exception): pass")
    monkeypatch.syspath_prepend(tmp_path)
    late = importlib.import_module("store_late_module")
    data = encode_failure(late.Late("x"))
    monkeypatch.delitem(sys.modules, "store_late_module")
    back = decode_failure(data)
    assert type(back).__qualname__ == "Late"
    assert back.args == ("x",)
