"""bespokelabs-curator with its OpenAI batch backend."""
import json
import os
import tempfile

os.environ["CURATOR_VIEWER"] = "0"
os.environ["TELEMETRY_ENABLED"] = "0"
os.environ["CURATOR_CACHE_DIR"] = tempfile.mkdtemp()

from bespokelabs import curator
from datasets import Dataset


class Greeter(curator.LLM):
    def prompt(self, row):
        return row["prompt"]

    def parse(self, row, response):
        return {"response": response}


llm = Greeter(
    model_name="sim-1",
    batch=True,
    backend="openai",
    backend_params={
        "base_url": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "batch_check_interval": 1,
        "batch_size": 2,
        # One request asks for more than the context window has; the others keep their answers.
        "require_all_responses": False,
        "max_retries": 1,
        "invalid_finish_reasons": ["content_filter"],
    },
)
prompts = ["Say hello.", "Say goodbye.", "Say nothing."]
params = [{}, {}, {"max_tokens": 1_000_000}]
answers = llm(Dataset.from_dict({"prompt": prompts, "generation_params": [json.dumps(one) for one in params]}))
rows = answers.dataset if hasattr(answers, "dataset") else answers
assert len(rows) == 2 and all(row["response"] for row in rows), rows
