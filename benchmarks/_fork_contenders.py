"""The contenders of `fork.py`: ways to extract a call's arguments from a stream of deltas."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from anabranch.commander import Node
from anabranch.dispatch import fork
from anabranch.messages import Delta, ToolCallDelta

CHARACTERS = 4  # in a delta
# The deltas at which a contender that parses again is timed; fewer in a long stream.
SAMPLES = 400
LEAST_SAMPLES = 20


@dataclass(slots=True)
class Stream:
    """The arguments of one call, and the deltas that contain them."""

    shape: str
    arguments: dict[str, Any]
    text: str = ""
    pieces: list[str] = field(default_factory=list)
    deltas: list[Delta] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.text = json.dumps(self.arguments, ensure_ascii=False)
        size = CHARACTERS
        self.pieces = [self.text[at : at + size] for at in range(0, len(self.text), size)]
        self.deltas = [
            Delta(tool_calls=(ToolCallDelta(0, "call_a", "write"),)),
            *(Delta(tool_calls=(ToolCallDelta(0, arguments=each),)) for each in self.pieces),
            Delta(finish_reason="tool_calls"),
        ]

    async def source(self) -> AsyncIterator[Delta]:
        for delta in self.deltas:
            yield delta


def streams(size: int) -> list[Stream]:
    """Return arguments of about `size` characters: a long string, many small values, `to_user`."""
    line = '    items.append("%d")  # keeps what came, né\n'
    code = "".join(line % number for number in range(size // len(line)))
    row = {"id": 0, "name": "a row", "ok": True, "tags": ["a", "b"], "value": 1.5}
    rows = [{**row, "id": number} for number in range(size // len(json.dumps(row)))]
    prose = "It is not the whole that matters, but what comes out of it; wait a little.\n"
    hello = "I will write it now."
    return [
        Stream("code", {"to_user": hello, "path": "a.py", "code": code}),
        Stream("rows", {"to_user": hello, "rows": rows}),
        Stream("to_user", {"to_user": prose * (size // len(prose)), "path": "a.py"}),
    ]


class Contender:
    """Extracts the arguments of a stream's call; `cost` is the CPU time in seconds."""

    name: str
    once = False
    """Whether it is too slow to be measured more than once."""

    async def take(self, node: Node[Any], stream: Stream) -> object:
        raise NotImplementedError

    async def cost(self, node: Node[Any], stream: Stream) -> float:
        before = time.process_time()
        taken = await self.take(node, stream)
        spent = time.process_time() - before
        assert taken == self.expected(stream), f"{self.name} gave something else"
        return spent

    def expected(self, stream: Stream) -> object:
        return {key: each for key, each in stream.arguments.items() if key != "to_user"}


class LowerBound(Contender):
    """Joins all pieces and parses once at the end, so nothing is available before."""

    name = "lower bound"

    async def take(self, node: Node[Any], stream: Stream) -> object:
        pieces: list[str] = []
        async for delta in stream.source():
            for call in delta.tool_calls:
                pieces.append(call.arguments)  # noqa: PERF401 - the fastest there is
        arguments = json.loads("".join(pieces))
        del arguments["to_user"]
        return arguments


class Ours(Contender):
    """`fork()` and its calls; `to_user` is extracted and not read."""

    name = "anabranch"

    async def take(self, node: Node[Any], stream: Stream) -> object:
        reply = fork(node, stream.source(), to_user="to_user")
        (call,) = [each async for each in reply.tool_calls]
        return call.arguments  # type: ignore[union-attr]


class OursHeard(Contender):
    """The same, and the text for the user is read while it streams."""

    name = "anabranch, text read"

    async def take(self, node: Node[Any], stream: Stream) -> object:
        reply = fork(node, stream.source(), to_user="to_user")
        heard = asyncio.create_task(self._hear(reply.text))
        (call,) = [each async for each in reply.tool_calls]
        assert await heard == stream.arguments["to_user"]
        return call.arguments  # type: ignore[union-attr]

    async def _hear(self, text: AsyncIterator[str]) -> str:
        return "".join([each async for each in text])


