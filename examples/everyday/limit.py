from anabranch import Agent, BudgetExceeded, Limits


def read_page(number: int) -> str:
    """Read a page of the book."""
    return "The story goes on."


agent = Agent("openai:gpt-5-mini", tools=[read_page])
try:
    agent.run_sync("Read the book.", limits=Limits(budget=100))
except BudgetExceeded:
    print("That was too much.")
