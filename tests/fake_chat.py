"""An OpenAI-compatible chat endpoint on a free port of this machine, with canned answers."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Reply = tuple[int, dict[str, str], str]
"""HTTP status, headers, body."""


@dataclass
class FakeChat:
    """Answers each request by ``answer``: the request's messages → the answer's text or a reply."""

    answer: Callable[[list[dict[str, str]]], str | Reply]
    base_url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def reply(self, request: dict[str, Any]) -> Reply:
        self.requests.append(request)
        answer = self.answer(request["messages"])
        return answer if isinstance(answer, tuple) else completion(answer)


def completion(text: str | None) -> Reply:
    """A whole chat completion with one choice."""
    body = {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text},
                "finish_reason": "stop",
            }
        ],
    }
    return 200, {"Content-Type": "application/json"}, json.dumps(body)


def failure(status: int, message: str, **headers: str) -> Reply:
    """An error as such endpoints report it; underscores of header names are dashes."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = json.dumps({"error": {"message": message}})
    return status, {"Content-Type": "application/json", **named}, body


@contextmanager
def chat_endpoint(answer: Callable[[list[dict[str, str]]], str | Reply]) -> Iterator[FakeChat]:
    """A running endpoint; its ``base_url`` ends in /v1."""
    chat = FakeChat(answer)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            assert self.path == "/v1/chat/completions"
            chat.keys.append(self.headers["Authorization"])
            content = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers, body = chat.reply(json.loads(content))
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body.encode()))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        chat.base_url = f"http://127.0.0.1:{server.server_port}/v1"
        try:
            yield chat
        finally:
            server.shutdown()
            thread.join()