# What agere reads: objects as the openai SDK has them.


@dataclass(slots=True)
class _Function:
    arguments: str
    name: str | None = None


@dataclass(slots=True)
class _Call:
    function: _Function
    type: str | None = None
    id: str | None = None
    index: int = 0


@dataclass(slots=True)
class _Piece:
    tool_calls: list[_Call] | None = None
    content: str | None = None


@dataclass(slots=True)
class _Choice:
    delta: _Piece
    finish_reason: str | None = None


@dataclass(slots=True)
class _Chunk:
    choices: list[_Choice]


class Agere(Contender):
    """agere's dispatcher: two queues, one task; text and calls are both read."""

    name = "agere"
    once = True

    def __init__(self) -> None:
        from agere.utils.dispatcher import async_dispatcher_tools_call_for_openai

        self._dispatch = async_dispatcher_tools_call_for_openai
        self._chunks: dict[int, list[_Chunk]] = {}
        self.version = f"agere {version('agere')}"

    async def take(self, node: Node[Any], stream: Stream) -> object:
        branch = await self._dispatch(self._source(self._chunks[id(stream)]))
        texts = [each async for each in branch("to_user")]
        (call,) = [each async for each in branch("function_call")]
        return "".join(texts), json.loads(call)["arguments"]

    async def cost(self, node: Node[Any], stream: Stream) -> float:
        self._chunks = {id(stream): list(self._chunks_of(stream))}
        return await super().cost(node, stream)

    def expected(self, stream: Stream) -> object:
        # It returns the text unparsed, with its escapes.
        sent = json.dumps(stream.arguments["to_user"], ensure_ascii=False)[1:-1]
        return sent, super().expected(stream)

    def _chunks_of(self, stream: Stream) -> Sequence[_Chunk]:
        head = _Call(_Function("", "write"), "function", "call_a")
        calls = [head, *(_Call(_Function(each)) for each in stream.pieces)]
        chunks = [_Chunk([_Choice(_Piece([call]))]) for call in calls]
        return [*chunks, _Chunk([_Choice(_Piece(), "tool_calls")])]

    async def _source(self, chunks: list[_Chunk]) -> AsyncIterator[_Chunk]:
        for chunk in chunks:
            yield chunk


class ParsedAnew(Contender):
    """Parses the complete text so far again for each delta.

    Only a sample of the deltas, evenly spread, is parsed, and the time is multiplied.
    """

    once = True

    def parse(self, text: str) -> object:
        raise NotImplementedError

    async def cost(self, node: Node[Any], stream: Stream) -> float:
        assert self.parse(stream.text) == stream.arguments, f"{self.name} gave something else"
        samples = max(LEAST_SAMPLES, SAMPLES * 10_000 // len(stream.text))
        stride = max(1, len(stream.pieces) // samples)
        places = range(stride // 2, len(stream.pieces), stride)
        texts = [stream.text[: place * CHARACTERS] or "{" for place in places]
        before = time.process_time()
        for text in texts:
            self.parse(text)
        return (time.process_time() - before) / len(texts) * len(stream.pieces)


class Jiter(ParsedAnew):
    """`jiter.from_json(partial_mode="trailing-strings")`."""

    name = "jiter, parsed anew"

    def __init__(self) -> None:
        from jiter import from_json

        self._parse = from_json
        self.version = f"jiter {version('jiter')}"

    def parse(self, text: str) -> object:
        return self._parse(text.encode(), partial_mode="trailing-strings")


class PartialJson(ParsedAnew):
    """`partial_json_parser.loads`."""

    name = "partial-json-parser, anew"

    def __init__(self) -> None:
        from partial_json_parser import loads

        self._parse = loads
        self.version = f"partial-json-parser {version('partial-json-parser')}"

    def parse(self, text: str) -> object:
        return self._parse(text)


OURS: list[type[Contender]] = [Ours, OursHeard]
OTHERS: list[type[Any]] = [Agere, Jiter, PartialJson]
