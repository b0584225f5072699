"""The curriculum: proposals from failures, admission by the critic's band, rest and quotas."""

import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

from terrella.core.errors import ConfigError, WorldError
from terrella.core.stats import auc
from terrella.data.attempts import Attempt, Choice, PracticeTask
from terrella.pipelines.webrl.curriculum import NO_START, Curriculum, CurriculumLog
from terrella.pipelines.webrl.curriculum_report import curriculum_table
from terrella.pipelines.webrl.metrics import critic_scores
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.webrl.proposers import AskModel, PracticeRecord, Vary
from terrella.policies.endpoint import Endpoint
from terrella.recipes import all_recipes

NAMES = ("easy", "middle", "hard")


def attempt(family, seed):
    task = PracticeTask(family=family, seed=seed)
    return Attempt(task=task, instruction="", choices=(), last="", success=True, stop="terminated")


def record(*phases):
    """Each phase: outcomes by family."""
    past = PracticeRecord(NAMES)
    for number, phase in enumerate(phases):
        pairs = [
            (attempt(name, 100 * number + n), won)
            for name, wins in phase.items()
            for n, won in enumerate(wins)
        ]
        past.add([played for played, _ in pairs], [won for _, won in pairs])
    return past


class ExpertRollout:
    """A rollout whose expert solves only the tasks of the given families, in two steps each."""

    def __init__(self, solved):
        self.solved = solved

    def play(self, sampler, tasks, *, split):
        choice = Choice(observation="", offered=("Up",), taken=0, logprob=0.0, steps_left=1)
        return [
            Attempt(
                task=task,
                instruction="",
                choices=(choice, choice),
                last="",
                success=task.family in self.solved,
                stop="terminated",
            )
            for task in tasks
        ]


def choose(values, past, count=30, solved=NAMES, **config):
    """Propose and admit; `values` is the critic's value by family, or None without a critic."""
    curriculum = Curriculum.Config(**config).build()
    proposals = curriculum.propose(past, count=count, rng=np.random.default_rng(0))
    known = None if values is None else [values[task.family] for task in proposals.tasks]
    chosen = curriculum.admit(proposals, known, past, ExpertRollout(solved), count=count)
    return chosen.tasks, chosen.log


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
    assert log.too_easy["easy"] + log.too_hard["hard"] + log.proposed["middle"] == 240
    assert log.outside_band == 0 and log.mean_value == pytest.approx(0.4)


def test_a_short_band_is_filled_with_what_is_nearest_to_it():
    past = record({"easy": [0], "middle": [0], "hard": [0]})
    tasks, log = choose({"easy": 0.76, "middle": 0.99, "hard": 0.0}, past, quota=1.0, tries=4)
    assert len(tasks) == 30 and log.outside_band == 30 and log.admitted["easy"] >= 25


def test_no_family_takes_more_than_its_quota_and_one_without_progress_rests():
    stuck = record({"hard": [0] * 9, "easy": [0, 1]}, {"hard": [0] * 9, "middle": [0, 1]})
    _, log = choose(dict.fromkeys(NAMES, 0.5), stuck, quota=0.5, rest_quota=0.1, tries=8)
    assert log.resting == ["hard"] and log.admitted["hard"] == 3
    assert max(log.admitted["easy"], log.admitted["middle"]) <= 15
    woken = record({"hard": [0] * 9}, {"hard": [0] * 8 + [1]})
    assert choose(dict.fromkeys(NAMES, 0.5), woken)[1].resting == []


def test_without_a_critic_all_are_admitted_and_nothing_is_tried_twice():
    past = record({"easy": [0]})
    tasks, log = choose(None, past)
    first = {task.name for task in tasks}
    assert len(first) == 30 and log.mean_value is None
    past.tried |= first
    again, log = choose(None, past)
    assert log.tried_before == 30 * 4 - 90 and not {task.name for task in again} & first


def test_a_task_that_cannot_be_reset_is_never_admitted():
    """However few others there are: its attempt would be masked."""
    past = record({"easy": [0], "middle": [0], "hard": [0]})
    values = {"easy": 0.9, "middle": NO_START, "hard": NO_START}
    tasks, log = choose(values, past, tries=1, quota=0.1)
    assert {task.family for task in tasks} == {"easy"} and len(tasks) < 30
    assert log.no_start == 30 - len(tasks) and log.admitted["middle"] == 0
    with pytest.raises(WorldError, match="cannot be reset to any of 30 proposed tasks"):
        choose(dict.fromkeys(NAMES, NO_START), past, tries=1)


