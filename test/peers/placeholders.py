"""Stands between the test suites of other projects and a service.

The suites were generated for a mock server that answers anything: they ask for the batch "batch_id" and upload "Example data".
Each call that names such a placeholder gets an object of its own at the service, and the call goes on with its ID. Answers
come back unchanged. Usage: placeholders.py SERVICE_URL KEY; the first line it prints is its address.
"""

import json
import re
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SERVICE, KEY = sys.argv[1:3]
MODEL = "gpt-5-mini"
# Answers after a minute: its batches can be cancelled.
SLOW = "slow"
CHAT = "/v1/chat/completions"


def call(method, path, body=None, headers=None):
    given = {"authorization": f"Bearer {KEY}", **(headers or {})}
    if isinstance(body, dict):
        body, given["content-type"] = json.dumps(body).encode(), "application/json"
    request = urllib.request.Request(SERVICE + path, data=body, method=method, headers=given)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.headers, error.read()


def made(method, path, body=None, headers=None):
    status, _, text = call(method, path, body, headers)
    if status >= 300:
        raise RuntimeError(f"{method} {path}: {status} {text!r}")
    return json.loads(text)["id"]


def line(endpoint=CHAT):
    said = {"input": "hi"} if endpoint.endswith("responses") else {"messages": [{"role": "user", "content": "hi"}]}
    request = {"custom_id": "a", "method": "POST", "url": endpoint, "body": {"model": MODEL, **said}}
    return (json.dumps(request) + "\n").encode()


def file(endpoint=CHAT):
    boundary = "placeholder"
    parts = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        f'--{boundary}\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    ).encode() + line(endpoint) + f"\r\n--{boundary}--\r\n".encode()
    return made("POST", "/v1/files", parts, {"content-type": f"multipart/form-data; boundary={boundary}"})


def batch():
    order = {"input_file_id": file(), "endpoint": CHAT, "completion_window": "24h", "start_after": int(time.time()) + 60}
    return made("POST", "/v1/batches", order)


def upload():
    order = {"filename": "a.jsonl", "purpose": "batch", "bytes": len(line()), "mime_type": "application/jsonl"}
    return made("POST", "/v1/uploads", order)


def part(upload_id):
    boundary = "placeholder"
    body = (
        f'--{boundary}\r\ncontent-disposition: form-data; name="data"; filename="part"\r\n\r\n'.encode()
        + line()
        + f"\r\n--{boundary}--\r\n".encode()
    )
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    return made("POST", f"/v1/uploads/{upload_id}/parts", body, headers)


def message_batch(model=SLOW):
    params = {"model": model, "max_tokens": 5, "messages": [{"role": "user", "content": "hi"}]}
    return made("POST", "/v1/messages/batches", {"requests": [{"custom_id": "a", "params": params}]})


def ended_message_batch():
    found = message_batch(MODEL)
    while json.loads(call("GET", f"/v1/messages/batches/{found}")[2])["processing_status"] != "ended":
        time.sleep(0.05)
    return found


MAKERS = {
    "batch_id": batch,
    "file_id": file,
    "upload_abc123": upload,
    "message_batch_id": message_batch,
    "model_id": lambda: MODEL,
    "gpt-6-astra": lambda: MODEL,
}
# A page of nothing behind a cursor of nothing, and a purpose that is none.
QUERY = {"limit=0": "limit=1", "purpose=purpose": "purpose=batch"}
CURSORS = {"after", "after_id", "before_id"}


def with_objects(method, path):
    makers = {**MAKERS, "message_batch_id": ended_message_batch} if method == "DELETE" else MAKERS
    path, _, query = path.partition("?")
    path = re.sub(r"(?<=/)([\w.-]+)(?=/|$)", lambda found: makers.get(found[1], lambda: found[1])(), path)
    asked = [QUERY.get(one, one) for one in query.split("&") if one.split("=")[0] not in CURSORS]
    return path + ("?" + "&".join(asked) if any(asked) else "")


def with_content(path, body, headers):
    """The body of a call, with what the service can take in place of each placeholder."""
    kind = headers.get("content-type", "")
    if kind.startswith("multipart/"):
        body = body.replace(b"\r\n\r\nassistants\r\n", b"\r\n\r\nbatch\r\n")
        return re.sub(rb"Example data|raw file contents", lambda _: line().rstrip(), body)
    if not kind.startswith("application/json") or not body:
        return body
    asked = json.loads(body)
    if "input_file_id" in asked:
        asked["input_file_id"] = file(asked["endpoint"])
    if path.endswith("/v1/uploads"):
        asked.update(purpose="batch", bytes=len(line()), mime_type="application/jsonl")
    if path.endswith("/complete"):
        asked["part_ids"] = [part(path.split("/")[-2])]
        asked.pop("md5", None)
    return json.dumps(asked).encode()


class Placeholders(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        path = with_objects(self.command, self.path if self.path.startswith("/v1/") else f"/v1{self.path}")
        body = with_content(path, body, self.headers)
        dropped = {"host", "content-length", "authorization", "x-api-key", "connection", "accept-encoding"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in dropped}
        status, given, text = call(self.command, path, body or None, headers)
        self.send_response(status)
        for name, value in given.items():
            if name.lower() not in {"connection", "content-length", "transfer-encoding", "keep-alive"}:
                self.send_header(name, value)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Placeholders)
print(f"http://127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
