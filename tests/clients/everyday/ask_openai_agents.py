from agents import Agent, Runner

agent = Agent(name="Assistant", model="gpt-5-mini")
answer = Runner.run_sync(agent, "What is the capital of France?")
print(answer.final_output)
