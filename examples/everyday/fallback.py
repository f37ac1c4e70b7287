from anabranch import Agent
from anabranch.backends import Fallback

agent = Agent(Fallback(["openai:gpt-5", "openai:gpt-5-mini"]))
answer = agent.run_sync("What is the capital of France?")
print(answer.output)
