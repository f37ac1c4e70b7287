from anabranch import Agent


def weather(city: str) -> str:
    """Return the weather of a city."""
    return "warm"


agent = Agent("openai:gpt-5-mini", tools=[weather])
answer = agent.run_sync("How is the weather in Rome?")
print(answer.output)
