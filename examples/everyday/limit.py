from anabranch import Agent, BudgetExceeded, run, tool
from anabranch.backends import Limits


@tool
def read_page(number: int) -> str:
    """Read a page of the book."""
    return "The story goes on."


agent = Agent("openai:gpt-5-mini", tools=[read_page])
try:
    run(agent.call("Read the book."), limits=Limits(budget=100))
except BudgetExceeded:
    print("That was too much.")
