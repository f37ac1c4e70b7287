"""One agent flips a coin and another writes a poem about it: your own strategy from two agents.

    python examples/coin_flip_poet.py
    python examples/coin_flip_poet.py --model groq:llama-3.1-8b-instant     (with GROQ_API_KEY)

The first agent's answer is parsed into the state; if it is neither heads nor tails, the agent must
answer again. The second agent's prompt contains the state, and you read its reply. A model with 8
billion parameters does both well. The local one may need several attempts for the coin.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from typing import Any

from anabranch import Backend, Message, connect
from anabranch.agents import Namespace, Orchestrator, PromptedAgent, PromptEngineer, State
from anabranch.agents.errors import LimitReached


class Coin(Namespace):
    side: str = ""


class CoinState(State):
    coin: Coin = Coin()


class CoinEngineer(PromptEngineer[CoinState]):
    def render_prompt(self, obs: str | None, history: list[Message], state: CoinState) -> None:
        told = 'Flip a coin. Answer only with the word "heads" or the word "tails".'
        history[:] = [Message(role="user", content=told)]

    def process_response(
        self, obs: str | None, response: str, history: list[Message], state: CoinState
    ) -> str:
        sides = [side for side in ("heads", "tails") if side in response.lower()]
        if len(sides) != 1:
            state.signal_error(
                f"no flip: {response!r}", 'That is not one side. Answer "heads" or "tails".'
            )
            return response
        state.coin.side = sides[0]
        return sides[0]


class PoetEngineer(PromptEngineer[CoinState]):
    def render_prompt(self, obs: str | None, history: list[Message], state: CoinState) -> None:
        about = f" The reader says: {obs}" if obs else ""
        told = f"A coin was flipped and shows {state.coin.side}. Write two happy lines about it."
        history[:] = [Message(role="user", content=told + about)]


def transition(obs: str | None, state: CoinState) -> str:
    if state.agent != "coin":
        return "coin"
    state.step_environment()  # the reader gets the poem
    return "poet"


def compose(backend: Backend, flips: int) -> Orchestrator[CoinState]:
    def options(tokens: int) -> dict[str, Any]:
        return {"seed": 1, "max_tokens": tokens} if backend.provider == "local" else {}

    agents = [
        PromptedAgent("coin", CoinEngineer(), backend, temperature=1, **options(20)),
        PromptedAgent("poet", PoetEngineer(), backend, temperature=1, **options(60)),
    ]
    return Orchestrator(agents, transition, CoinState(max_errors=3, max_steps=flips))


async def recite(backend: Backend, flips: int) -> Orchestrator[CoinState]:
    orchestrator = compose(backend, flips)
    async with backend:
        try:
            while True:
                poem = await orchestrator.forward()
                print(f"[{orchestrator.state.coin.side}]\n{poem.content}\n")
        except LimitReached as limit:
            print(f"({limit})")
    for agent, models in orchestrator.usage.items():
        for model, usage in models.items():
            print(f"{agent}: {usage.total_tokens} tokens of {model}")
    return orchestrator


def main() -> None:
    parser = argparse.ArgumentParser(description="A coin and a poet.")
    parser.add_argument("--model", default="local", help="local, openai:NAME, groq:NAME, ...")
    parser.add_argument("--flips", type=int, default=2, help="the number of poems")
    parser.add_argument("--log", action="store_true", help="show each prompt and response")
    options = parser.parse_args()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("anabranch.agents").setLevel("DEBUG" if options.log else "INFO")
    asyncio.run(recite(connect(options.model), options.flips))


if __name__ == "__main__":
    main()
