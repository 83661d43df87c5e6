"""LangChain: messages and tools from it, the batch through the SDK client of its model."""
import json
import time

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, convert_to_openai_messages
from langchain_openai import ChatOpenAI

llm = ChatOpenAI(model="sim-1", max_tokens=16)
client = llm.root_client
prompts = [[SystemMessage("Be brief."), HumanMessage(f"What is {i} + {i}?")] for i in range(3)]
bodies = [{"model": llm.model_name, "messages": convert_to_openai_messages(one)} for one in prompts]
lines = [
    {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions", "body": body}
    for i, body in enumerate(bodies)
]
lines.append({**lines[0], "custom_id": "long", "body": {**bodies[0], "max_tokens": 1_000_000}})
content = "\n".join(map(json.dumps, lines)).encode()
file = client.files.create(file=("in.jsonl", content), purpose="batch")
batch = client.batches.create(
    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
)
while (batch := client.batches.retrieve(batch.id)).status != "completed":
    time.sleep(0.1)
text = client.files.content(batch.output_file_id).text
bodies = [json.loads(line)["response"]["body"] for line in text.splitlines()]
answers = [AIMessage(body["choices"][0]["message"]["content"]) for body in bodies]
assert len(answers) == 3 and all(answer.text for answer in answers), answers

[failed] = [json.loads(line) for line in client.files.content(batch.error_file_id).text.splitlines()]
assert failed["custom_id"] == "long" and failed["response"]["status_code"] == 400, failed
