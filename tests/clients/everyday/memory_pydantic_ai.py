from pydantic_ai import Agent

agent = Agent("openai:gpt-5-mini")
first = agent.run_sync("My name is Ada.")
second = agent.run_sync("What is my name?", message_history=first.all_messages())
print(second.output)
