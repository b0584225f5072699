"""`terrella evaluate URL WORLD`: a model behind a real HTTP server, as a person evaluates it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.support.chat_server import ChatServer, completion, counter_state

from terrella.commands.view import View
from terrella.core.errors import EngineError, StoreError
from terrella.core.run_folder import read_manifest
from terrella.data.row_journal import read_rows
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.evaluate.world_models import WorldModelEvaluation
from terrella.policies.endpoint import Endpoint
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

USAGE = {"prompt_tokens": 100, "completion_tokens": 20}
WORLD = Counter.Config(max_steps=12)


def skilled(body, _):
    """Wins with several actions a reply, and thinks beside it."""
    time.sleep(0.01)
    state = counter_state(body)
    gap = state["goal"] - state["value"]
    moves = " || ".join(["up" if gap > 0 else "down"] * min(3, abs(gap)))
    return completion(f"<answer>{moves}</answer>", usage=USAGE, reasoning_content="count")


def config(url, out, cls=AgentEvaluation, **changes):
    settings = {
        "model": url,
        "endpoint": Endpoint.Config(url=url, model="m", retries=2, backoff=0.01),
        "worlds": {"counter": WORLD},
        "instances": 6,
        "concurrency": 4,
        "out": out,
    }
    if cls is AgentEvaluation:
        settings |= {"samples": 4, "max_actions": 3}
    return cls.Config(**{**settings, **changes})


def run(settings):
    return settings.build().run(SilentProgress())


def rows(folder):
    return read_rows(folder / "rows" / "counter.jsonl.gz")


def test_a_skilled_model_wins_and_is_counted(tmp_path):
    with ChatServer(skilled) as server:
        result = run(config(server.url, tmp_path / "run", prompt_price=1.0, reply_price=2.0))
    scores = result.worlds["counter"]
    assert [metric.mean for metric in scores.passes.values()] == [1.0, 1.0, 1.0]
    assert scores.well_formed.mean == 1.0 and scores.masked == {}
    assert scores.reference.optimal == 1.0 and scores.reference.random["1"] < 1.0
    requests = len(server.requests)
    assert (
        requests == result.cost.usage.requests < sum(row["steps"] for row in rows(tmp_path / "run"))
    )
    assert result.cost.price == pytest.approx(requests * (100 * 1.0 + 20 * 2.0) / 1e6)
    assert 1 < server.most_at_once <= 4
    manifest = read_manifest(tmp_path / "run")
    assert manifest.metrics["model"] == {
        "kind": "endpoint",
        "name": "m",
        "url": server.url,
        "sha256": None,
    }
    assert rows(tmp_path / "run")[0]["reasoning"][0] == "count"


def test_the_model_sees_its_own_replies_and_the_state_after_all_actions(tmp_path):
    with ChatServer(skilled) as server:
        run(config(server.url, tmp_path / "run", samples=1))
    last = max((body["messages"] for _, _, body in server.requests), key=len)
    assert [message["role"] for message in last[:4]] == ["system", "user", "assistant", "user"]
    assert last[2]["content"].count("||") == 2  # the reply as it was, with all its actions
    first, second = (json.loads(last[n]["content"].splitlines()[1]) for n in (1, 3))
    assert abs(first["value"] - second["value"]) == 3
    assert "up to 3 actions" in last[0]["content"]


def test_an_episode_whose_requests_fail_is_masked_and_asked_again(tmp_path):
    broken, answered = True, []

    def sometimes(body, _):
        if broken and counter_state(body)["goal"] % 3 == 0 and len(body["messages"]) > 2:
            return 500, b"out of memory", {}
        answered.append(body)
        return skilled(body, 0)

    with ChatServer(sometimes) as server:
        settings = config(server.url, tmp_path / "run", instances=12)
        result = run(settings)
        scores = result.worlds["counter"]
        assert scores.masked["policy_error"] > 0 and "out of memory" in scores.masked_reason
        assert scores.passes["1"].mean == 1.0  # what was masked is no failure
        (tmp_path / "run" / "manifest.json").unlink()
        (tmp_path / "run" / "scores" / "counter.json").unlink()
        broken, asked = False, len(server.requests)
        again = run(settings)
    assert again.worlds["counter"].masked == {}
    assert again.cost.usage.requests == len(answered)  # first tries were paid for, too
    assert 0 < len(server.requests) - asked < asked / 2  # only the masked ones


def wandering(body, **changes):
    """Never wins: one step up, one step down."""
    move = "up" if len(body["messages"]) % 4 else "down"
    return completion(f"<answer>{move}</answer>", **changes)


def test_an_episode_that_outgrows_the_context_is_judged(tmp_path):
    def small_context(body, _):
        if len(body["messages"]) > 5:
            return 400, b'{"message": "This model\'s maximum context length is 64 tokens"}', {}
        return wandering(body)

    with ChatServer(small_context) as server:
        scores = run(config(server.url, tmp_path / "run")).worlds["counter"]
    assert scores.masked == {} and sum(scores.judged) == 24
    assert scores.turns.mean == 2.0


@pytest.mark.parametrize("reported", [True, False])
def test_the_limit_on_tokens_counts_those_of_the_world(tmp_path, reported):
    def respond(body, _):
        prompt = sum(len(message["content"]) for message in body["messages"]) // 4
        usage = {"prompt_tokens": prompt, "completion_tokens": 1} if reported else None
        return wandering(body, usage=usage)

    with ChatServer(respond) as server:
        long = run(config(server.url, tmp_path / "long")).worlds["counter"]
        short = run(config(server.url, tmp_path / "short", episode_tokens=50)).worlds["counter"]
    assert long.turns.mean == 12.0 and short.turns.mean < 6.0 and short.masked == {}


def test_a_refusal_is_a_reply_and_counts(tmp_path):
    with ChatServer(lambda *_: completion(None, refusal="I cannot play")) as server:
        result = run(config(server.url, tmp_path / "run", samples=1))
    scores = result.worlds["counter"]
    assert scores.masked == {} and scores.passes["1"].mean == scores.well_formed.mean == 0.0
    assert rows(tmp_path / "run")[0]["reasoning"][0] == "I cannot play"


def test_a_server_that_is_down_ends_the_command_and_the_same_command_goes_on(tmp_path):
    alive = False

    def respond(body, _):
        return skilled(body, 0) if alive else (503, b"starting", {})

    with ChatServer(respond) as server:
        settings = config(server.url, tmp_path / "run", instances=12)
        with pytest.raises(EngineError, match="starting"):
            run(settings)
        assert not (tmp_path / "run" / "manifest.json").exists()
        alive = True
        assert run(settings).worlds["counter"].passes["1"].mean == 1.0


def test_a_killed_evaluation_goes_on_and_leaves_the_same_rows(tmp_path):
    words = ("--model-name", "m", "--instances", "10", "--samples", "8", "--concurrency", "2")
    with ChatServer(skilled) as server:
        command = [sys.executable, "-m", "terrella.cli", "evaluate", server.url, "counter", *words]
        command += ["--set", "world.max_steps=12", "--max-actions", "3", "--out"]

        def start(out):
            quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            return subprocess.Popen([*command, out], cwd=tmp_path, **quiet)

        assert start("whole").wait() == 0
        in_all = len(server.requests)
        process, journal = start("killed"), tmp_path / "killed" / "rows" / "counter.rows"
        while process.poll() is None:
            time.sleep(0.005)
            if journal.exists() and journal.read_bytes().count(b"\n") >= 20:
                process.send_signal(signal.SIGKILL)
                process.wait()
        assert process.returncode == -signal.SIGKILL, "it finished before it was killed"
        assert start("killed").wait() == 0 and not journal.exists()
        # What was asked before the kill was not asked again, but for the episodes under way.
        assert len(server.requests) - in_all < in_all + 20
    first, second = (tmp_path / name / "rows/counter.jsonl.gz" for name in ("whole", "killed"))
    assert first.read_bytes() == second.read_bytes()
    scores = [read_manifest(tmp_path / name).metrics["worlds"] for name in ("whole", "killed")]
    assert scores[0] == scores[1]


class Breaks(Counter):
    """A world that fails in some of its instances."""

    def step(self, action):
        if self.state.goal % 3 == 0:
            raise KeyError("lost")
        return super().step(action)


def test_an_episode_whose_world_breaks_is_masked_and_stays_so(tmp_path):
    with ChatServer(skilled) as server:
        settings = config(
            server.url, tmp_path / "run", instances=12, worlds={"breaks": Breaks.Config()}
        )
        scores = run(settings).worlds["breaks"]
    assert scores.masked["env_error"] > 0 and "KeyError" in scores.masked_reason
    assert scores.passes["1"].mean == 1.0 and scores.passes["1"].masked > 0


def test_another_model_or_setting_is_refused_by_name(tmp_path):
    with ChatServer(skilled) as server:
        first = config(server.url, tmp_path / "run")
        run(first)
        with pytest.raises(StoreError, match="samples"):
            run(first.replace(samples=2))
        with pytest.raises(StoreError, match="model is 'm' there"):
            run(first.replace(endpoint=first.endpoint.replace(model="other")))
        asked = len(server.requests)
        run(first.replace(concurrency=1, endpoint=first.endpoint.replace(timeout=5.0)))
        assert len(server.requests) == asked


def test_no_manifest_decides_where_requests_go(tmp_path):
    """A folder's endpoint is a record. Nothing that loads a config takes the address from it."""
    from terrella.core.config import load
    from terrella.core.errors import ConfigError

    with ChatServer(skilled) as server:
        run(config(server.url, tmp_path / "run", instances=1))
    recorded = read_manifest(tmp_path / "run").config
    assert recorded["endpoint"]["url"] == server.url
    with pytest.raises(ConfigError):  # `model` is this machine's own, so it is missing
        load(recorded)


