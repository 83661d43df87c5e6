"""A pandas DataFrame in, the same DataFrame with an answer for each row out, through the OpenAI SDK.

    pip install openai pandas
    python examples/dataframe.py
"""

import io
import json
import os
import time
from pathlib import Path

import pandas as pd
from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OFFPEAK_BASE_URL", "http://127.0.0.1:8080") + "/v1",
    api_key=os.environ.get("OFFPEAK_API_KEY") or Path("offpeak-data/api-key-openai").read_text().strip(),
)

frame = pd.DataFrame({"text": ["Arrived broken.", "Does what it says.", "Never again."]})


def line(index: int, text: str) -> str:
    body = {
        "model": "sim-1",
        "messages": [{"role": "user", "content": f"Rate this review: {text}"}],
        "max_tokens": 20,
    }
    return json.dumps({"custom_id": str(index), "method": "POST", "url": "/v1/chat/completions", "body": body})


lines = "\n".join(line(index, text) for index, text in frame["text"].items())
file = client.files.create(purpose="batch", file=("reviews.jsonl", io.BytesIO(lines.encode())))
client.files.wait_for_processing(file.id, poll_interval=0.2)
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
while batch.status not in ("completed", "failed", "expired", "cancelled"):
    time.sleep(0.2)
    batch = client.batches.retrieve(batch.id)

for column, file_id in (("answer", batch.output_file_id), ("error", batch.error_file_id)):
    frame[column] = None
    if file_id is None:
        continue
    for text in client.files.content(file_id).text.splitlines():
        result = json.loads(text)
        value = (
            result["response"]["body"]["choices"][0]["message"]["content"]
            if result["response"]
            else result["error"]["message"]
        )
        frame.loc[int(result["custom_id"]), column] = value

print(frame.to_string())
