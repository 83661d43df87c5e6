"""bespokelabs-curator with its OpenAI batch backend."""
import os
import tempfile

os.environ["CURATOR_VIEWER"] = "0"
os.environ["TELEMETRY_ENABLED"] = "0"
os.environ["CURATOR_CACHE_DIR"] = tempfile.mkdtemp()

from bespokelabs import curator

llm = curator.LLM(
    model_name="sim-1",
    batch=True,
    backend="openai",
    backend_params={
        "base_url": os.environ["OPENAI_BASE_URL"],
        "api_key": os.environ["OPENAI_API_KEY"],
        "batch_check_interval": 1,
        "batch_size": 2,
        "invalid_finish_reasons": ["content_filter"],
    },
)
answers = llm(["Say hello.", "Say goodbye.", "Say nothing."])
rows = answers.dataset if hasattr(answers, "dataset") else answers
assert len(rows) == 3 and all(row["response"] for row in rows), rows