def predictor(share_right):
    def respond(body, count):
        text = body["messages"][-1]["content"]
        state, action = json.loads(text.splitlines()[1]), text.rpartition("Action: ")[2]
        state["value"] += {"up": 1, "down": -1}[action]
        if count % 10 >= share_right * 10:
            state["value"] += 5
        inside = json.dumps(state, sort_keys=True, separators=(",", ":"))
        return completion(f"<answer>\n{inside}\n</answer>", usage=USAGE)

    return respond


def test_a_chat_model_is_evaluated_as_a_world_model(tmp_path):
    with ChatServer(predictor(1.0)) as server:
        result = run(config(server.url, tmp_path / "run", WorldModelEvaluation, horizon=4))
    scores = result.worlds["counter"]
    assert scores.overall.model.mean == 1.0 and scores.changed.model.mean == 1.0
    assert scores.changed.no_change.mean == 0.0 and scores.unchanged is None
    assert [row.model.mean for row in scores.horizon] == [1.0] * 4
    assert scores.invalid.mean == 0.0 and 0 < scores.overall.steps <= 24
    assert server.requests[0][2]["temperature"] == 0.0


def test_wrong_and_unreadable_predictions_are_told_apart(tmp_path):
    def respond(body, count):
        return completion("who knows") if count % 2 else predictor(0.0)(body, count)

    with ChatServer(respond) as server:
        settings = config(server.url, tmp_path / "run", WorldModelEvaluation, concurrency=1)
        scores = run(settings).worlds["counter"]
    assert scores.overall.model.mean == 0.0 and 0.2 < scores.invalid.mean < 0.8
    # In imagination everything after an unreadable prediction is wrong, and is not asked for.
    assert all(row.model.mean == 0.0 for row in scores.horizon)


