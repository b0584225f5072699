"""The limits of an evaluation: those of the run's world, else room for a thought.

What they cut off is counted. A reply is judged alike here and at an endpoint.
"""

import asyncio
import json

import pytest

pytest.importorskip("transformers")
from tests.support.chat_server import ChatServer, completion
from tests.support.manifests import write_manifest
from tests.support.tiny_chat import chat_tokenizer

from terrella.cli.app import world_of
from terrella.cli.evaluate import evaluate
from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.pages import PageCodecConfig
from terrella.core.config import dump
from terrella.core.errors import ConfigError
from terrella.core.tokens import Sampled, Task
from terrella.core.types import Split
from terrella.evals.agent_rows import AskedEpisode, is_well_formed
from terrella.evals.endpoint_agent import EndpointAgent
from terrella.evals.predictions import TokenPredictor
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.evaluate.page_predictor import AskedPages, page_predictor
from terrella.pipelines.evaluate.world_models import WorldModelEvaluation
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.several_worlds import OtherWorld
from terrella.policies.chat_client import ChatReply
from terrella.policies.endpoint import Endpoint
from terrella.recipes.tiny import tiny_mixed
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.world_models.imagine_gate import GatedWorld
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake
from terrella.worlds.sokoban import Sokoban

COUNTER = Counter.Config(max_steps=6)
EPISODE = AskedEpisode(instance="it", task=Task(seed=3, split=Split.TEST), member=0)


# --- a run of several worlds ----------------------------------------------------------------------


@pytest.fixture
def mixed(tmp_path, monkeypatch):
    """A run of the recipe, as its manifest describes it."""
    monkeypatch.setattr("terrella.models.names.check_model_name", lambda *_: None)
    write_manifest(tmp_path / "run", dump(tiny_mixed()), {})
    (tmp_path / "run" / "config.json").write_text("{}")
    return str(tmp_path / "run")


def resolved(capsys, *words, **options):
    evaluate(*words, dry_run=True, **options)
    return json.loads(capsys.readouterr().out)


def test_each_world_of_a_run_has_its_own_config_and_limits(mixed, capsys):
    config = resolved(capsys, mixed, ("counter",))
    assert (config["worlds"]["counter"]["max_steps"], config["max_turns"]) == (8, 8)
    assert config["worlds"]["counter"]["goals"] == 10
    config = resolved(capsys, mixed, ("frozen_lake",))
    assert (config["worlds"]["frozen_lake"]["size"], config["max_turns"]) == (3, 5)


def test_worlds_with_other_limits_are_not_evaluated_together(mixed):
    with pytest.raises(ConfigError, match=r"counter: .*max_turns=8; frozen_lake: .*max_turns=5"):
        evaluate(mixed, ("counter", "frozen_lake"), dry_run=True)


def test_a_world_that_the_run_does_not_have_is_as_it_was_named(mixed, capsys):
    assert resolved(capsys, mixed, ("sokoban",))["worlds"]["sokoban"] == dump(Sokoban.Config())


def test_of_an_imagined_world_the_real_one_is_evaluated(tmp_path):
    real = FrozenLake.Config(size=3, max_steps=7)
    gated = GatedWorld.Config(world=real, max_steps=7)
    run = Rlvr.Config(world=COUNTER, others=(OtherWorld(world=gated, max_turns=7),))
    write_manifest(tmp_path / "others", dump(run), {})
    write_manifest(tmp_path / "first", dump(Rlvr.Config(world=gated)), {})
    for folder in ("others", "first"):
        assert world_of(tmp_path / folder, "frozen_lake") == real


# --- limits where nothing says them ---------------------------------------------------------------


class Once:
    """A sampler that keeps what it was allowed to write, and always writes the same."""

    def __init__(self, ids, *, stopped=True):
        self.ids, self.stopped, self.allowed = tuple(ids), stopped, []

    async def sample(self, request):
        self.allowed.append(request.max_new_tokens)
        return Sampled(token_ids=self.ids, logprobs=(0.0,) * len(self.ids), stopped=self.stopped)

    def release(self, session):
        """Nothing is kept."""


