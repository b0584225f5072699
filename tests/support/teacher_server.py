"""An OpenAI-compatible server on loopback that answers about text games, or misbehaves."""

import functools
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from terrella.codecs.chat import prediction_messages
from terrella.core.types import Split, show_text
from terrella.evals.text_games import situation_of

Response = tuple[int, bytes, dict[str, str]]


@functools.lru_cache(maxsize=4)
def answers_of(world) -> dict[str, str]:
    """What is asked about each train record of a world, and the answer."""
    answers = {}
    for record in world.pools[Split.TRAIN]:
        step = world.transition(record)
        query = prediction_messages(situation_of(world, record), step.action)[1]["content"]
        answers[query] = show_text(step.next_observation)
    return answers


class TeacherServer:
    """Knows the answer to every train record of a world.

    `behave(count, answer)` gives status, body and headers of the count-th request.
    """

    def __init__(self, world, behave: Callable[[int, str], Response] | None = None) -> None:
        self.answers = answers_of(world)
        self.behave = behave or (lambda count, answer: completion(answer))
        self.requests = []
        self.now = self.most_at_once = 0
        self.lock = threading.Lock()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with server.lock:
                    server.requests.append(body)
                    count = len(server.requests)
                    server.now += 1
                    server.most_at_once = max(server.most_at_once, server.now)
                answer = server.answers[body["messages"][-1]["content"]]
                status, payload, headers = server.behave(count, answer)
                with server.lock:
                    server.now -= 1
                self.send_response(status)
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.handle_error = lambda *_: None  # clients that time out hang up
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()


def completion(answer: str, *, thought: str = "It follows.", field: str = "reasoning_content"):
    """A reply with the answer in its tag and the thought in a field of its own."""
    message = {"role": "assistant", "content": f"<answer>\n{answer}\n</answer>", field: thought}
    return chat(message)


def chat(message: dict[str, str], finish: str = "stop") -> Response:
    usage = {"prompt_tokens": 100, "completion_tokens": 10}
    body = {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}
    return 200, json.dumps(body).encode(), {}


def slow(seconds: float, response: Response) -> Response:
    time.sleep(seconds)
    return response
