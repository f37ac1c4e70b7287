from dataclasses import dataclass

from anabranch import Agent, Context


@dataclass
class User:
    orders: list[str]


def orders(ctx: Context[User]) -> list[str]:
    """List the user's orders."""
    return ctx.value.orders


agent = Agent("openai:gpt-5-mini", tools=[orders])
answer = agent.run_sync("What did I order?", context=User(orders=["a lamp"]))
print(answer.output)
