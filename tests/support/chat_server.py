"""A real OpenAI-compatible HTTP server on loopback, whose replies come from a function."""

import contextlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer:
    """`respond(body, count)` gives status, payload and headers; use it as a context manager."""

    def __init__(self, respond):
        self.requests = []
        self.at_once = self.most_at_once = 0
        self._lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server._lock:
                    server.requests.append((self.path, dict(self.headers), body))
                    count = len(server.requests)
                    server.at_once += 1
                    server.most_at_once = max(server.most_at_once, server.at_once)
                status, payload, headers = respond(body, count)
                with server._lock:
                    server.at_once -= 1
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                with contextlib.suppress(BrokenPipeError):  # the client was killed
                    self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def completion(text, *, usage=None, finish="stop", **message):
    """A chat completion with this text; further fields go into the message."""
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    payload = {"choices": [choice]} | ({"usage": usage} if usage else {})
    return 200, json.dumps(payload).encode(), {}


def counter_state(body):
    """The state of the counter in the last message of a request."""
    return json.loads(body["messages"][-1]["content"].splitlines()[1])


def towards_the_goal(body, _=0):
    """Read the state from the prompt and move the counter towards its goal."""
    state = counter_state(body)
    move = "up" if state["value"] < state["goal"] else "down"
    return completion(f"<think>I go {move}</think><answer>{move}</answer>")
