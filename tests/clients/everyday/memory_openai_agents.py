from agents import Agent, Runner, SQLiteSession

agent = Agent(name="Assistant", model="gpt-5-mini")
session = SQLiteSession("ada")
Runner.run_sync(agent, "My name is Ada.", session=session)
answer = Runner.run_sync(agent, "What is my name?", session=session)
print(answer.final_output)
