"""pydantic-ai: the requests of an agent's runs go through a batch."""
import asyncio
from datetime import timedelta

from pydantic_ai import Agent
from pydantic_ai.capabilities import BatchModelRequests
from pydantic_ai.models.openai import OpenAIResponsesModel

batching = BatchModelRequests(
    max_wait=timedelta(seconds=0.5),
    poll_interval=timedelta(seconds=0.2),
    max_poll_interval=timedelta(seconds=0.5),
)
agent = Agent(OpenAIResponsesModel("sim-1"), capabilities=[batching])


async def main():
    async with batching:
        # One asks for more than the context window has: its own run fails, with the error of its line.
        runs = [agent.run(f"What is {i} + {i}?") for i in range(3)]
        runs.append(agent.run("What is 4 + 4?", model_settings={"max_tokens": 1_000_000}))
        *answered, failed = await asyncio.gather(*runs, return_exceptions=True)
    assert all(getattr(one, "output", None) for one in answered), answered
    assert "context window" in str(failed), repr(failed)


asyncio.run(main())
