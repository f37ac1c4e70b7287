"""A client gets the texts of its run, and nothing about the server's internals."""

from __future__ import annotations

import asyncio
import base64
import gc
import hashlib
import json
import logging
import re
import socket
import weakref
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import APIError, BadRequestError, InternalServerError, RateLimitError
from support.asgi_requests import Response, encode_body, send_request
from support.openai_client import on_uvicorn, open_client

import anabranch
from anabranch import Agent, Job, Message, ToolCall, connect, tool
from anabranch.commander.errors import (
    AuthenticationError,
    BackendError,
    BackendUnavailable,
    BudgetExceeded,
    ContextTooLong,
    RateLimited,
)
from anabranch.messages.mask import mask
from anabranch.serve import Server, serve
from anabranch.serve._failure import LOGGERS
from anabranch.testing import ScriptedBackend

CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/runs"
INSIDE = "sekrit /srv/app/model.py http://10.1.2.3:8080 sk-abc"
FAILURES: list[tuple[Exception, int, str]] = [
    (BudgetExceeded(INSIDE), 429, "insufficient_quota"),
    (BackendError(INSIDE, status=429), 429, "insufficient_quota"),
    (RateLimited(INSIDE, retry_after=7.4), 429, "rate_limit_exceeded"),
    (RateLimited(INSIDE), 429, "rate_limit_exceeded"),
    (ContextTooLong(INSIDE, status=400), 400, "context_length_exceeded"),
    (BackendUnavailable(INSIDE), 500, "server_error"),
    (AuthenticationError(INSIDE, status=401), 500, "server_error"),
    (RuntimeError(INSIDE), 500, "server_error"),
    (KeyError(INSIDE), 500, "server_error"),
]


def _asked(path: str, model: str = "writer", **more: Any) -> bytes:
    said = [{"role": "user", "content": "hi"}]
    return encode_body({"model": model, ("messages" if path == CHAT else "input"): said, **more})


@asynccontextmanager
async def _running(*things: Any, **options: Any) -> AsyncGenerator[Server]:
    server = serve(*things, **options)
    async with server.running():
        yield server


# --- errors


@pytest.mark.parametrize(("error", "status", "code"), FAILURES)
async def test_an_error_has_a_useful_status_and_no_cause(
    error: Exception, status: int, code: str
) -> None:
    """On each wire, complete and streamed: 429, 400 or 500, and no word of the exception."""
    agent = Agent(ScriptedBackend(*[error] * 20), name="writer")
    async with _running(agent, {"model": ScriptedBackend(*[error] * 20)}) as server:
        for model in ("writer", "model"):
            whole = await send_request(server, "POST", CHAT, _asked(CHAT, model))
            assert whole.status == status
            assert whole.json["error"]["code"] == code
            retry = whole.headers.get("retry-after"), whole.headers.get("x-should-retry")
            waits = isinstance(error, RateLimited) and error.retry_after is not None
            assert retry == (("7", None) if waits else (None, "false"))
            stream = await send_request(server, "POST", CHAT, _asked(CHAT, model, stream=True))
            assert f'"code":"{code}"' in stream.body.decode()
            response = await send_request(server, "POST", RESPONSES, _asked(RESPONSES, model))
            assert response.status == (status if status < 500 else 200)
            events = await send_request(
                server, "POST", RESPONSES, _asked(RESPONSES, model, stream=True)
            )
            assert b"event: response.failed" in events.body
            run = await send_request(server, "POST", RUNS, _asked(RUNS, model))
            at = f"/runs/{run.json['id']}"
            log = await send_request(server, "GET", f"{at}/events")
            assert f'"code":"{code}"' in log.body.decode()
            trace = await send_request(server, "GET", f"{at}/trace")
            shown = await send_request(server, "GET", at)
            for answer in (whole, stream, response, events, run, log, trace, shown):
                _tells_nothing(answer)


def _tells_nothing(answer: Response) -> None:
    text = answer.body.decode()
    for word in (
        "sekrit",
        "/srv",
        "10.1.2.3",
        "sk-abc",
        "Traceback",
        "RuntimeError",
        "KeyError",
        ".py:",
    ):
        assert word not in text


