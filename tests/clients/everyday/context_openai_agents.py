from dataclasses import dataclass

from agents import Agent, RunContextWrapper, Runner, function_tool


@dataclass
class User:
    orders: list[str]


@function_tool
def orders(ctx: RunContextWrapper[User]) -> list[str]:
    """List the user's orders."""
    return ctx.context.orders


agent = Agent[User](name="Shop", model="gpt-5-mini", tools=[orders])
answer = Runner.run_sync(agent, "What did I order?", context=User(orders=["a lamp"]))
print(answer.final_output)
