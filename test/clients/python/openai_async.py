"""OpenAI's SDK with its asynchronous client, and its clients for Azure."""
import asyncio
import io
import json
import os

import openai

body = {"model": "sim-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
azure = {
    "azure_endpoint": os.environ["OFFPEAK_BASE_URL"],
    "api_key": os.environ["OPENAI_API_KEY"],
    "api_version": "2024-10-21",
}


async def run(client):
    file = await client.files.create(file=("in.jsonl", io.BytesIO(json.dumps(line).encode())), purpose="batch")
    batch = await client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status != "completed":
        assert batch.status in ("validating", "in_progress", "finalizing"), batch.status
        await asyncio.sleep(0.1)
        batch = await client.batches.retrieve(batch.id)
    answers = (await client.files.content(batch.output_file_id)).text
    assert json.loads(answers)["custom_id"] == "a", answers
    assert batch.id in [one.id async for one in client.batches.list(limit=1)]
    assert (await client.files.delete(file.id)).deleted


async def main():
    async with openai.AsyncOpenAI() as client, openai.AsyncAzureOpenAI(**azure) as azure_client:
        await asyncio.gather(*(run(client) for _ in range(5)), run(azure_client))
    with openai.AzureOpenAI(**azure) as client:
        assert client.files.list(limit=1).data[0].purpose


asyncio.run(main())
