from anabranch import Agent

researcher = Agent("openai:gpt-5-mini", instructions="You find facts.")
research = researcher.as_tool("research", "Find facts about a topic.")
writer = Agent("openai:gpt-5-mini", tools=[research])
answer = writer.run_sync("Write about rivers.")
print(answer.output)