@pytest.mark.parametrize("form", ["{}", "```json\n{}\n```", "The final answer is: {}"])
def test_a_predicted_state_is_read_as_json_without_a_tag(tmp_path, form):
    """As of a model that is sampled here: the observation is a JSON object."""

    def respond(body, count):
        text = json.loads(predictor(1.0)(body, count)[1])["choices"][0]["message"]["content"]
        return completion(form.format(text.removeprefix("<answer>").removesuffix("</answer>")))

    with ChatServer(respond) as server:
        result = run(config(server.url, tmp_path / "run", WorldModelEvaluation, instances=2))
    scores = result.worlds["counter"]
    assert scores.overall.model.mean == 1.0 and scores.invalid.mean == 0.0


@pytest.mark.parametrize("finish", ["stop", "length"])
def test_a_reply_that_was_cut_off_neither_acts_nor_predicts(tmp_path, finish):
    def respond(body, count):
        said = json.loads((skilled if acts else predictor(1.0))(body, count)[1])
        text = said["choices"][0]["message"]["content"]
        return completion(f"I could try {text}, but maybe", finish=finish)

    whole = float(finish == "stop")
    with ChatServer(respond) as server:
        acts = True
        agent = run(config(server.url, tmp_path / "agent", instances=2)).worlds["counter"]
        acts = False
        model = run(config(server.url, tmp_path / "model", WorldModelEvaluation, instances=2))
    assert agent.passes["1"].mean == agent.well_formed.mean == agent.valid_actions.mean == whole
    scores = model.worlds["counter"]
    assert scores.overall.model.mean == whole and scores.invalid.mean == 1.0 - whole


