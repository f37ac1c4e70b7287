"""A group chat of two agents that disagree: each receives all messages and asks for a turn.

    python examples/group_talk.py --model openai:gpt-5-mini
    python examples/group_talk.py --model openai:gpt-5-mini --join       (you are in it, too)

Each agent answers when it wants to. It asks "Can I speak?" and gets a turn unless another one
speaks. Models of the local one's size do not follow such rules, so agents speak out of turn.
"""

from __future__ import annotations

import argparse
import asyncio

from anabranch import Backend, connect
from anabranch.agents import ConversableAgent, GroupTalk, Participant, UserProxyAgent
from anabranch.agents.conversation import GroupConversation, role_prompt

ROLES = {
    "Casperian": "You contradict the others, cleverly and without mercy, and find every fault.",
    "Amelie": "You praise everybody, also when they do not deserve it, and agree at once.",
}
OPENING = "Hello everyone, it is a beautiful day. Please introduce yourselves."


async def talk(
    backend: Backend, opening: str, speeches: int, *, join: bool = False
) -> GroupConversation:
    members: list[Participant | str] = [
        ConversableAgent(name, backend, role_prompt(name, character), seed=1)
        for name, character in ROLES.items()
    ]
    if join:
        members.append(UserProxyAgent("you"))
    group = GroupTalk("all", members, max_turns=speeches)
    host = UserProxyAgent("host", human_input_mode="NEVER", max_consecutive_auto_reply=0)
    async with backend:
        await host.initiate_chat(group, opening, transcript=True)
    said = group.talks["host"]
    print(f"({len(said.messages) - 1} speeches, {said.status})")
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description="A group chat.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, mistral:NAME, ...")
    parser.add_argument(
        "--speeches", type=int, default=4, help="the number of messages until the end"
    )
    parser.add_argument("--max-tokens", type=int, help="the most tokens of each answer")
    parser.add_argument("--join", action="store_true", help="take part, on the terminal")
    parser.add_argument("opening", nargs="?", default=OPENING)
    options = parser.parse_args()
    backend = connect(options.model, max_tokens=options.max_tokens)
    asyncio.run(talk(backend, options.opening, options.speeches, join=options.join))


if __name__ == "__main__":
    main()
