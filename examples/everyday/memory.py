from anabranch import Agent

agent = Agent("openai:gpt-5-mini")
agent.run_sync("My name is Ada.", session_id="ada")
answer = agent.run_sync("What is my name?", session_id="ada")
print(answer.output)
