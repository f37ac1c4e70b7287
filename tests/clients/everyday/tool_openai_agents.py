from agents import Agent, Runner, function_tool


@function_tool
def weather(city: str) -> str:
    """Return the weather of a city."""
    return "warm"


agent = Agent(name="Reporter", model="gpt-5-mini", tools=[weather])
answer = Runner.run_sync(agent, "How is the weather in Rome?")
print(answer.final_output)
