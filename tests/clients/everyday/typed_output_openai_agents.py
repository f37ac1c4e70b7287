from agents import Agent, Runner
from pydantic import BaseModel


class Invoice(BaseModel):
    customer: str
    euros: int


agent = Agent(name="Clerk", model="gpt-5-mini", output_type=Invoice)
answer = Runner.run_sync(agent, "Ada owes 40 euros for two lamps.")
print(answer.final_output)