async def test_a_real_client_raises_the_matching_error() -> None:
    """The official client raises its usual exception, and does not retry."""
    errors = [(BudgetExceeded(INSIDE), RateLimitError), (ContextTooLong(INSIDE), BadRequestError)]
    for error, raised in [*errors, (RuntimeError(INSIDE), InternalServerError)]:
        backend = ScriptedBackend(*[error] * 9)
        agent = Agent(backend, name="writer")
        said: Any = [{"role": "user", "content": "hi"}]
        async with on_uvicorn(serve(agent)) as url, open_client(url) as client:
            with pytest.raises(raised) as told:
                await client.chat.completions.create(model="writer", messages=said)
            assert "sekrit" not in str(told.value)
            assert len(backend.requests) == 1
            with pytest.raises(APIError) as told:
                async for _ in await client.chat.completions.create(
                    model="writer", messages=said, stream=True
                ):
                    pass
            assert "sekrit" not in str(told.value)


async def test_a_run_that_cannot_start_hides_its_cause() -> None:
    """A job whose constructor fails is 500 in OpenAI's format; the server's log has the cause."""

    class Broken(Job[str]):
        def __init__(self, text: str) -> None:
            raise RuntimeError(INSIDE)

        async def task(self) -> str:
            return ""

    async with _running(Broken) as server:
        for path in (CHAT, RESPONSES, RUNS):
            answer = await send_request(server, "POST", path, _asked(path, "Broken"))
            assert answer.status == 500
            assert sorted(answer.json["error"]) == ["code", "message", "param", "type"]
            assert answer.headers["x-should-retry"] == "false"
            _tells_nothing(answer)


