from pydantic_ai import Agent, RunContext

researcher = Agent("openai:gpt-5-mini", instructions="You find facts.")


async def research(ctx: RunContext[None], request: str) -> str:
    """Find facts about a topic."""
    found = await researcher.run(request, usage=ctx.usage)
    return found.output


writer = Agent("openai:gpt-5-mini", tools=[research])
answer = writer.run_sync("Write about rivers.")
print(answer.output)
