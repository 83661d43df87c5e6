"""instructor's batches: a model of pydantic in, its instances out."""
import io
import json
import time

from instructor.batch import BatchProcessor, filter_successful
from pydantic import BaseModel


class Review(BaseModel):
    positive: bool
    words: int


processor = BatchProcessor("openai/sim-1", Review)
messages = [[{"role": "user", "content": f"Review {i}: it was fine."}] for i in range(3)]
buffer = processor.create_batch_from_messages(messages)
# One more, which asks for more than the context window has.
line = json.loads(buffer.getvalue().splitlines()[0])
line["custom_id"] = "long"
line["body"]["max_tokens"] = 1_000_000
buffer.seek(0, io.SEEK_END)
buffer.write(b"\n" + json.dumps(line).encode())
buffer.seek(0)
batch_id = processor.submit_batch(buffer)
while processor.get_batch_status(batch_id)["status"] != "completed":
    time.sleep(0.1)
results = processor.retrieve_results(batch_id)
assert len(filter_successful(results)) == 3, results
assert all(isinstance(one.result, Review) for one in results)
assert batch_id in [job.id for job in processor.list_batches()]
