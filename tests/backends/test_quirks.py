"""Both HTTP backends read the unusual replies of real servers in `tests/data/server_quirks.json`.

An entry has a `server`, a `name`, its public `source`, and a reply as in `hostile_replies.json`.
`gives` is the expected outcome: fields of the message, or the class of an `error`, words that its
text `says`, the number of `requests` (1 or 2), and the content of its `partial`. An entry with a
`reason` is expected to fail.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from support.byte_server import QUIRKS, ByteServer, reply_of
from support.paths import ROOT

from anabranch.backends import Retries, connect
from anabranch.commander import BackendError
from anabranch.messages import Message, Request

ASK = Request([Message(role="user", content="Hello?")])
SERVERS = [
    *("llama.cpp", "Ollama", "vLLM", "SGLang", "LM Studio", "OpenRouter", "Groq", "Mistral"),
    *("DeepSeek", "Azure", "Gemini"),
]


def entries() -> Iterable[Any]:
    for entry in QUIRKS:
        reason = entry.get("reason")
        marks = [pytest.mark.xfail(reason=reason, strict=True)] if reason else []
        yield pytest.param(entry, id=f"{entry['server']}: {entry['name']}", marks=marks)


async def given_by(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Return the outcome of a reply, limited to the fields in the entry's `gives`."""
    requests = 0

    def answer(_: bytes) -> list[bytes]:
        nonlocal requests
        requests += 1
        return [reply_of(entry)]

    async with asyncio.timeout(200), ByteServer(answer) as server:
        settings: dict[str, Any] = {"api_key": "sk-1234567"}
        settings["retries"] = Retries(attempts=2, backoff=0)
        if kind == "http":
            backend = connect(server.url, model="m", **settings)
        else:
            backend = connect("openai:m", base_url=server.url, **settings)
        async with backend:
            try:
                got: Any = read(await backend.complete(ASK))
            except BackendError as error:
                partial: Message | None = getattr(error, "partial", None)
                got = {"error": type(error).__name__, "requests": requests}
                got["partial"] = partial and partial.content
                if (says := entry["gives"].get("says", "")) in str(error):
                    got["says"] = says
    return {name: got.get(name, "nothing") for name in entry["gives"]}


def read(message: Message) -> dict[str, Any]:
    usage = message.usage
    sound = [call for call in message.tool_calls if call.error is None]
    return {
        "content": message.content,
        "reasoning": message.reasoning,
        "calls": [[call.name, call.arguments] for call in sound],
        "ids": [call.id for call in sound],
        "faulty": [call.name for call in message.tool_calls if call.error is not None],
        "finish_reason": message.finish_reason,
        "usage": usage and [usage.input_tokens, usage.output_tokens],
    }


@pytest.mark.parametrize("kind", ["http", "openai"])
@pytest.mark.parametrize("entry", [*entries()])
async def test_a_reply_of_a_real_server_is_read(kind: str, entry: dict[str, Any]) -> None:
    """A real server's reply gives the message or error that its entry expects."""
    assert await given_by(kind, entry) == entry["gives"]


def test_the_replies_that_are_not_read_are_told_of() -> None:
    """docs/backends-servers.md has the name of each reply that a backend cannot read."""
    page = (ROOT / "docs" / "backends-servers.md").read_text()
    missing = [entry for entry in QUIRKS if "reason" in entry]

    assert f"has {len(QUIRKS)} replies" in page
    assert [entry["name"] for entry in missing if entry["name"] not in page] == []


def test_the_corpus_holds_for_the_servers_that_people_use() -> None:
    """Backends read 95% of the quirks; each has a public source and a unique name."""
    counted = Counter(entry["server"] for entry in QUIRKS)

    assert len(QUIRKS) >= 103
    assert sum("reason" in entry for entry in QUIRKS) <= len(QUIRKS) * 0.05
    assert all(counted[server] >= 5 for server in SERVERS)
    assert all(entry["source"].startswith("https://github.com/") for entry in QUIRKS)
    assert len({(entry["server"], entry["name"]) for entry in QUIRKS}) == len(QUIRKS)