def test_the_recipes_propose_more_than_they_admit():
    """With as many proposals as tasks the critic's band admits everything."""
    found = [
        config.practice.tries
        for config in (recipe() for recipe in all_recipes().values())
        if isinstance(config, WebRl.Config) and config.curriculum != "fixed"
    ]
    assert len(found) > 3 and min(found) > 1


def test_a_task_that_the_expert_cannot_solve_is_not_practised():
    past = record({"easy": [0], "middle": [0], "hard": [0]})
    values = dict.fromkeys(NAMES, 0.5)
    tasks, log = choose(values, past, solved=("easy", "middle"), check=True)
    assert {task.family for task in tasks} == {"easy", "middle"} and "hard" not in log.admitted
    assert log.infeasible == 30 - len(tasks) > 0 and log.checked_steps == 60


def test_what_the_judge_does_not_judge_is_neither_success_nor_failure():
    past = PracticeRecord(NAMES)
    past.add([attempt("easy", 1), attempt("easy", 2)], [None, 1.0])
    assert past.failed == [] and past.latest("easy") == 1.0 and len(past.tried) == 2


def test_the_table_shows_how_it_moved():
    counts = {name: {} for name in ("proposed", "too_easy", "too_hard")}
    zeros = dict.fromkeys(("tried_before", "outside_band", "infeasible", "checked_steps"), 0)
    logs = [
        CurriculumLog(**counts, **zeros, admitted=admitted, mean_value=value, resting=resting)
        for admitted, value, resting in (({"easy": 3}, None, []), ({"hard": 2}, 0.31, ["easy"]))
    ]
    text = curriculum_table(logs, NAMES)
    assert "| 1 | 3 | 0 | 0 |  |  |" in text and "| 2 | 0 | 0 | 2 | 0.31 | easy |" in text


@pytest.fixture
def model():
    """A language model on loopback that answers with `reply`."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        reply = ""

        def do_POST(self):
            requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps({"choices": [{"message": {"content": self.reply}}]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args): ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield Handler, Endpoint.Config(url=f"http://127.0.0.1:{server.server_port}/v1"), requests
    server.shutdown()
    server.server_close()


def test_a_language_model_proposes_and_what_it_makes_up_is_dropped(model):
    handler, endpoint, requests = model
    handler.reply = "Try `hard`, `no such kind` and `middle`."
    past = record({"hard": [0, 0]})
    proposer = AskModel.Config(endpoint=endpoint, turns=1).build()
    assert proposer.families(past, 5, np.random.default_rng(0)) == [
        "hard",
        "middle",
        "hard",
        "middle",
        "hard",
    ]
    assert "- `hard`" in requests[0]["messages"][0]["content"]
    handler.reply = "I would rather not."
    with pytest.raises(ConfigError, match="named no known family"):
        proposer.families(past, 5, np.random.default_rng(0))


def test_the_critic_is_compared_with_what_the_family_alone_would_say():
    """By hand: it ranks within each family, where the family's rate says nothing."""
    outcomes = [1.0, 0.0, 1.0, 0.0]
    values, rates = [0.9, 0.2, 0.4, 0.1], [0.7, 0.7, 0.3, 0.3]
    scores = critic_scores(values, rates, outcomes)
    assert (scores.n, scores.won, scores.auc, scores.family_auc) == (4, 2, 1.0, 0.5)
    assert scores.high == 1.0 and 0.2 < scores.low < 0.8, "four attempts prove little"
    assert auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75  # one of four pairs is the wrong way
    assert auc([1, 1], [0, 1]) == 0.5 and auc([0.3], [1]) is None
    many = critic_scores(values * 50, rates * 50, [1.0, 0.0, 0.0, 1.0] * 50)
    assert many.auc == 0.5 and 0.4 < many.low < 0.5 < many.high < 0.6
    alone = critic_scores([0.3], [0.5], [1.0])
    assert (alone.auc, alone.low, alone.family_auc) == (None, None, None)
