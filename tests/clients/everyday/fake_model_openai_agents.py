from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message

agent = Agent(name="Assistant", model="gpt-5-mini")


def test_answer() -> None:
    fake = ScriptedModel([[assistant_message("Paris.")]])
    question = "What is the capital of France?"
    answer = Runner.run_sync(agent, question, run_config=RunConfig(model=fake))
    assert answer.final_output == "Paris."
