import asyncio

from anabranch import Agent

agent = Agent("openai:gpt-5-mini")


async def main() -> None:
    countries = ["France", "Italy", "Peru"]
    questions = [f"What is the capital of {country}?" for country in countries]
    answers = await asyncio.gather(*(agent(question) for question in questions))
    print([answer.output for answer in answers])


asyncio.run(main())
