"""LiteLLM's proxy in front of the service, called with OpenAI's SDK."""
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

import openai

KEY = "sk-only-for-this-test-0123456789abcdef"
service = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
model = {"model_name": "sim-1", "litellm_params": {"model": "openai/sim-1", **service}}
config = {
    "model_list": [{**model, "model_info": {"mode": "batch"}}],
    "files_settings": [{"custom_llm_provider": "openai", **service}],
    "general_settings": {"master_key": KEY},
}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
# JSON is YAML.
with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
    json.dump(config, file)
litellm = os.path.join(os.path.dirname(sys.executable), "litellm")
proxy = subprocess.Popen([litellm, "--config", file.name, "--host", "127.0.0.1", "--port", str(port)])


def is_ready():
    try:
        return urllib.request.urlopen(f"http://127.0.0.1:{port}/health/liveliness").status == 200
    except OSError:
        assert proxy.poll() is None, "the proxy has exited"
        return False


try:
    while not is_ready():
        time.sleep(0.2)
    client = openai.OpenAI(
        base_url=f"http://127.0.0.1:{port}/v1",
        api_key=KEY,
        default_headers={"custom-llm-provider": "openai"},
    )
    body = {"model": "sim-1", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = "\n".join(json.dumps({"custom_id": str(i), **line}) for i in range(200))
    file = client.files.create(file=("in.jsonl", io.BytesIO(lines.encode())), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    )
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    assert batch.status == "completed", batch
    # Enough lines that the service would compress them.
    assert len(client.files.content(batch.output_file_id).text.splitlines()) == 200
    assert batch.id in [one.id for one in client.batches.list(limit=100)]
    assert client.files.delete(file.id).deleted
finally:
    proxy.terminate()
    proxy.wait(20)
