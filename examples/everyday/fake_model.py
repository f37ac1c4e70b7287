from anabranch import Agent
from anabranch.testing import ScriptedBackend

agent = Agent("openai:gpt-5-mini")


def test_answer() -> None:
    with agent.override(backend=ScriptedBackend("Paris.")):
        answer = agent.run_sync("What is the capital of France?")
    assert answer.output == "Paris."