def test_the_page_of_an_evaluation_has_its_episodes_with_replies_and_its_curve(tmp_path):
    with ChatServer(skilled) as server:
        run(config(server.url, tmp_path / "run"))
    data = View(View.Config(run=tmp_path / "run")).build_page().data()
    assert len(data["episodes"]) == 24 and data["curves"][0]["steps"] == [1, 2, 4]
    texts = data["episodes"][0]["tokens"]["texts"]
    assert "count" in texts[0] and texts[1].startswith("<answer>")  # the thought, then the reply
    about = dict(data["about"])
    assert about["m on counter: success (pass@1)"].startswith("1.000 [0.610, 1.000]")


def test_the_page_of_a_world_model_has_its_horizon(tmp_path):
    with ChatServer(predictor(1.0)) as server:
        run(config(server.url, tmp_path / "run", WorldModelEvaluation, horizon=4))
    data = View(View.Config(run=tmp_path / "run")).build_page().data()
    assert data["curves"] == [
        {"name": "accuracy by horizon on counter", "steps": [1, 2, 3, 4], "values": [1.0] * 4}
    ]


def test_the_command_ends_with_a_table_and_the_folder_can_be_shown(tmp_path):
    pytest.importorskip("matplotlib")
    wide = {**os.environ, "COLUMNS": "250", "MY_KEY": "sk-secret-of-mine"}

    def terrella(*words):
        command = [sys.executable, "-m", "terrella.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=wide)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    with ChatServer(skilled) as server:
        shown = terrella(
            *("evaluate", server.url, "counter", "--model-name", "m", "--key-variable", "MY_KEY"),
            *("--instances", "4", "--samples", "8", "--max-actions", "3", "--out", "run"),
            *("--set", "world.max_steps=12"),
        )
    assert "success (pass@1)" in shown and "pass@8" in shown and "random" in shown
    assert server.requests[0][1]["Authorization"] == "Bearer sk-secret-of-mine"
    for path in (tmp_path / "run").rglob("*"):
        assert path.is_dir() or b"sk-secret-of-mine" not in path.read_bytes(), path
    with ChatServer(lambda *_: completion("I give up")) as server:
        terrella(
            *("evaluate", server.url, "counter", "--model-name", "lazy", "--instances", "3"),
            *("--samples", "2", "--out", "lazy"),
        )
    terrella("report", "run", "lazy", "--out", "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "| success (pass@1) | 1.000 [0.510, 1.000] |" in report
    assert "| run minus lazy on counter | pass@1 | +1.000 | 3 |" in report
    assert (tmp_path / "report" / "pass_k.png").stat().st_size > 5000
    assert "view.html" in terrella("view", "run")
