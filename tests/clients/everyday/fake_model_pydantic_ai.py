from pydantic_ai import Agent
from pydantic_ai.models.test import TestModel

agent = Agent("openai:gpt-5-mini")


def test_answer() -> None:
    with agent.override(model=TestModel(custom_output_text="Paris.")):
        answer = agent.run_sync("What is the capital of France?")
    assert answer.output == "Paris."