class Given:
    def __init__(self, *value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        return None


def sampled_here(evaluation, monkeypatch, tokenizer, sampler):
    monkeypatch.setattr(type(evaluation), "sampler", lambda *_: Given(sampler, tokenizer))
    monkeypatch.setattr(type(evaluation), "model_for", lambda *_: "unused")
    return evaluation


def played(settings, monkeypatch, template, ids, *, stopped=True):
    """The row of one episode, and what the model was allowed to write."""
    sampler = Once(ids, stopped=stopped)
    config = AgentEvaluation.Config(worlds={"it": COUNTER}, **{"model": "some/model"} | settings)
    evaluation = sampled_here(
        AgentEvaluation(config), monkeypatch, chat_tokenizer(template), sampler
    )
    with evaluation.player(None, COUNTER) as play:
        row = asyncio.run(play(EPISODE))
    return row, sampler.allowed


@pytest.mark.parametrize(
    ("template", "settings", "longest"),
    [
        ("qwen3", {}, 2048),
        ("r1", {}, 2048),
        ("qwen3", {"form": "worldmodel"}, 2048),
        ("qwen3", {"thinking": "off"}, 256),
        ("qwen3", {"turn_tokens": 99}, 99),
        ("chatml", {}, 256),
        ("chatml", {"thinking": "on"}, 2048),
        ("chatml", {"model": "tiny-1m"}, 32),
    ],
)
def test_a_model_that_thinks_has_room_for_its_thoughts(template, settings, longest, monkeypatch):
    _, allowed = played(settings, monkeypatch, template, [5] * 8)
    assert allowed[0] == longest


def test_an_episode_of_a_model_that_thinks_is_not_over_after_two_thoughts(monkeypatch):
    for thinking, turns in (("auto", 6), ("off", 3)):
        row, _ = played({"thinking": thinking}, monkeypatch, "qwen3", [5] * 2000, stopped=False)
        assert row.turns == turns and row.out_of_tokens == (turns == 3)


@pytest.mark.parametrize(("template", "longest"), [("qwen3", 2048), ("chatml", 256)])
def test_a_world_model_that_thinks_has_room_too(template, longest, monkeypatch):
    sampler, task = Once([5]), PredictionTasks(COUNTER, split=Split.TEST).episode(0)[0]
    config = WorldModelEvaluation.Config(model="some/model", worlds={"it": COUNTER})
    evaluation = sampled_here(
        WorldModelEvaluation(config), monkeypatch, chat_tokenizer(template), sampler
    )
    with evaluation.predictor(None) as predictor:
        asyncio.run(predictor.predict(task.situation, task.transition.action))
    assert sampler.allowed == [longest]


# --- what was cut off -----------------------------------------------------------------------------


def test_an_agent_that_is_cut_off_in_its_thought_is_seen_to_be(monkeypatch):
    row, _ = played({"turn_tokens": 9}, monkeypatch, "r1", [5] * 9, stopped=False)
    written = row.written
    assert row.turns == written.replies == written.truncated == written.truncated_thoughts == 6
    assert written.thought_tokens == 54 and row.well_formed == 0


@pytest.mark.parametrize("pages", [False, True])
def test_a_world_model_that_is_cut_off_in_its_thought_is_seen_to_be(pages):
    tokenizer, sampler = chat_tokenizer("r1"), Once([5] * 9, stopped=False)
    if pages:
        asked = AskedPages(codec=PageCodecConfig(), turn_tokens=9, context_tokens=4000)
        predictor = page_predictor(sampler, tokenizer, "unused", asked).inner
    else:
        predictor = TokenPredictor(sampler, ChatCodec(tokenizer), turn_tokens=9)
    task = PredictionTasks(COUNTER, split=Split.TEST).episode(0)[0]
    written = asyncio.run(predictor.predict(task.situation, task.transition.action)).written
    assert written.truncated == written.truncated_thoughts == 1 and written.thought_tokens == 9


def at_endpoint(url, cls=AgentEvaluation, **settings):
    endpoint = Endpoint.Config(url=url, model="m", retries=1)
    common = {"model": url, "endpoint": endpoint, "worlds": {"counter": COUNTER}}
    return cls.Config(**common, **settings)


@pytest.mark.parametrize("cls", [AgentEvaluation, WorldModelEvaluation])
def test_an_endpoint_that_is_cut_off_in_its_thought_is_seen_to_be(cls, tmp_path):
    usage = {
        "prompt_tokens": 50,
        "completion_tokens": 40,
        "completion_tokens_details": {"reasoning_tokens": 40},
    }
    with ChatServer(lambda *_: completion("", usage=usage, finish="length")) as server:
        config = at_endpoint(server.url, cls, instances=2, out=tmp_path / "run")
        scores = config.build().run(SilentProgress()).worlds["counter"]
        limits = {body["max_tokens"] for _, _, body in server.requests}
    written = scores.written
    assert written.truncated.mean == written.truncated_thoughts.mean == 1.0
    assert written.thought_tokens.mean == 40.0
    # An agent is asked for a thought there, a world model is not.
    assert limits == {2048 if cls is AgentEvaluation else 256}


# --- forms at an endpoint -------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["shown", "steps", "steps_predicted"])
def test_a_form_without_tags_is_refused_at_an_endpoint(form):
    with pytest.raises(ConfigError, match=f"{form} has no tags") as refused:
        at_endpoint("http://127.0.0.1:9/v1", form=form)
    assert "worldmodel" in refused.value.remedy
    assert at_endpoint("http://127.0.0.1:9/v1", form="worldmodel").form == "worldmodel"


class Says:
    """In the place of an endpoint: always the same reply."""

    def __init__(self, text):
        self.text = text

    async def chat(self, messages, seed):
        return ChatReply(text=self.text)


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("<answer>up</answer>", True),
        ("The final answer is: up", True),
        ('{"answer": "up"}', True),
        ("<think>so</think>The final answer is: up", True),
        ("up", False),
        ("<think>so", False),
    ],
)
def test_the_same_reply_is_well_formed_here_and_at_an_endpoint(text, whole):
    codec = ChatCodec(chat_tokenizer("chatml"))
    ids = (*codec.write(text), codec.stop_ids[0])
    limits = Rollout.Config(world=COUNTER, max_turns=1)
    with EndpointAgent(Says(text), limits, form=None) as agent:
        row = asyncio.run(agent.play(EPISODE, seed=0))
    assert bool(row.well_formed) == is_well_formed(codec, ids) == whole


def test_a_form_with_tags_wants_all_of_them_at_an_endpoint():
    limits = Rollout.Config(world=COUNTER, max_turns=1)
    states = "<observation>a</observation><prediction>b</prediction>"
    for text, whole in ((f"{states}<answer>up</answer>", 1), ("<answer>up</answer>", 0)):
        with EndpointAgent(Says(text), limits, form="worldmodel") as agent:
            assert asyncio.run(agent.play(EPISODE, seed=0)).well_formed == whole
