from pydantic_ai import Agent

agent = Agent("openai:gpt-5-mini")
answer = agent.run_sync("What is the capital of France?")
print(answer.output)
