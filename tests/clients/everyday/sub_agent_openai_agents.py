from agents import Agent, Runner

researcher = Agent(name="Researcher", model="gpt-5-mini", instructions="You find facts.")
research = researcher.as_tool("research", "Find facts about a topic.")
writer = Agent(name="Writer", model="gpt-5-mini", tools=[research])
answer = Runner.run_sync(writer, "Write about rivers.")
print(answer.final_output)
