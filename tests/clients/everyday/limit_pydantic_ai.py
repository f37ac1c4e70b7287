from pydantic_ai import Agent, UsageLimitExceeded, UsageLimits


def read_page(number: int) -> str:
    """Read a page of the book."""
    return "The story goes on."


agent = Agent("openai:gpt-5-mini", tools=[read_page])
try:
    agent.run_sync("Read the book.", usage_limits=UsageLimits(total_tokens_limit=100))
except UsageLimitExceeded:
    print("That was too much.")
