"""Two turns with a tool by a client for Python: python_clients.py NAME URL MODE...

Prints, as a JSON object, the two answers by mode; the mode is also the name of the model. Ends with
status 3 where the client is not installed. Nothing of Anabranch is imported here.
"""

import asyncio
import importlib.metadata
import importlib.util
import json
import os
import sys

QUESTIONS = ["How is it in Rome?", "How is it in Oslo?"]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
ABOUT = {"name": "weather", "description": "The weather of a city.", "parameters": PARAMETERS}


def weather(city: str) -> str:
    """The weather of a city."""
    return {"Rome": "warm", "Oslo": "cold"}[city]


async def openai(url, mode):
    """Send messages and items back as the client's objects and as their dumps."""
    from openai import AsyncOpenAI

    stream, tools = mode.endswith("-stream"), not mode.startswith("agent-")
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        said, answers = [], []
        if "chat" in mode:
            asked = {"tools": [{"type": "function", "function": ABOUT}]} if tools else {}
            for question in QUESTIONS:
                said.append({"role": "user", "content": question})
                while True:
                    given = {"model": mode, "messages": said, **asked}
                    if stream:
                        async with client.chat.completions.stream(**given) as events:
                            completion = await events.get_final_completion()
                    else:
                        completion = await client.chat.completions.create(**given)
                    message = completion.choices[0].message
                    said.append(message.model_dump() if stream else message)
                    for call in message.tool_calls or ():
                        result = weather(**json.loads(call.function.arguments))
                        about = {"role": "tool", "tool_call_id": call.id}
                        said.append({**about, "content": result})
                    if not message.tool_calls:
                        break
                answers.append(message.content)
            return answers
        asked = {"tools": [{"type": "function", "strict": True, **ABOUT}]} if tools else {}
        for question in QUESTIONS:
            said.append({"role": "user", "content": question})
            while True:
                given = {"model": mode, "input": said, **asked}
                if stream:
                    async with client.responses.stream(**given) as events:
                        response = await events.get_final_response()
                else:
                    response = await client.responses.create(**given)
                said += [item.model_dump() if stream else item for item in response.output]
                calls = [item for item in response.output if item.type == "function_call"]
                for call in calls:
                    result = weather(**json.loads(call.arguments))
                    about = {"type": "function_call_output", "call_id": call.call_id}
                    said.append({**about, "output": result})
                if not calls:
                    break
            answers.append(response.output_text)
        return answers


async def pydantic_ai(url, mode):
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIChatModel if "chat" in mode else OpenAIResponsesModel
    model = kind(mode, provider=OpenAIProvider(base_url=url, api_key="none"))
    agent = Agent(model, tools=[] if mode.startswith("agent-") else [weather])
    said, answers = [], []
    for question in QUESTIONS:
        if mode.endswith("-stream"):
            async with agent.run_stream(question, message_history=said) as result:
                answers.append(await result.get_output())
        else:
            result = await agent.run(question, message_history=said)
            answers.append(result.output)
        said = result.all_messages()
    return answers


async def agents(url, mode):
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(True)
    kind = OpenAIChatCompletionsModel if "chat" in mode else OpenAIResponsesModel
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        tools = [] if mode.startswith("agent-") else [function_tool(weather)]
        agent = Agent("asker", tools=tools, model=kind(mode, client))
        said, answers = [], []
        for question in QUESTIONS:
            said.append({"role": "user", "content": question})
            if mode.endswith("-stream"):
                result = Runner.run_streamed(agent, said)
                async for _ in result.stream_events():
                    pass
            else:
                result = await Runner.run(agent, said)
            answers.append(result.final_output)
            said = result.to_input_list()
        return answers


async def langchain_openai(url, mode):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI

    run = tool(weather)
    model = ChatOpenAI(
        model=mode, base_url=url, api_key="none", use_responses_api="responses" in mode
    )
    bound = model if mode.startswith("agent-") else model.bind_tools([run])
    said, answers = [], []
    for question in QUESTIONS:
        said.append(HumanMessage(question))
        while True:
            if mode.endswith("-stream"):
                message = None
                async for piece in bound.astream(said):
                    message = piece if message is None else message + piece
            else:
                message = await bound.ainvoke(said)
            said.append(message)
            said += [await run.ainvoke(call) for call in message.tool_calls]
            if not message.tool_calls:
                break
        answers.append(message.text)
    return answers


async def llm(url, mode):
    from llm.default_plugins.openai_models import AsyncChat

    model = AsyncChat(
        mode, key="none", api_base=url, supports_tools=True, can_stream=mode.endswith("-stream")
    )
    tools = [] if mode.startswith("agent-") else [weather]
    conversation = model.conversation(tools=tools)
    return [await conversation.chain(question).text() for question in QUESTIONS]


async def litellm(url, mode):
    os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else it reads one from the network
    import litellm

    asked = {"model": f"openai/{mode}", "api_base": url, "api_key": "none"}
    if not mode.startswith("agent-"):
        asked["tools"] = [{"type": "function", "function": ABOUT}]
    said, answers = [], []
    for question in QUESTIONS:
        said.append({"role": "user", "content": question})
        while True:
            stream = mode.endswith("-stream")
            completion = await litellm.acompletion(messages=said, stream=stream, **asked)
            if stream:
                chunks = [chunk async for chunk in completion]
                completion = litellm.stream_chunk_builder(chunks, messages=said)
            message = completion.choices[0].message
            said.append(message.model_dump() if stream else message)
            for call in message.tool_calls or ():
                result = weather(**json.loads(call.function.arguments))
                said.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not message.tool_calls:
                break
        answers.append(message.content)
    return answers


CLIENTS = {
    "openai": openai,
    "pydantic-ai-slim": pydantic_ai,
    "openai-agents": agents,
    "langchain-openai": langchain_openai,
    "llm": llm,
    "litellm": litellm,
}


async def main(name, url, *modes):
    client = CLIENTS[name]
    if importlib.util.find_spec(client.__name__) is None:
        sys.exit(3)
    answers = {mode: await client(f"{url}/v1", mode) for mode in modes}
    print(json.dumps({"version": importlib.metadata.version(name), "answers": answers}))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
