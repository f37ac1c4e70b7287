from dataclasses import dataclass

from pydantic_ai import Agent, RunContext


@dataclass
class User:
    orders: list[str]


def orders(ctx: RunContext[User]) -> list[str]:
    """List the user's orders."""
    return ctx.deps.orders


agent = Agent("openai:gpt-5-mini", deps_type=User, tools=[orders])
answer = agent.run_sync("What did I order?", deps=User(orders=["a lamp"]))
print(answer.output)
