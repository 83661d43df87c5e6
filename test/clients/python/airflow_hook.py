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
    file.write(json.dumps(line))
    file.flush()
    uploaded = hook.upload_file(file.name, purpose="batch")
batch = hook.create_batch(file_id=uploaded.id, endpoint="/v1/chat/completions")
hook.wait_for_batch(batch.id, wait_seconds=0.1)
output = hook.get_batch(batch.id).output_file_id
assert json.loads(hook.conn.files.content(output).text)["custom_id"] == "a"
