from agents import Agent, ModelResponse, RunContextWrapper, RunHooks, Runner, function_tool


@function_tool
def read_page(number: int) -> str:
    """Read a page of the book."""
    return "The story goes on."


class TokenLimit(RunHooks[None]):
    async def on_llm_end(
        self, context: RunContextWrapper[None], agent: Agent[None], response: ModelResponse
    ) -> None:
        if context.usage.total_tokens > 100:
            raise RuntimeError("too many tokens")


agent = Agent(name="Reader", model="gpt-5-mini", tools=[read_page])
try:
    Runner.run_sync(agent, "Read the book.", hooks=TokenLimit())
except RuntimeError:
    print("That was too much.")
