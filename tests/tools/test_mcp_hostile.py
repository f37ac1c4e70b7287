"""Hostile MCP servers cannot stop the loop, fill memory or reveal a key."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import resource
import sys
import time
import traceback
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs.mcp_hostile import REFUSED
from support.leaks import child_processes, find_leaks
from support.paths import DATA, PROGRAMS
from support.threaded_byte_server import ThreadedByteServer

from anabranch.commander import ConfigurationError, ToolError
from anabranch.tools import InvalidArguments, McpServer, _mcp_wire, describe
from anabranch.tools._remote_schema import MAX_STEPS, RemoteSchema

SCHEMAS: dict[str, Any] = json.loads((DATA / "hostile_schemas.json").read_text())
HOSTILE = [sys.executable, str(PROGRAMS / "mcp_hostile.py")]
LITTLE = 0.5  # seconds of the loop's own thread, whatever else the machine does


@pytest.fixture(autouse=True, scope="module")
def _no_collections():
    """Collecting the garbage of earlier tests may take longer than the measured time."""
    gc.disable()
    yield
    gc.enable()


plain = (
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(-5, 5) | st.text("abc", max_size=3)
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=8,
)
calls = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


def schemas(*, whole: bool) -> st.SearchStrategy[Any]:
    """Draw schemas with checked keywords, or (`whole`) with all keywords and invalid values."""
    kinds = ["null", "boolean", "integer", "number", "string", "array", "object"]

    def extend(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        few = st.lists(inner, min_size=1, max_size=3)
        named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
        checked: dict[str, st.SearchStrategy[Any]] = {
            "type": st.sampled_from(kinds)
            | st.lists(st.sampled_from(kinds), min_size=1, max_size=3),
            "enum": st.lists(plain, min_size=1, max_size=3),
            "required": st.lists(st.sampled_from("abc"), unique=True, max_size=2),
            "properties": named,
            "additionalProperties": inner,
            "items": inner,
            "anyOf": few,
            "allOf": few,
            "minimum": st.integers(-3, 3),
            "exclusiveMaximum": st.integers(-3, 3),
            "maxLength": st.integers(0, 3),
            "minItems": st.integers(0, 3),
            "maxProperties": st.integers(0, 3),
            "$ref": st.sampled_from(["#/$defs/a", "#/$defs/b"]),
        }
        others: dict[str, st.SearchStrategy[Any]] = {
            "$ref": st.sampled_from(["#/$defs/a", "#/$defs/c/not", "#/properties/a", "x", "#y"]),
            "$id": st.just("http://e.com/x"),
            "const": values,
            "oneOf": few,
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "contains": inner,
            "prefixItems": few,
            "patternProperties": st.dictionaries(st.sampled_from(["a", "^b"]), inner, max_size=2),
            "unevaluatedProperties": inner,
            "dependentSchemas": named,
            "pattern": st.sampled_from(["a", "^b$"]),
            "uniqueItems": st.booleans(),
            "multipleOf": st.integers(1, 3),
            "propertyNames": inner,
        }
        return st.fixed_dictionaries({}, optional=checked | others if whole else checked)

    one = st.recursive(st.booleans() | st.just({}), extend, max_leaves=4)
    if not whole:  # jsonschema does not end on recursive references
        plain_one = st.sampled_from(
            [{"type": "integer"}, {"minimum": 0}, {"enum": ["a", 1]}, False]
        )
        definitions = st.fixed_dictionaries({"a": plain_one, "b": plain_one})
    else:
        definitions = st.fixed_dictionaries({"a": one, "c": one})
    return st.builds(lambda top, inside: {**top, "$defs": inside}, extend(one), definitions)


def refusal(schema: Any, arguments: dict[str, Any]) -> str:
    try:
        RemoteSchema(schema).check(arguments)
    except InvalidArguments as error:
        return str(error)
    return ""


def is_allowed(schema: Any, arguments: dict[str, Any]) -> bool:
    return jsonschema.Draft202012Validator({**schema, "type": "object"}).is_valid(arguments)


@settings(max_examples=100)
@given(schemas(whole=False), calls)
def test_what_is_checked_is_checked_as_the_standard_says(schema: Any, arguments: dict[str, Any]):
    """The check and the standard agree."""
    assert bool(refusal(schema, arguments)) != is_allowed(schema, arguments)


@settings(max_examples=60)
@given(schemas(whole=True), calls)
def test_nothing_is_refused_that_the_whole_schema_allows(schema: Any, arguments: dict[str, Any]):
    """Unchecked keywords are left to the server."""
    if said := refusal(schema, arguments):
        try:
            allowed = is_allowed(schema, arguments)
        except Exception:
            return  # the schema means nothing
        assert not allowed, said


ODD = [
    {"a": "a" * 40 + "!"},
    {"a" * 40 + "!": 1},
    {"a": list(range(20_000))},
    {"a": ["a" * 40 + "!"] * 9000},
    {"a": [{} for _ in range(20_000)]},
    {"a": [1.5e300] * 9000},
    {"a": "x" * 10**7},
    {"a": json.loads("[" * 900 + "]" * 900)},
    {"a": json.loads('{"x":' * 900 + "1" + "}" * 900)},
    {"a": 10**4000, "b": float("inf"), "c": float("nan")},
]


@pytest.mark.parametrize("name", SCHEMAS)
def test_no_schema_takes_long_to_check_or_to_describe(name: str):
    """With doubling references, cycles, backtracking patterns and values of wrong types."""
    for arguments in ODD:
        before = time.thread_time()
        assert len(refusal(SCHEMAS[name], arguments)) < 1100
        assert time.thread_time() - before < LITTLE

    before = time.thread_time()
    described = SimpleNamespace(
        name="x", description="", parameters=RemoteSchema(SCHEMAS[name]).parameters
    )
    for style in ("json", "hermes", "typescript", "list"):
        assert len(describe([described], style)) < 10**6  # pyright: ignore[reportArgumentType]
    assert time.thread_time() - before < LITTLE


@given(
    st.recursive(
        st.sampled_from(
            [{"type": "object"}, {"pattern": "^(a|a)*$"}, {"$ref": "#"}, {"enum": [1]}]
        ),
        lambda inner: (
            st.dictionaries(
                st.sampled_from(["anyOf", "allOf", "oneOf"]),
                st.lists(inner, min_size=2, max_size=9),
            )
            | st.dictionaries(st.sampled_from(["items", "additionalProperties", "not"]), inner)
        ),
        max_leaves=30,
    ),
    st.sampled_from(ODD),
)
@settings(max_examples=60, deadline=None)
def test_schemas_that_refer_to_their_whole_end(inner: Any, arguments: dict[str, Any]):
    """However many references each level has."""
    before = time.thread_time()
    refusal({**inner, "properties": {"a": inner}}, arguments)
    assert time.thread_time() - before < LITTLE


@pytest.mark.parametrize(
    "schema",
    [
        {"enum": list(range(20_000))},
        {"description": "x" * 300_000},
        {"x" * 300_000: 1},
        {"properties": json.loads('{"items":' * 90 + "1" + "}" * 90)},
        {"properties": [1]},
    ],
    ids=["wide", "long", "name", "deep", "formless"],
)
def test_a_schema_too_large_for_a_model_is_refused(schema: Any):
    """The error has the reason."""
    with pytest.raises(ValueError, match="the schema"):
        RemoteSchema(schema)


def test_few_steps_are_enough_for_what_people_write():
    """A list of a thousand edits is checked completely."""
    edit = {"type": "object", "properties": {"line": {"type": "integer"}}, "required": ["line"]}
    schema = {"properties": {"edits": {"type": "array", "items": edit}}}
    edits = [{"line": 1}] * 999
    assert 4 * len(edits) < MAX_STEPS

    assert not refusal(schema, {"edits": edits})
    assert "edits[999]" in refusal(schema, {"edits": [*edits, {}]})


@pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
async def test_a_hostile_server_costs_the_loop_little(caplog: pytest.LogCaptureFixture):
    """From the list of tools to the schemas of results; its other tools can be used."""
    before = child_processes()
    started = time.thread_time()
    async with asyncio.timeout(60), McpServer(HOSTILE, timeout=20) as server:
        assert len(server.tools) == len(SCHEMAS) - len(REFUSED) + 5
        assert "its tool schema" in caplog.text
        assert "is left out: the schema has more" in caplog.text
        assert server.methods["echo"].description == ""
        assert all(len(tool.name) <= 60 and len(tool.description) <= 4000 for tool in server.tools)
        for tool in server.tools[:-5]:
            with suppress(InvalidArguments):
                await tool.run({"a": "a" * 40 + "!"})
        assert json.loads(await server.methods["result"].run({})) == {"a": "a" * 40 + "!"}
        with pytest.raises(InvalidArguments, match="as JSON"):
            await server.methods["result"].run({"a": "\ud800"})
        assert await server.methods["result"].run({})
    assert time.thread_time() - started < 4 * LITTLE
    assert not find_leaks(child_processes, before)


@pytest.mark.skipif(sys.platform != "linux", reason="counts processes in /proc")
async def test_a_line_without_end_fills_no_memory():
    """Neither while connecting, where it times out, nor in place of an answer."""
    before, memory = child_processes(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    async with asyncio.timeout(60):
        with pytest.raises(ConfigurationError, match=r"did not answer within 0.3 s"):
            await McpServer([*HOSTILE, "endless"], connect_timeout=0.3).__aenter__()
        async with McpServer(HOSTILE, timeout=0.3) as server:
            with pytest.raises(ToolError, match="did not finish within"):
                await server.methods["endless"].run({})
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 200 * 1024
    assert not find_leaks(child_processes, before)


async def test_an_answer_too_long_fails_its_call_alone(monkeypatch: pytest.MonkeyPatch):
    """The call fails at once with the reason."""
    monkeypatch.setattr(_mcp_wire, "MAX_MESSAGE_BYTES", 5_000_000)
    async with asyncio.timeout(60), McpServer(HOSTILE) as server:
        with pytest.raises(ToolError, match="has more than 5000000 bytes"):
            await server.methods["long"].run({})
        assert await server.methods["result"].run({})


ASKED = b'{"jsonrpc":"2.0","id":7,"result":1}'


@given(
    st.lists(st.binary(max_size=8) | st.sampled_from([b"\n", "ü\n".encode(), ASKED]), max_size=20),
    st.integers(0, 60),
)
def test_lines_come_whole_however_they_are_cut(pieces: list[bytes], most: int):
    """Each line is complete, or replaced by an error response if it was too long."""
    decoder = _mcp_wire._LineDecoder("replace")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_mcp_wire, "MAX_MESSAGE_BYTES", most)
        came = b"".join(decoder.decode(piece).encode() for piece in pieces)
        assert sum(map(len, decoder._pieces)) <= max(most, len(_mcp_wire.TOO_LONG) + 20)
    *whole, rest = b"".join(pieces).split(b"\n")
    *lines, nothing = came.split(b"\n")

    assert (len(lines), nothing, decoder._size) == (len(whole), b"", len(rest))
    for line, sent in zip(lines, whole, strict=True):
        if len(sent) <= most:
            assert line == sent.decode("utf-8", "replace").encode()
        else:
            assert line in (b"", _mcp_wire.TOO_LONG % (b"7", most))


@pytest.mark.parametrize(
    ("head", "forever", "said"),
    [
        ("Content-Type: application/json\r\n", b"x" * 9999, "more than 1048576 bytes"),
        ("Content-Type: text/event-stream\r\n", b"x" * 9999, ""),
        ("Content-Type: text/event-stream\r\n", b"data: x\n" * 999, ""),
        ("Content-Type: text/event-stream\r\n", b": x\n\n" * 999, "did not answer within"),
        ("Content-Type: application/json\r\nContent-Encoding: gzip\r\n", b"", "compressed"),
    ],
    ids=["json", "line", "event", "comments", "gzip"],
)
async def test_an_answer_without_end_is_no_server(
    head: str, forever: bytes, said: str, monkeypatch: pytest.MonkeyPatch
):
    """Over HTTP, in any form."""
    monkeypatch.setattr(_mcp_wire, "MAX_MESSAGE_BYTES", 2**20)
    timeout = 0.5 if "within" in said else 20
    answers = {"mcp": (f"HTTP/1.1 200 OK\r\n{head}\r\n".encode(), forever)}
    with ThreadedByteServer(answers) as server, pytest.raises(ConfigurationError) as raised:
        async with asyncio.timeout(30):
            await McpServer(f"{server.url}/mcp", connect_timeout=timeout).__aenter__()

    assert said in str(raised.value)


KEY = "sk-1234567890abcdef"


def shown(error: BaseException | None, log: str) -> str:
    """Return all readable text of an error: its chain, its traceback and the log."""
    parts = [log]
    while error is not None:
        parts += [repr(error), *traceback.format_exception(error), *getattr(error, "__notes__", [])]
        error = error.__cause__ or error.__context__
    return "\n".join(parts)


@pytest.mark.parametrize(
    "options",
    [
        {"path": f"/{KEY}/mcp"},
        {"path": f"/mcp?api-key={KEY}"},
        {"user": f"{KEY}@"},
        {"user": f"me:{KEY}@"},
        {"headers": {"Authorization": f"Bearer {KEY}"}},
        {"headers": {"X-Api-Key": KEY}},
    ],
    ids=["path", "query", "user", "password", "bearer", "header"],
)
async def test_no_key_of_an_address_or_header_gets_out(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    """Not in reprs, logs or errors, even if the server repeats it."""
    caplog.set_level(logging.DEBUG)
    echo = json.dumps(
        {"jsonrpc": "2.0", "id": 1, "error": {"code": -32000, "message": f"no, {KEY}"}}
    ).encode()
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    whole = head + b"Content-Length: %d\r\n\r\n" % len(echo) + echo
    for once, patience in ((whole, 0.5), (f"HTTP/1.1 {KEY}\r\n".encode(), 0.5)):
        path = options.get("path", "/mcp")
        with ThreadedByteServer({path.lstrip("/"): (once, b"")}) as server:
            url = server.url.replace("//", f"//{options.get('user', '')}") + path
            remote = McpServer(url, headers=options.get("headers"), connect_timeout=patience)
            assert KEY not in repr(remote)
            with pytest.raises(ConfigurationError) as raised:
                async with asyncio.timeout(30):
                    await remote.__aenter__()
        if server.asked and "user" not in options:  # a user's name goes in base64
            assert KEY.encode() in server.asked[0]
        assert KEY not in shown(raised.value, caplog.text)


@pytest.mark.parametrize(
    "options",
    [
        {"command": [*HOSTILE, f"--api-key={KEY}"]},
        {"command": [*HOSTILE, "--api-key", KEY]},
        {"command": HOSTILE, "env": {"API_KEY": KEY}},
        {"command": ["/nowhere/x", KEY]},
        {"command": f"'{KEY}"},
        {"command": f"htps://u:{KEY}@h/"},
        {"command": f"svn+ssh://{KEY}@h/"},
        {"command": f"http://[{KEY}"},
        {"command": f"https://h:{KEY}/"},
    ],
)
async def test_no_key_of_a_command_gets_out(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
):
    """Nor a key of a misspelled address."""
    caplog.set_level(logging.DEBUG)
    with pytest.raises((ConfigurationError, ToolError)) as raised:
        async with asyncio.timeout(30):
            server = McpServer(options["command"], env=options.get("env"))
            assert KEY not in repr(server)
            async with server:
                await server.methods["echo"].run({"said": KEY if "env" in options else ""})
    assert KEY not in shown(raised.value, caplog.text)


@pytest.mark.parametrize("url", ["HTTPS://Host:8000/mcp", "http://host", " https://host/x "])
def test_an_address_is_one_however_it_is_written(url: str):
    """It is never taken for a command."""
    server = McpServer(url)

    assert server.url == url.strip()
    assert repr(server).lower().startswith(f"<mcpserver {url.strip().lower()[:12]}")
