"""LiteLLM as a library: files and batches through its OpenAI provider."""
import io
import json
import os
import time

import litellm

to = {
    "custom_llm_provider": "openai",
    "api_base": os.environ["OPENAI_BASE_URL"],
    "api_key": os.environ["OPENAI_API_KEY"],
}
body = {"model": "sim-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
long = {**line, "custom_id": "long", "body": {**body, "max_tokens": 1_000_000}}
content = ("in.jsonl", io.BytesIO(f"{json.dumps(line)}\n{json.dumps(long)}".encode()))

file = litellm.create_file(file=content, purpose="batch", **to)
assert litellm.file_retrieve(file.id, **to).id == file.id
batch = litellm.create_batch(
    input_file_id=file.id,
    endpoint="/v1/chat/completions",
    completion_window="24h",
    metadata={"entity": "user:1"},
    **to,
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.1)
    batch = litellm.retrieve_batch(batch_id=batch.id, **to)
assert batch.status == "completed" and batch.usage.total_tokens > 0, batch
answers = litellm.file_content(file_id=batch.output_file_id, **to).text
assert json.loads(answers)["custom_id"] == "a", answers
failed = json.loads(litellm.file_content(file_id=batch.error_file_id, **to).text)
assert failed["custom_id"] == "long" and failed["response"]["status_code"] == 400, failed
assert batch.id in [one.id for one in litellm.list_batches(limit=10, **to).data]
assert litellm.file_delete(file.id, **to).deleted
