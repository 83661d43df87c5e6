"""any-llm: a file of requests on the disk becomes a batch, and its results come as chat completions."""
import json
import os
import tempfile
import time

import any_llm

to = {
    "provider": "openai",
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": os.environ["OPENAI_API_KEY"],
}
body = {"model": "sim-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body} for i in range(3)]
lines.append({**lines[0], "custom_id": "3", "body": {**body, "max_tokens": 1_000_000}})
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    file.write("\n".join(map(json.dumps, lines)))
    file.flush()
    batch = any_llm.create_batch(input_file_path=file.name, endpoint="/v1/chat/completions", **to)
while batch.status != "completed":
    assert batch.status in ("validating", "in_progress", "finalizing"), batch.status
    time.sleep(0.1)
    batch = any_llm.retrieve_batch(batch_id=batch.id, **to)
results = any_llm.retrieve_batch_results(batch_id=batch.id, **to).results
# It reads the output file alone: a failed line is left out.
assert batch.request_counts.failed == 1, batch
assert [one.custom_id for one in results] == ["0", "1", "2"], results
assert all(one.result.choices[0].message.content for one in results), results
assert batch.id in [one.id for one in any_llm.list_batches(limit=10, **to)]
