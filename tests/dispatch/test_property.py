"""F1: for every message and every cut, the branches equal the result of parsing the whole text.

Hypothesis makes the messages. Each is cut in one of many ways: into single characters, into pieces
of even size, or at random places, with several pieces per delta, or several deltas at once. Each of
the five properties runs 600 examples, and 20,000 in `make test-all`.
"""

import json
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.paths import DATA
from support.seeds import example_count

from anabranch.dispatch import (
    BareJSON,
    FencedCode,
    Format,
    Hermes,
    InternLMInterpreter,
    InternLMPlugin,
    Llama,
    Mistral,
    ReAct,
    Think,
)
from anabranch.dispatch.assembly import Assembly, Branches
from anabranch.messages import Delta, Message, ToolCall, ToolCallDelta

pytestmark = pytest.mark.contract("F1")

thorough = settings(
    max_examples=example_count(600, 20_000),
    suppress_health_check=list(HealthCheck),
    database=None,
)


class Out:
    """The output of the branches."""

    def __init__(
        self, formats: list[Format], to_user: str | None = "to_user", at_once: int = 1
    ) -> None:
        self._at_once = at_once
        self.texts: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[Any] = []
        self.pieces: list[ToolCallDelta] = []
        self.message: Message | None = None
        branches = Branches(
            self.texts.append, self.thoughts.append, self.calls.append, self.pieces.extend
        )
        self._assembly = Assembly(branches, to_user, formats)

    def read(self, deltas: list[Delta], finish_reason: str = "stop") -> "Out":
        deltas = [*deltas, Delta(finish_reason=finish_reason)]
        for start in range(0, len(deltas), self._at_once):
            self._assembly.feed(deltas[start : start + self._at_once])
        for call in self._assembly.end():
            self._assembly.refuse(call)
        self.message = self._assembly.message()
        return self

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def named(self) -> list[tuple[str, Any]]:
        return [(c.name, c.arguments if isinstance(c, ToolCall) else c.raw) for c in self.calls]


def read(deltas: list[Delta], *formats: Format) -> Out:
    return Out([*formats], at_once=1 + len(deltas) % 3).read(deltas)


# --- writing and cutting a message

WORDS = ["to_user", "name", "\\", '"', "}", "é😀", "\u2028", ""]
words = st.text(max_size=12) | st.sampled_from(WORDS)
# One generator makes values, spellings and cuts. This is much cheaper than drawing each choice with
# Hypothesis, and repeatable.
chance = st.integers(0, 2**32).map(Random)
RANGES = [(32, 126), (0, 31), (160, 0x24F), (0x2000, 0x2FFF), (0xD800, 0xDFFF), (0x1F600, 0x10FFFF)]


def make_word(chance: Random) -> str:
    if chance.randrange(3):
        return chance.choice(WORDS)
    made = "".join(chr(chance.randint(*chance.choice(RANGES))) for _ in range(chance.randrange(9)))
    return made.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def make_value(chance: Random, depth: int = 3) -> Any:
    kind = chance.randrange(8 if depth else 6)
    if kind < 4:
        return (None, chance.random() < 0.5, chance.randint(-(10**20), 10**9), chance.gauss())[kind]
    if kind < 6:
        return make_word(chance)
    if kind == 6:
        return [make_value(chance, depth - 1) for _ in range(chance.randrange(4))]
    return make_object(chance, depth - 1)


def make_object(chance: Random, depth: int = 3) -> dict[str, Any]:
    return {make_word(chance): make_value(chance, depth) for _ in range(chance.randrange(5))}


def make_text(chance: Random) -> str:
    return " ".join(make_word(chance) for _ in range(chance.randrange(4)))


def some(make: Callable[[Random], Any], least: int, most: int) -> st.SearchStrategy[list[Any]]:
    return chance.map(lambda each: [make(each) for _ in range(each.randint(least, most))])


objects = chance.map(make_object)

SIZES = (1, 2, 3, 4, 7, None, None, None)


def spell(chance: Random, value: Any) -> str:
    """Write `value` as JSON in a random spelling."""

    def gap() -> str:
        return chance.choice(["", "", " ", "\n\t"])

    def write(value: Any) -> str:
        if isinstance(value, str):
            return spell_string(chance, value)
        if isinstance(value, list):
            items: list[Any] = value
            return "[" + ",".join(gap() + write(each) + gap() for each in items) + "]"
        if isinstance(value, dict):
            pairs: dict[str, Any] = value
            written = (f"{write(k)}{gap()}:{gap()}{write(v)}" for k, v in pairs.items())
            return "{" + ",".join(gap() + each + gap() for each in written) + "}"
        return json.dumps(value)

    return gap() + write(value) + gap()


def spell_string(chance: Random, text: str) -> str:
    style = chance.randrange(3)
    if style < 2:
        return json.dumps(text, ensure_ascii=bool(style))
    units = text.encode("utf-16-be", "surrogatepass")
    return '"' + "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2)) + '"'