async def test_a_server_without_its_lifespan_hides_the_remedy(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It answers 503, and its log has the remedy."""
    server = serve(Agent(ScriptedBackend(), name="writer"))
    answer = await send_request(server, "GET", RUNS)
    assert answer.status == 503
    assert "mount_into" not in answer.body.decode()
    assert "mount_into" in caplog.text


async def test_a_models_key_is_in_no_answer_and_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Even if the model's server returns it in an error."""
    from support.scripted_server import Reply, ScriptedServer

    caplog.set_level(logging.DEBUG)
    key = "sk-live-0123456789abcdef"
    echo = Reply([json.dumps({"error": {"message": f"wrong key {key}"}}).encode()], status=401)
    async with ScriptedServer(echo) as models:
        model = connect(models.url, model="tiny", api_key=key)
        async with _running(Agent(model, name="writer")) as server, model:
            answer = await send_request(server, "POST", CHAT, _asked(CHAT))
    assert answer.status == 500
    assert key not in answer.body.decode()
    assert models.url not in answer.body.decode()
    logged = "".join(f"{each.getMessage()}{each.exc_text}" for each in caplog.records)
    assert " of writer failed" in logged
    assert key not in logged


KEYS = ["sk-live-0123456789abcdef", "https://ann:pass77@models.test/v1", "AIza" + "a1" * 16]


class Unmade(Job[str]):
    """A job that cannot be made."""

    def __init__(self, text: str) -> None:
        raise RuntimeError(f"no database at {text}")

    async def task(self) -> str:
        return ""


class Unfit(Job[str]):
    """A job that refuses its fields."""

    def __init__(self, text: str) -> None:
        raise ValueError(f"no such text {text}")

    async def task(self) -> str:
        return ""


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", ["writer", "Unmade", "Unfit", "outside"])
async def test_the_log_of_a_failure_has_no_key(
    name: str, key: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For failures of any origin: no record has the exception, so no handler can write it."""
    agent = Agent(ScriptedBackend(otherwise=RuntimeError(f"{key} is wrong")), name="writer")
    async with _running(agent, Unmade, Unfit) as server:
        if name == "outside":  # for any run

            def fail(*_: Any, **__: Any) -> Any:
                raise RuntimeError(f"{key} is wrong")

            monkeypatch.setattr(server.runs, "start", fail)
        model = "writer" if name == "outside" else name
        said = [{"role": "user", "content": key}]
        answer = await send_request(
            server, "POST", CHAT, encode_body({"model": model, "messages": said})
        )
    assert answer.status == (400 if name == "Unfit" else 500)
    (record,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    secret = key.removeprefix("https://ann:").removesuffix("@models.test/v1")
    assert secret not in f"{logging.Formatter().format(record)}{record.args}"
    assert record.exc_info is None
    assert "Traceback" in record.getMessage()
    assert "***" in record.getMessage()


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", ["writer", "Unmade"])
async def test_a_failure_is_found_in_the_log_by_its_id(
    name: str, stream: bool, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The client's error and one log entry have the same id."""
    agent = Agent(ScriptedBackend(otherwise=RuntimeError("broke")), name="writer")
    async with _running(agent, Unmade) as server:
        more = {} if path == RUNS else {"stream": stream}
        answer = await send_request(server, "POST", path, _asked(path, name, **more))
        text = answer.body.decode()
        if path == RUNS and name == "writer":
            events = await send_request(server, "GET", f"/runs/{answer.json['id']}/events")
            text = events.body.decode()
    (told,) = set(re.findall(r"The run failed \(id (\w+)\)\. See the server log\.", text))
    assert [told in each.getMessage() for each in caplog.records] == [True]
    if path != RUNS and not answer.headers["content-type"].startswith("text/event-stream"):
        assert answer.headers["x-request-id"] == told


async def test_the_official_client_shows_the_id_of_a_failure(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As the `request_id` of its error."""
    agent = Agent(ScriptedBackend(otherwise=RuntimeError("broke")), name="writer")
    said: Any = [{"role": "user", "content": "hi"}]
    async with on_uvicorn(serve(agent)) as url, open_client(url) as client:
        with pytest.raises(InternalServerError) as told:
            await client.chat.completions.create(model="writer", messages=said)
    assert told.value.request_id is not None
    assert f"run {told.value.request_id} of writer failed" in caplog.text


# --- the tree


async def test_the_tree_of_a_run_has_no_content() -> None:
    """Names, states and times only: neither inputs nor arguments or results of tools."""

    @tool(read_only=True)
    def look(word: str) -> str:
        """Look a word up."""
        return f"RESULT-{word}"

    call = ToolCall(id="c", name="look", arguments={"word": "ARGUMENT"})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "ANSWER")
    agent = Agent(backend, "PROMPT", tools=[look], name="writer")
    async with _running(agent) as server:
        sent = encode_body({"model": "writer", "input": "QUESTION"})
        run = (await send_request(server, "POST", RUNS, sent)).json["id"]
        events = await send_request(server, "GET", f"/runs/{run}/events")
        trace = await send_request(server, "GET", f"/runs/{run}/trace")
    for word in ("RESULT-ARGUMENT", "ANSW"):
        assert word in events.body.decode()  # the owner's key
    assert "look" in trace.body.decode()
    assert all(json.loads(line[6:]) for line in trace.body.decode().split("\n\n") if line)
    for word in ("RESULT", "ARGUMENT", "QUESTION", "ANSW", "PROMPT", socket.gethostname()):
        assert word not in trace.body.decode()


# --- the page


async def test_the_page_runs_nothing_but_itself() -> None:
    """Only its own script, by its hash; no handlers in the markup; text never becomes markup."""
    async with _running(Agent(ScriptedBackend(), name="writer"), auth="right") as server:
        page = await send_request(server, "GET", "/")
    parts = [part.strip().partition(" ") for part in _policy(page)]
    policy = {name: value for name, _, value in parts}
    text = page.body.decode()
    for kind in ("script", "style"):
        inside = re.findall(f"<{kind}>(.*?)</{kind}>", text, re.DOTALL)
        digests = [base64.b64encode(hashlib.sha256(each.encode()).digest()) for each in inside]
        assert len(inside) == 1
        assert policy[f"{kind}-src"] == f"'sha256-{digests[0].decode()}'"
        assert len(re.findall(f"<{kind}", text)) == 1
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert page.headers["x-frame-options"] == "DENY"
    assert "unsafe" not in " ".join(_policy(page))
    markup = re.sub("<(script|style)>.*?</\\1>", "", text, flags=re.DOTALL)
    assert not re.search(r"<[^>]*\s(on\w+|style|srcdoc)\s*=|javascript:", markup)
    makes = (
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|createContextualFragment|eval\("
    )
    assert not re.search(f"{makes}|new Function|DOMParser|localStorage|document\\.cookie", text)


def _policy(page: Response) -> list[str]:
    return page.headers["content-security-policy"].split(";")


# --- memory


class Large(Job[str]):
    """Returns a text of this size."""

    size: int
    text: str = ""

    async def task(self) -> str:
        return "x" * self.size


async def _large(server: Server, size: int, **more: Any) -> str:
    sent = {"model": "Large", "input": "", "fields": {"size": size, **more}}
    sent = {**sent, "input": [{"role": "user", "content": ""}]}
    run = await send_request(server, "POST", RUNS, encode_body(sent))
    assert run.status == 201, run.body
    await send_request(server, "GET", f"/runs/{run.json['id']}/events")
    return run.json["id"]


async def test_runs_that_have_ended_are_bounded_in_number() -> None:
    """By ten times `max_runs`; those that ended first expire first."""
    async with _running(Large, max_runs=2) as server:
        begun = [await _large(server, 1) for _ in range(30)]
        listed = (await send_request(server, "GET", RUNS)).json["runs"]
        assert [each["id"] for each in listed] == begun[:-21:-1]
        assert (await send_request(server, "GET", f"/runs/{begun[0]}")).status == 404


async def test_runs_that_have_ended_are_bounded_in_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Large ones expire sooner, so that no client can fill the memory within `keep` seconds."""
    monkeypatch.setattr("anabranch.serve._runs.MAX_ENDED_CHARS", 100_000)
    async with _running(Large) as server:
        begun = [await _large(server, 30_000) for _ in range(9)]
        listed = (await send_request(server, "GET", RUNS)).json["runs"]
        assert 1 <= len(listed) <= 3
        assert listed[0]["id"] == begun[-1]
        await _large(server, 200_000)
        assert (await send_request(server, "GET", RUNS)).json == {"runs": []}


async def test_an_ended_run_frees_its_input() -> None:
    """Its job with all data of the request is freed; its log stays."""
    jobs: list[weakref.ref[Any]] = []

    class Kept(Job[str]):
        text: str

        async def task(self) -> str:
            jobs.append(weakref.ref(self))
            return "ok"

    async with _running(Kept) as server:
        run = await send_request(server, "POST", RUNS, _asked(RUNS, "Kept"))
        events = await send_request(server, "GET", f"/runs/{run.json['id']}/events")
        assert b"event: completed" in events.body
        await asyncio.sleep(0)
        gc.collect()
        assert [job() for job in jobs] == [None]
        assert (await send_request(server, "GET", f"/runs/{run.json['id']}")).status == 200


# --- 503 responses


async def _unknown(_: str) -> Any:
    raise LookupError("no directory")


def _nameless(_: str) -> Any:
    return 5


@pytest.mark.parametrize("why", ["auth", "name", "not begun", "ending", "journal"])
async def test_each_503_is_found_in_the_log_by_its_id(
    why: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The header, the text and a log entry have the same id."""
    auths: dict[str, Any] = {"auth": _unknown, "name": _nameless}
    path = tmp_path / "runs.db"
    server = serve(
        Agent(ScriptedBackend(otherwise="hi"), name="writer"),
        auth=auths.get(why),
        journal=path if why == "journal" else None,
    )

    async def refused() -> Response:
        headers = {"authorization": "Bearer ann"}
        return await send_request(server, "POST", RUNS, _asked(RUNS), headers=headers)

    if why == "not begun":
        answer = await refused()
    else:
        async with server.running():
            if why == "ending":
                await server.runs.drain(0)
            if why == "journal":
                path.unlink()
            answer = await refused()
    assert answer.status == 503
    name = answer.headers["x-request-id"]
    assert f"(id {name})" in answer.json["error"]["message"]
    assert name in caplog.text


# --- log records of other packages


class Wrong(Job[None]):
    """Fails."""

    text: str

    async def task(self) -> None:
        raise RuntimeError(f"{self.text} is wrong")


class Isolating(Job[str]):
    """Completes, with a failed child that only the engine logs."""

    policy = "isolate"
    text: str

    async def task(self) -> str:
        self.put_job(Wrong(self.text))
        return "done"


@pytest.mark.parametrize("key", KEYS)
async def test_the_engines_own_records_have_no_key(
    key: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The handlers of the outer program write them, as for `uvicorn module:app`."""
    secret = key.removeprefix("https://ann:").removesuffix("@models.test/v1")
    async with _running(Isolating) as server:
        said = [{"role": "user", "content": key}]
        await send_request(
            server, "POST", CHAT, encode_body({"model": "Isolating", "messages": said})
        )
        logging.getLogger("anabranch.tools").warning("a call of %s", key)
        logging.getLogger("anabranch.tools").warning("an odd record %d", key)
    records = [each for each in caplog.records if each.name != "anabranch.serve"]
    first, second, third = records
    assert secret not in logging.Formatter().format(first) + repr(vars(first))
    assert "***" in logging.Formatter().format(first)
    assert second.getMessage() == f"a call of {mask(key)}"
    assert third.getMessage() == f"an odd record %d {mask(repr((key,)))}"
    logging.getLogger("anabranch.tools").warning("a call of %s", key)
    assert caplog.records[-1].args == (key,)  # and after the server's end as before


def test_all_loggers_of_the_package_are_masked() -> None:
    """A new logger that is not in the list would write keys."""
    root = Path(anabranch.__file__).parent
    found = {
        name
        for file in root.glob("*/**/*.py")
        if file.relative_to(root).parts[0] not in ("tests", "benchmarks", "examples")
        for name in re.findall(r'getLogger\("(anabranch[.\w]*)"\)', file.read_text())
    }
    assert len(found) > 5
    assert found <= {*LOGGERS}
