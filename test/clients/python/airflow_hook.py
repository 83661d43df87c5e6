"""Airflow's OpenAI provider: its hook uploads, creates, waits for the batch and fetches."""
import json
import os
import tempfile

from airflow.models.connection import Connection
from airflow.providers.openai.hooks.openai import OpenAIHook

connection = Connection(
    conn_type="openai", host=os.environ["OPENAI_BASE_URL"], password=os.environ["OPENAI_API_KEY"]
)
os.environ["AIRFLOW_CONN_OPENAI_DEFAULT"] = connection.as_json()
hook = OpenAIHook()
body = {"model": "sim-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
line = {"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": body}
with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
    long = {**line, "custom_id": "long", "body": {**body, "max_tokens": 1_000_000}}
    file.write(f"{json.dumps(line)}\n{json.dumps(long)}")
    file.flush()
    uploaded = hook.upload_file(file.name, purpose="batch")
batch = hook.create_batch(file_id=uploaded.id, endpoint="/v1/chat/completions")
hook.wait_for_batch(batch.id, wait_seconds=0.1)
ended = hook.get_batch(batch.id)
assert json.loads(hook.conn.files.content(ended.output_file_id).text)["custom_id"] == "a"
failed = json.loads(hook.conn.files.content(ended.error_file_id).text)
assert failed["custom_id"] == "long" and failed["response"]["status_code"] == 400, failed
