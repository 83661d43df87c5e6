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
        runs = await asyncio.gather(*(agent.run(f"What is {i} + {i}?") for i in range(3)))
    assert all(one.output for one in runs), runs


asyncio.run(main())
