from pydantic import BaseModel

from anabranch import Agent


class Invoice(BaseModel):
    customer: str
    euros: int


agent = Agent("openai:gpt-5-mini", output_type=Invoice)
answer = agent.run_sync("Ada owes 40 euros for two lamps.")
print(answer.output)