def cut(chance: Random, text: str, size: int | None) -> list[str]:
    """Cut a text evenly, or at a few random places with empty pieces between them."""
    if size is not None:
        return [text[i : i + size] for i in range(0, len(text), size)]
    places = sorted(chance.randint(0, len(text)) for _ in range(chance.randrange(8)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


Piece = tuple[str, int, str]  # the kind of text, the call's index, the text


def to_deltas(chance: Random, pieces: list[Piece]) -> list[Delta]:
    """Put each piece into a delta, or several pieces into one."""
    deltas: list[Delta] = []
    together = chance.choice([1, 1, 2, 5])
    for start in range(0, len(pieces), together):
        delta = Delta()
        for kind, index, text in pieces[start : start + together]:
            if kind in ("call", "head"):
                head = kind == "head"
                new = ToolCallDelta(index, f"id{index}" if head else None, text if head else None)
                new.arguments = "" if head else text
                delta.tool_calls = [*delta.tool_calls, new]
                continue
            if getattr(delta, kind) or delta.tool_calls:
                deltas.append(delta)
                delta = Delta()
            setattr(delta, kind, text)
        deltas.append(delta)
    return deltas


def clean(text: str) -> str:
    """Replace lone surrogates: each text of a branch can be encoded as UTF-8."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def clean_value(value: Any) -> Any:
    return json.loads(clean(json.dumps(value, ensure_ascii=False)))


def told(arguments: str) -> list[str]:
    """Return the texts of the top-level `to_user`, by parsing the whole arguments."""
    pairs: list[tuple[str, Any]] = json.loads(arguments, object_pairs_hook=list)
    return [clean(value) for key, value in pairs if key == "to_user" and isinstance(value, str)]


def without(value: dict[str, Any]) -> dict[str, Any]:
    return {key: each for key, each in value.items() if key != "to_user"}


@thorough
@given(chance.map(make_text), chance.map(make_text), some(make_object, 0, 3), chance)
def test_the_branches_of_a_wire_message_hold_what_the_whole_holds(
    content: str, thought: str, values: list[dict[str, Any]], chance: Random
) -> None:
    """Reasoning, content and calls in turn: exactly the result of parsing."""
    written = [spell(chance, each) for each in values]
    texts = [clean(content), *(text for arguments in written for text in told(arguments))]
    values = [clean_value(each) for each in values]
    for size in chance.sample(SIZES, 1):
        pieces: list[Piece] = [("reasoning", 0, each) for each in cut(chance, thought, size)]
        pieces += [("text", 0, each) for each in cut(chance, content, size)]
        for index, arguments in enumerate(written):
            pieces.append(("head", index, f"f{index}"))
            pieces += [("call", index, each) for each in cut(chance, arguments, size)]

        out = read(to_deltas(chance, pieces))

        assert out.text == "\n".join(filter(None, texts))
        assert "".join(out.thoughts) == clean(thought)
        assert out.named == [(f"f{i}", without(each)) for i, each in enumerate(values)]
        assert out.message is not None
        said = (out.message.content or "", out.message.reasoning or "")
        assert said == (clean(content), clean(thought))
        sent = [(call.id, call.raw, call.arguments) for call in out.message.tool_calls]
        assert sent == [(f"id{i}", clean(each), values[i]) for i, each in enumerate(written)]
        assert "".join(piece.arguments for piece in out.pieces) == clean("".join(written))


lines = st.text(st.characters(exclude_characters="\n", exclude_categories=["Cs"]), max_size=8)
speaking = st.tuples(objects, lines).map(lambda both: {**both[0], "to_user": both[1]})


@thorough
@given(st.lists(speaking, min_size=1, max_size=4), chance)
def test_interleaved_calls_are_as_if_they_came_one_by_one(
    values: list[dict[str, Any]], chance: Random
) -> None:
    """Each call is complete, and texts do not mix."""
    written = [spell(chance, each) for each in values]
    texts = [each["to_user"] for each in values if each["to_user"]]
    for size in chance.sample(SIZES, 1):
        queues: list[list[Piece]] = [
            [("head", i, f"f{i}"), *(("call", i, piece) for piece in cut(chance, each, size))]
            for i, each in enumerate(written)
        ]
        pieces: list[Piece] = []
        while queues := [each for each in queues if each]:
            pieces.append(chance.choice(queues).pop(0))

        out = read(to_deltas(chance, pieces))

        values = [clean_value(each) for each in values]
        assert sorted(out.named) == [(f"f{i}", without(each)) for i, each in enumerate(values)]
        assert sorted(out.text.split("\n")) == (sorted(texts) or [""])


# --- invalid arguments


DAMAGE = ["", '"', "\\", "{", "}", "[", "]", ",", ":", "NaN", "\\u12", " x", "\n", "to_user"]


def damage(chance: Random, text: str) -> str:
    """Remove a piece of a text, or replace it."""
    start = chance.randint(0, len(text))
    return text[:start] + chance.choice(DAMAGE) + text[start + chance.randrange(4) :]


def whole_object(raw: str) -> Any:
    """Parse `raw` strictly: return its object without the text after it, or None."""
    start = len(raw) - len(raw.lstrip(" \t\r\n"))
    try:
        value, _ = json.JSONDecoder(parse_constant=lambda _: 1 / 0).raw_decode(raw, start)
    except (ValueError, ZeroDivisionError):
        return None
    return value if isinstance(value, dict) else None


@thorough
@given(objects, chance)
def test_damaged_arguments_are_run_only_if_they_are_a_whole_object(
    value: dict[str, Any], chance: Random
) -> None:
    """A call runs with the object of a strict parser. Otherwise the error has the raw text."""
    raw = damage(chance, spell(chance, value))
    expected = whole_object(raw) if raw.strip() else {}
    for size in chance.sample(SIZES, 1):
        pieces: list[Piece] = [("head", 0, "f")]
        pieces += [("call", 0, each) for each in cut(chance, raw, size)]

        (call,) = read(to_deltas(chance, pieces)).calls

        if expected is None:
            assert not isinstance(call, ToolCall)
            assert call.raw == clean(raw)
        else:
            assert isinstance(call, ToolCall)
            assert call.arguments == without(clean_value(expected))


# --- calls written as text


def as_json(name: str, arguments: str, key: str) -> str:
    return f'{{"name": {json.dumps(name)}, "{key}": {arguments}}}'


WRITERS: list[Callable[[str, str], str]] = [
    lambda name, args: f"<tool_call>{as_json(name, args, 'arguments')}</tool_call>",
    lambda name, args: f"<tool_call>\n{as_json(name, args, 'parameters')}\n</tool_call>",
    lambda name, args: InternLMPlugin.open + as_json(name, args, "parameters") + "<|action_end|>",
]
FORMATS: list[Format] = [
    Hermes(),
    InternLMPlugin(),
    InternLMInterpreter(),
    Llama(),
    Mistral(),
    FencedCode(),
    ReAct(),
    Think(),
]
# The text contains beginnings of markers, but no complete marker.
teasers = st.sampled_from(["<", "<tool", "</tool_call>", "[TOOL", "``", "<|action", "Act", "<th"])
prose = (
    st.lists(words | teasers, max_size=4)
    .map(" ".join)
    .filter(lambda text: not any(each.open in text for each in FORMATS))
)


def shown(parts: list[tuple[str, list[str]]]) -> str:
    """Return the text for the user: content and the texts of calls, in the order of `parts`.

    White space alone beside a call is dropped. A text of another origin begins a new line.
    """
    text, spoke = "", False
    for content, by_call in parts:
        if content.strip():
            text += ("\n" if text and spoke else "") + content
            spoke = False
        for each in filter(None, by_call):
            text += ("\n" if text else "") + each
            spoke = True
    return text


@thorough
@given(st.lists(st.tuples(prose, objects), max_size=3), prose, chance)
def test_calls_written_as_text_come_out_and_the_text_around_them_is_whole(
    parts: list[tuple[str, dict[str, Any]]], last: str, chance: Random
) -> None:
    """In several formats at once: no marker is shown, and all other text is."""
    text = ""
    for index, (content, value) in enumerate(parts):
        text += content + chance.choice(WRITERS)(f"f{index}", spell(chance, value))
    texts = [(content, told(json.dumps(value))) for content, value in parts]
    for size in chance.sample(SIZES, 1):
        out = read([Delta(each) for each in cut(chance, text + last, size)], *FORMATS)

        assert out.text == shown([*texts, (last, [])])
        values = [clean_value(value) for _, value in parts]
        assert out.named == [(f"f{i}", without(value)) for i, value in enumerate(values)]


SOUP = [
    *(each.open for each in FORMATS),
    *(each.close for each in FORMATS if each.close),
    *('{"name": "f", "arguments": {', '"to_user": "Hi"', '{"name": "g"', "}", "]", "[", ";", ","),
    *(
        "\n",
        " ",
        "x",
        "Action Input:",
        "Observation:",
        "[ARGS]",
        "\n```",
        "Action: f\n",
        "[CALL_ID]",
        "Thought",
        '"',
        "\\",
        "é😀",
    ),
]


# Failures found by this test or by hand.
FAILURES: list[str] = json.loads((DATA / "fork_failures.json").read_text())


@thorough
@given(st.lists(st.sampled_from(SOUP), max_size=14).map("".join), chance)
def test_whatever_the_model_writes_the_cut_makes_no_difference(text: str, chance: Random) -> None:
    """Markers in any order and number, in all formats at once, give the result of whole text."""
    for size in chance.sample(SIZES, 1):
        check_cut(text, cut(chance, text, size))


def check_cut(text: str, pieces: list[str]) -> None:
    formats = [*FORMATS, BareJSON()]
    whole = read([Delta(text)], *formats)
    out = read([Delta(each) for each in pieces], *formats)

    assert out.text == whole.text
    assert "".join(out.thoughts) == "".join(whole.thoughts)
    assert out.named == whole.named
    assert out.message == whole.message


def test_the_corpus_of_past_failures_passes() -> None:
    """Each at every cut into two and into single characters."""
    for text in FAILURES:
        check_cut(text, list(text))
        for place in range(len(text)):
            check_cut(text, [text[:place], text[place:]])
