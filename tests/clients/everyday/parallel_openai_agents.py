import asyncio

from agents import Agent, Runner

agent = Agent(name="Assistant", model="gpt-5-mini")


async def main() -> None:
    countries = ["France", "Italy", "Peru"]
    questions = [f"What is the capital of {country}?" for country in countries]
    answers = await asyncio.gather(*(Runner.run(agent, question) for question in questions))
    print([answer.final_output for answer in answers])


asyncio.run(main())
