"""Anthropic's SDK: a message batch from its creation to its results, pages, a cancel, a deletion and errors."""
import os
import time

import anthropic

client = anthropic.Anthropic(base_url=os.environ["OFFPEAK_BASE_URL"], api_key=os.environ["OFFPEAK_API_KEY"])
batches = client.messages.batches
message = {"model": "sim-1", "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
tool = {"name": "weather", "input_schema": {"type": "object", "properties": {"n": {"type": "integer"}}}}


def create(**requests):
    return batches.create(requests=[{"custom_id": id, "params": params} for id, params in requests.items()])


def ended(batch):
    while batch.processing_status != "ended":
        assert batch.processing_status in ("in_progress", "canceling"), batch
        assert batch.results_url is None and batch.ended_at is None, batch
        time.sleep(0.1)
        batch = batches.retrieve(batch.id)
    return batch


def status_of(call):
    try:
        call()
    except anthropic.APIStatusError as error:
        assert error.body["type"] == "error" and error.request_id == error.body["request_id"], error.body
        return type(error), error.body["error"]["type"]
    raise AssertionError("no error")


done = ended(
    create(
        said=message,
        called={**message, "max_tokens": 200, "tools": [tool], "tool_choice": {"type": "any"}},
        failed={**message, "model": "nope"},
    )
)
counts = done.request_counts
assert (counts.processing, counts.succeeded, counts.errored, counts.canceled, counts.expired) == (0, 2, 1, 0, 0), done
assert done.type == "message_batch" and done.created_at <= done.ended_at < done.expires_at, done
results = {line.custom_id: line.result for line in batches.results(done.id)}
said, called = results["said"].message, results["called"].message
assert said.content[0].type == "text" and said.stop_reason == "max_tokens" and said.usage.output_tokens == 16, said
assert called.content[0].type == "tool_use" and called.content[0].name == "weather", called
error = results["failed"]
assert error.type == "errored" and error.error.error.type == "not_found_error", error

cancelled = ended(batches.cancel(create(**{f"l{i}": message for i in range(3000)}).id))
assert cancelled.cancel_initiated_at and cancelled.request_counts.canceled > 0, cancelled
assert cancelled.request_counts.canceled + cancelled.request_counts.succeeded == 3000, cancelled
kinds = [line.result.type for line in batches.results(cancelled.id)]
assert kinds.count("canceled") == cancelled.request_counts.canceled and len(kinds) == 3000

listed = [batch.id for batch in batches.list(limit=1)]
assert listed.index(cancelled.id) + 1 == listed.index(done.id), listed
assert [batch.id for batch in batches.list(limit=1, before_id=done.id)] == listed[: listed.index(done.id)][::-1]
assert client.beta.messages.batches.retrieve(done.id).id == done.id

assert batches.delete(done.id).type == "message_batch_deleted"
assert status_of(lambda: batches.retrieve(done.id)) == (anthropic.NotFoundError, "not_found_error")
wrong = anthropic.Anthropic(base_url=os.environ["OFFPEAK_BASE_URL"], api_key="none")
assert status_of(lambda: wrong.messages.batches.list()) == (anthropic.AuthenticationError, "authentication_error")
assert status_of(lambda: create()) == (anthropic.BadRequestError, "invalid_request_error")
