"""The contenders of `loop.py`: each makes a conversation function for a server's address."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

__all__ = ["CONTENDERS", "Converse"]

QUESTION = "What is the weather in Paris?"
Converse = Callable[[], Awaitable[str]]


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


def agere(url: str) -> Converse:
    """Only agere's fork of a reply, over the SDK, since its commander needs a separate loop."""
    from agere.utils.dispatcher import async_dispatcher_tools_call_for_openai
    from openai import AsyncOpenAI

    client = AsyncOpenAI(base_url=url, api_key="sk-test", timeout=60)

    async def converse() -> str:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        while True:
            options: Any = {"stream": True, "stream_options": {"include_usage": True}}
            stream = await client.chat.completions.create(
                model="tiny", messages=messages, tools=[_TOOL], **options
            )
            source = (chunk async for chunk in stream if chunk.choices)
            branch = await async_dispatcher_tools_call_for_openai(source)
            text = "".join([piece async for piece in branch("to_user")])
            made = [json.loads(call) async for call in branch("function_call")]
            if not made:
                return text
            calls = {
                call["tool_call_index"]: {
                    "id": call["tool_call_id"],
                    "name": call["name"],
                    "arguments": json.dumps(call["arguments"]),
                }
                for call in made
            }
            _answer_calls(messages, calls)

    return converse


CONTENDERS: dict[str, Callable[[str], Converse]] = {
    "raw SDK loop": sdk("httpx"),
    "raw SDK loop, aiohttp": sdk("aiohttp"),
    "aiohttp and json by hand": by_hand,
    "anabranch http": ours("http"),
    "anabranch openai": ours("openai"),
    "agere": agere,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "LangGraph": langgraph,
}
