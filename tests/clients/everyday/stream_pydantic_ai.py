import asyncio

from pydantic_ai import Agent

agent = Agent("openai:gpt-5-mini")


async def main() -> None:
    async with agent.run_stream("Count to five.") as stream:
        async for text in stream.stream_text(delta=True):
            print(text, end="", flush=True)


asyncio.run(main())
