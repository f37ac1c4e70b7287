from pydantic_ai import Agent
from pydantic_ai.models.fallback import FallbackModel

agent = Agent(FallbackModel("openai:gpt-5", "openai:gpt-5-mini"))
answer = agent.run_sync("What is the capital of France?")
print(answer.output)
