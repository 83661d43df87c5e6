"""OpenAI's SDK: a batch from its upload to its results, with cursors, an upload in memory and a cancel."""
import io
import json
import time

import openai

client = openai.OpenAI()


def lines(model="sim-1", n=3):
    body = {"model": model, "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 16}
    request = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    return "\n".join(json.dumps({"custom_id": f"l{i}", **request}) for i in range(n)).encode()


def create(content, **more):
    file = client.files.create(
        file=("in.jsonl", io.BytesIO(content)),
        purpose="batch",
        extra_body={"expires_after": {"anchor": "created_at", "seconds": 3600}},
    )
    assert file.expires_at - file.created_at == 3600, file
    file = client.files.wait_for_processing(file.id, poll_interval=0.1)
    assert file.status == "processed", file
    return client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", **more
    )


def ended(batch):
    while batch.status not in ("completed", "failed", "expired", "cancelled"):
        assert batch.status in ("validating", "in_progress", "finalizing", "cancelling"), batch.status
        time.sleep(0.1)
        batch = client.batches.retrieve(batch.id)
    return batch


done = ended(create(lines(), metadata={"entity": "user:1"}))
assert done.status == "completed" and done.request_counts.completed == 3, done
assert done.in_progress_at and done.finalizing_at and done.completed_at and done.failed_at is None
usage = done.to_dict()["usage"]
assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > 0, usage
answers = [json.loads(line) for line in client.files.content(done.output_file_id).text.splitlines()]
assert [answer["custom_id"] for answer in answers] == ["l0", "l1", "l2"]
total = sum(answer["response"]["body"]["usage"]["total_tokens"] for answer in answers)
assert total == usage["total_tokens"]

# One line fails: it asks for more than the context window has.
long = lines(n=2).replace(b'"max_tokens": 16', b'"max_tokens": 1000000', 1)
partly = ended(create(long))
assert partly.status == "completed" and partly.request_counts.failed == 1, partly
[failing] = [json.loads(line) for line in client.files.content(partly.error_file_id).text.splitlines()]
assert failing["custom_id"] == "l0" and failing["error"] is None, failing
assert failing["response"]["status_code"] == 400, failing
assert failing["response"]["body"]["error"]["code"] == "context_length_exceeded", failing

failed = ended(create(lines(model="nope")))
assert failed.status == "failed" and failed.errors.object == "list", failed
assert failed.errors.data[0].code == "model_not_found" and failed.errors.data[0].line == 1

cancelled = ended(client.batches.cancel(create(lines(n=2000)).id))
assert cancelled.status == "cancelled" and cancelled.cancelled_at, cancelled

assert {done.id, failed.id, cancelled.id} <= {batch.id for batch in client.batches.list(limit=1)}
files = [file.id for file in client.files.list(order="asc", limit=2)]
assert len(files) > 2 and files.index(done.input_file_id) < files.index(done.output_file_id)
try:
    client.batches.create(
        input_file_id=done.input_file_id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        extra_body={"service_tier": "flex"},
    )
    raise AssertionError("an unknown parameter was accepted")
except openai.BadRequestError as error:
    assert error.param == "service_tier", error
assert client.files.delete(done.input_file_id).deleted
