"""What a conversation costs the client: ours against hand-written loops and other libraries.

    python benchmarks/loop.py [--conversations 1 50 200] [--only http openai ...]

A conversation is a user's message, a tool call, its result and a 200-token answer, streamed by a
scripted server in another process, a token every 5 ms. Each contender runs in a process of its own
and is measured in CPU seconds of that process, after two conversations to warm up. Contenders
whose package is not installed are left out and named.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

TOKENS = 200
PAUSE = 0.005  # seconds between tokens
LONGEST = 300  # seconds for one contender
QUESTION = "What is the weather in Paris?"
ANSWER = " ".join(["word"] * TOKENS)
Converse = Callable[[], Awaitable[str]]

# --- the server


def _event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    data = b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _delta(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def _end(finish: str) -> list[bytes]:
    usage = {"prompt_tokens": 50, "completion_tokens": TOKENS, "total_tokens": 50 + TOKENS}
    done = b"data: [DONE]\n\n"
    last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)
    return [_delta({}, finish), _event([], usage=usage) + last]


def _call() -> list[bytes]:
    function = {"name": "get_weather", "arguments": ""}
    first = {"index": 0, "id": "call_1", "type": "function", "function": function}
    pieces = ['{"loc', 'ation"', ': "Pa', 'ris"}']
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    head = _delta({"role": "assistant", "content": None})
    return [head, *(_delta({"tool_calls": [c]}) for c in (first, *rest)), *_end("tool_calls")]


def _text() -> list[bytes]:
    words = ANSWER.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    head = _delta({"role": "assistant", "content": ""})
    return [head, *(_delta({"content": piece}) for piece in pieces), *_end("stop")]


_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
)


async def _serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    call, text = _call(), _text()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            writer.write(_HEAD)
            for event in text if body["messages"][-1]["role"] == "tool" else call:
                writer.write(event)
                await asyncio.sleep(PAUSE)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def _serve(port: Any) -> None:
    async def serve() -> None:
        server = await asyncio.start_server(_serve_one, "127.0.0.1", 0, backlog=1000)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(serve())


# --- the contenders


def ours(scheme: str) -> Callable[[str], Converse]:
    def make(url: str) -> Converse:
        from anabranch import Conversation, Job, connect, tool
        from anabranch.commander import Commander
        from anabranch.handlers import View, respond

        @tool(read_only=True)
        async def get_weather(location: str) -> str:
            """Get the weather."""
            return f"sunny in {location}"

        if scheme == "http":
            backend = connect(url, model="tiny", api_key="sk-test")
        else:
            backend = connect("openai:tiny", base_url=url, api_key="sk-test")
        commander: list[Commander] = []

        class Silent(View):
            def write(self, text: str) -> None:
                pass

        class Talk(Job[str]):
            async def task(self) -> str:
                conversation = Conversation()
                conversation.add(QUESTION)
                said = await respond(backend, conversation, [get_weather], Silent())
                return said.content or ""

        async def converse() -> str:
            if not commander:
                commander.append(await Commander(slow_after=None).__aenter__())
            return await commander[0].run(Talk())

        return converse

    return make


_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather.",
        "parameters": {
            "type": "object",
            "properties": {"location": {"type": "string"}},
            "required": ["location"],
        },
    },
}


def sdk(transport: str) -> Callable[[str], Converse]:
    def make(url: str) -> Converse:
        from openai import AsyncOpenAI, DefaultAioHttpClient

        fast = DefaultAioHttpClient() if transport == "aiohttp" else None
        client = AsyncOpenAI(base_url=url, api_key="sk-test", http_client=fast, timeout=60)

        async def converse() -> str:
            messages: list[Any] = [{"role": "user", "content": QUESTION}]
            while True:
                text, calls = "", {}
                options: Any = {"stream": True, "stream_options": {"include_usage": True}}
                stream = await client.chat.completions.create(
                    model="tiny", messages=messages, tools=[_TOOL], **options
                )
                async for chunk in stream:
                    for choice in chunk.choices:
                        text += choice.delta.content or ""
                        for piece in choice.delta.tool_calls or ():
                            _add_piece(calls, piece.model_dump())
                if not calls:
                    return text
                _answer_calls(messages, calls)

        return converse

    return make


def by_hand(url: str) -> Converse:
    import aiohttp

    sessions: list[aiohttp.ClientSession] = []

    async def converse() -> str:
        if not sessions:
            sessions.append(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        while True:
            text, calls = "", {}
            body = {"model": "tiny", "messages": messages, "tools": [_TOOL], "stream": True}
            async with sessions[0].post(f"{url}/chat/completions", json=body) as response:
                async for line in response.content:
                    if not line.startswith(b"data: ") or line == b"data: [DONE]\n":
                        continue
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                        for piece in choice["delta"].get("tool_calls") or ():
                            _add_piece(calls, piece)
            if not calls:
                return text
            _answer_calls(messages, calls)

    return converse


def _add_piece(calls: dict[int, Any], piece: dict[str, Any]) -> None:
    call = calls.setdefault(piece["index"], {"id": "", "name": "", "arguments": ""})
    call["id"] += piece.get("id") or ""
    call["name"] += piece["function"].get("name") or ""
    call["arguments"] += piece["function"].get("arguments") or ""


def _answer_calls(messages: list[Any], calls: dict[int, Any]) -> None:
    said = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": call["arguments"]},
        }
        for call in calls.values()
    ]
    messages.append({"role": "assistant", "content": None, "tool_calls": said})
    for call in calls.values():
        result = f"sunny in {json.loads(call['arguments'])['location']}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def openai_agents(url: str) -> Converse:
    import agents
    from openai import AsyncOpenAI

    agents.set_tracing_disabled(True)

    @agents.function_tool
    async def get_weather(location: str) -> str:
        """Get the weather."""
        return f"sunny in {location}"

    client = AsyncOpenAI(base_url=url, api_key="sk-test", timeout=60)
    model = agents.OpenAIChatCompletionsModel("tiny", client)
    agent = agents.Agent("a", model=model, tools=[get_weather])

    async def converse() -> str:
        result = agents.Runner.run_streamed(agent, QUESTION)
        async for _ in result.stream_events():
            pass
        return result.final_output

    return converse


def pydantic_ai(url: str) -> Converse:
    from openai import AsyncOpenAI
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    client = AsyncOpenAI(base_url=url, api_key="sk-test", timeout=60)
    agent = Agent(OpenAIChatModel("tiny", provider=OpenAIProvider(openai_client=client)))

    @agent.tool_plain
    async def get_weather(location: str) -> str:
        """Get the weather."""
        return f"sunny in {location}"

    async def converse() -> str:
        async with agent.run_stream(QUESTION) as result:
            return "".join([piece async for piece in result.stream_text(delta=True)])

    return converse


def langgraph(url: str) -> Converse:
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.prebuilt import create_react_agent

    @tool
    async def get_weather(location: str) -> str:
        """Get the weather."""
        return f"sunny in {location}"

    model = ChatOpenAI(model="tiny", base_url=url, api_key="sk-test", streaming=True, timeout=60)
    graph = create_react_agent(model, [get_weather])

    async def converse() -> str:
        text = ""
        asked = {"messages": [("user", QUESTION)]}
        async for message, _ in graph.astream(asked, stream_mode="messages"):
            if message.type == "AIMessageChunk":
                text += message.content
        return text

    return converse


CONTENDERS: dict[str, Callable[[str], Converse]] = {
    "raw SDK loop": sdk("httpx"),
    "raw SDK loop, aiohttp": sdk("aiohttp"),
    "aiohttp and json by hand": by_hand,
    "anabranch http": ours("http"),
    "anabranch openai": ours("openai"),
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "LangGraph": langgraph,
}

# --- the measurement


async def _measure(name: str, url: str, conversations: int) -> float:
    converse = CONTENDERS[name](url)
    for _ in range(2):
        _check(await converse())
    before = time.process_time()
    for text in await asyncio.gather(*(converse() for _ in range(conversations))):
        _check(text)
    return (time.process_time() - before) / conversations * 1000


def _check(text: str) -> None:
    assert text == ANSWER, f"the answer did not come whole: {text[-80:]!r}"


def _contend(name: str, url: str, conversations: int) -> None:
    print(asyncio.run(_measure(name, url, conversations)))
    sys.stdout.flush()
    os._exit(0)  # clients of others are not ours to close


def _run(name: str, url: str, conversations: int) -> float | str:
    command = [sys.executable, "-W", "ignore", __file__, "--contend", name, url]
    try:
        done = subprocess.run(
            [*command, str(conversations)],
            capture_output=True,
            text=True,
            check=False,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return f"not done in {LONGEST} s"
    if done.returncode == 0:
        return float(done.stdout)
    last = (done.stderr.strip().splitlines() or ["no word"])[-1]
    return "not installed" if "ModuleNotFoundError" in last else last[:60]


def _print_table(figures: dict[str, dict[int, float | str]], counts: list[int]) -> None:
    print("| client CPU, ms a conversation | " + " | ".join(f"{n} at once" for n in counts) + " |")
    print("|---|" + "---:|" * len(counts))
    base = figures["raw SDK loop"]
    for name, row in figures.items():
        cells = [_cell(row[n], base[n]) for n in counts]
        print(f"| {name} | " + " | ".join(cells) + " |")


def _cell(value: float | str, base: float | str) -> str:
    if isinstance(value, str) or isinstance(base, str):
        return str(value)
    return f"{value:.1f} ({value / base:.2f})"


def _print_chart(figures: dict[str, dict[int, float | str]], count: int) -> None:
    known = {name: row[count] for name, row in figures.items() if isinstance(row[count], float)}
    longest = max(known.values())
    print(f"\n{count} at once, client CPU in ms a conversation\n")
    for name, value in sorted(known.items(), key=lambda pair: pair[1]):
        print(f"{name:>26} {'█' * max(1, round(value / longest * 40))} {value:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--conversations", type=int, nargs="+", default=[1, 50, 200])
    parser.add_argument("--only", nargs="+", default=list(CONTENDERS))
    parser.add_argument("--contend", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contend:
        name, url, conversations = options.contend
        _contend(name, url, int(conversations))
    here, there = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}/v1"
    counts: list[int] = options.conversations
    figures: dict[str, dict[int, float | str]] = {}
    for name in dict.fromkeys(["raw SDK loop", *options.only]):
        figures[name] = {n: _run(name, url, n) for n in counts}
        print(f"{name}: {figures[name]}", file=sys.stderr)
    server.terminate()
    _print_table(figures, counts)
    _print_chart(figures, counts[-1])


if __name__ == "__main__":
    main()
