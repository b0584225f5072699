"""The curriculum: what failed is varied, the critic's band admits, what cannot be learnt rests, quotas hold."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.core.errors import ConfigError
from terrella.data.attempts import Attempt, PracticeTask
from terrella.policies.endpoint import Endpoint
from terrella.stages.curriculum import AskModel, Curriculum, Record, Vary, curriculum_table

NAMES = ("easy", "middle", "hard")


def attempt(family, seed):
    task = PracticeTask(family=family, seed=seed)
    return Attempt(task=task, instruction="", choices=(), last="", success=True, stop="terminated")


def record(*phases):
    """Each phase: outcomes by family."""
    made = Record(NAMES)
    for number, phase in enumerate(phases):
        pairs = [(attempt(name, 100 * number + n), won) for name, wins in phase.items() for n, won in enumerate(wins)]
        made.add([one for one, _ in pairs], [won for _, won in pairs])
    return made


class Fixed:
    """Players and a learner of whom each task's value is known by its family."""

    def __init__(self, values):
        self.chances = values

    def first_sights(self, tasks, split):
        return [(task.family, "instance") for task in tasks]

    def values(self, critic, sights):
        return [self.chances[sight] for sight in sights]


def choose(values, past, count=30, critic=True, **config):
    fixed = Fixed(values)
    curriculum = Curriculum.Config(**config).build()
    return curriculum.choose(fixed, fixed, critic or None, past, count=count, rng=np.random.default_rng(0))


def test_what_failed_is_varied_and_its_neighbours_are_tried():
    past = record({"easy": [1, 1], "middle": [1, 1], "hard": [0, 0]})
    drawn = Vary.Config(anything=0.0).build().families(past, 300, np.random.default_rng(0))
    assert set(drawn) == {"middle", "hard"} and drawn.count("hard") > drawn.count("middle")
    alone = Vary.Config(anything=0.0, beside=0).build().families(past, 50, np.random.default_rng(0))
    assert set(alone) == {"hard"}


def test_only_the_band_is_admitted_while_it_suffices_and_every_refusal_is_counted():
    past = record({"easy": [0], "middle": [0], "hard": [0]})
    tasks, log = choose({"easy": 0.9, "middle": 0.4, "hard": 0.01}, past, quota=1.0, tries=8)
    assert len(tasks) == 30 and {task.family for task in tasks} == {"middle"}
    assert log["too_easy"]["easy"] + log["too_hard"]["hard"] + log["proposed"]["middle"] == 240
    assert log["outside_band"] == 0 and log["mean_value"] == pytest.approx(0.4)


def test_a_short_band_is_filled_with_what_is_nearest_to_it():
    past = record({"easy": [0], "middle": [0], "hard": [0]})
    tasks, log = choose({"easy": 0.76, "middle": 0.99, "hard": 0.0}, past, quota=1.0, tries=4)
    assert len(tasks) == 30 and log["outside_band"] == 30 and log["admitted"]["easy"] >= 25


def test_no_family_takes_more_than_its_quota_and_one_without_progress_rests():
    stuck = record({"hard": [0] * 9, "easy": [0, 1]}, {"hard": [0] * 9, "middle": [0, 1]})
    _, log = choose(dict.fromkeys(NAMES, 0.5), stuck, quota=0.5, rest_quota=0.1, tries=8)
    assert log["resting"] == ["hard"] and log["admitted"]["hard"] == 3
    assert max(log["admitted"]["easy"], log["admitted"]["middle"]) <= 15
    woken = record({"hard": [0] * 9}, {"hard": [0] * 8 + [1]})
    assert choose(dict.fromkeys(NAMES, 0.5), woken)[1]["resting"] == []


def test_without_a_critic_all_are_admitted_and_nothing_is_had_twice():
    past = record({"easy": [0]})
    tasks, log = choose({}, past, critic=False)
    assert len({task.name for task in tasks}) == 30 and log["mean_value"] is None
    past.had |= {task.name for task in tasks}
    again, log = choose({}, past, critic=False)
    assert log["had_before"] == 30 * 4 - 90 and not {task.name for task in again} & {task.name for task in tasks}


def test_what_the_judge_does_not_judge_is_neither_success_nor_failure():
    made = Record(NAMES)
    made.add([attempt("easy", 1), attempt("easy", 2)], [None, 1.0])
    assert made.failed == [] and made.latest("easy") == 1.0 and len(made.had) == 2


def test_the_table_shows_how_it_moved():
    logs = [{"admitted": {"easy": 3}, "mean_value": None, "resting": []},
            {"admitted": {"hard": 2}, "mean_value": 0.31, "resting": ["easy"]}]  # fmt: skip
    text = curriculum_table(logs, NAMES)
    assert "| 1 | 3 | 0 | 0 |  |  |" in text and "| 2 | 0 | 0 | 2 | 0.31 | easy |" in text


@pytest.fixture
def model():
    """A language model on loopback that answers with `said`."""
    heard = []

    class Handler(BaseHTTPRequestHandler):
        said = ""

        def do_POST(self):
            heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"choices": [{"message": {"content": self.said}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args): ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, Endpoint.Config(url=f"http://127.0.0.1:{server.server_port}/v1"), heard
    server.shutdown()
    server.server_close()


def test_a_language_model_proposes_and_what_it_makes_up_is_dropped(model):
    handler, endpoint, heard = model
    handler.said = "Try `hard`, `no such kind` and `middle`."
    past = record({"hard": [0, 0]})
    proposer = AskModel.Config(endpoint=endpoint, turns=1).build()
    assert proposer.families(past, 5, np.random.default_rng(0)) == ["hard", "middle", "hard", "middle", "hard"]
    assert "- `hard`" in heard[0]["messages"][0]["content"]
    handler.said = "I would rather not."
    with pytest.raises(ConfigError, match="named no known kind"):
        proposer.families(past, 5, np.random.default_rng(0))
