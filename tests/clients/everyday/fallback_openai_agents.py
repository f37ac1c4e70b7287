from agents import Agent, RunConfig, Runner
from openai import APIError

QUESTION = "What is the capital of France?"
agent = Agent(name="Assistant", model="gpt-5")
try:
    answer = Runner.run_sync(agent, QUESTION)
except APIError:
    answer = Runner.run_sync(agent, QUESTION, run_config=RunConfig(model="gpt-5-mini"))
print(answer.final_output)
