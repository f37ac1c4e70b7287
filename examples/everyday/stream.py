import asyncio

from anabranch import Agent

agent = Agent("openai:gpt-5-mini")


async def main() -> None:
    async with agent.stream("Count to five.") as stream:
        async for text in stream.text():
            print(text, end="", flush=True)


asyncio.run(main())
