"""An evaluation asks a run's model with the tokens that it was trained on, within its limits."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.manifests import write_manifest
from tests.support.page_world import Buttons
from tests.support.tiny_chat import chat_tokenizer

from terrella.cli.evaluate import evaluate
from terrella.codecs.choose import CodecConfig
from terrella.codecs.pages import PageCodecConfig
from terrella.codecs.web_prompt import WebCodecConfig
from terrella.core.config import dump
from terrella.core.episode import play
from terrella.core.errors import ConfigError
from terrella.core.tokens import Sampled, Task
from terrella.core.types import Situation, Split, Tree
from terrella.evals.agent_rows import AskedEpisode
from terrella.models.characters import character_tokenizer
from terrella.models.policy_input import PolicyInput
from terrella.pipelines.evaluate.agents import AgentEvaluation
from terrella.pipelines.evaluate.models import trained_role
from terrella.pipelines.evaluate.talk import agent_settings, prediction_settings, proposer_settings
from terrella.pipelines.evaluate.world_models import WorldModelEvaluation
from terrella.pipelines.rlvr import Rlvr
from terrella.pipelines.sft.pipeline import Sft
from terrella.pipelines.spa.pipeline import Spa
from terrella.pipelines.text_games.pipeline import TextGameModel
from terrella.pipelines.web import planning
from terrella.pipelines.web.agent import WebPolicy, action_example, success_steps
from terrella.pipelines.web.page_agent import SampledProposals
from terrella.pipelines.web.page_model import PageModel
from terrella.pipelines.web.page_steps import changes_of
from terrella.pipelines.web.planning import WebPlan
from terrella.pipelines.webrl.language_agent import LanguageAgentConfig
from terrella.pipelines.webrl.pipeline import WebRl
from terrella.pipelines.world_model import TrainWorldModel
from terrella.policies.basic import Expert
from terrella.policies.endpoint import Endpoint
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.verify.tree import parse
from terrella.worlds.bytesized32 import ByteSized32
from terrella.worlds.counter import Counter
from terrella.worlds.miniwob.env import legal


class Offering(Buttons):
    """Offers what the worlds of web pages offer."""

    def actions(self):
        return legal(parse(self._observe().text))


COUNTER, PAGES = Counter.Config(max_steps=6), Buttons.Config()
TASK = Task(seed=3, noise_seed=3000, split=Split.TEST)
LIMITS = {"turn_tokens": 37, "episode_tokens": 700, "max_turns": 3, "context_tokens": 900}
TEMPLATES = ["scratch", "chatml", "qwen3"]


def tokenizer_of(template):
    if template == "scratch":
        return character_tokenizer(("up", "down", "<answer>", "</answer>"))
    return chat_tokenizer(template)


class Asked:
    """A sampler that keeps what it is asked, and replies with given tokens in turn."""

    def __init__(self, *replies):
        self.replies, self.requests = replies, []

    async def sample(self, request):
        ids = self.replies[len(self.requests) % len(self.replies)]
        self.requests.append((request.prompt_ids, request.max_new_tokens, request.stop_ids))
        return Sampled(token_ids=ids, logprobs=(0.0,) * len(ids), stopped=True)

    def release(self, session):
        """Nothing is kept."""


def recorded(pipeline, folder):
    """A finished run of this pipeline, as its manifest describes it."""
    write_manifest(folder, dump(pipeline.config), {})
    return str(folder)


def served(evaluation, monkeypatch, tokenizer, sampler):
    """The evaluation, with this sampler in the place of the model's."""
    monkeypatch.setattr(type(evaluation), "sampler", lambda *_: Context((sampler, tokenizer)))
    monkeypatch.setattr(type(evaluation), "model_for", lambda *_: "unused")
    return evaluation


class Context:
    def __init__(self, value):
        self.value = value

    def __enter__(self):
        return self.value

    def __exit__(self, *_):
        return None


# --- agents ---------------------------------------------------------------------------------------


def agents():
    limits = LIMITS
    spa = {name: value for name, value in limits.items() if name != "context_tokens"}
    yield "rlvr", lambda: Rlvr(Rlvr.Config(world=COUNTER, thinking="off", max_actions=2, **limits))
    yield (
        "rlvr, rendered",
        lambda: Rlvr(Rlvr.Config(world=COUNTER, thinking="on", history="rendered", **limits)),
    )
    for form in ("worldmodel", "plain"):
        yield f"spa, {form}", lambda form=form: Spa(Spa.Config(world=COUNTER, form=form, **spa))
    steps = {"form": "steps", "thinking": "off", **spa}
    yield "spa, steps", lambda: Spa(Spa.Config(world=COUNTER, **steps))


def trained_rollout(pipeline, tokenizer):
    """The rollout in which the pipeline trains."""
    source = pipeline.validation_source if isinstance(pipeline, Rlvr) else pipeline.episode_source
    return source().make_rollout(tokenizer)


def evaluated(model, world, tokenizer, replies, monkeypatch):
    """What the model is asked in one evaluated episode."""
    sampler = Asked(*replies)
    worlds = {"it": world}
    settings = agent_settings(model, worlds)
    config = AgentEvaluation.Config(model=model, worlds=worlds, **settings)
    evaluation = served(AgentEvaluation(config), monkeypatch, tokenizer, sampler)
    with evaluation.player(None, world) as act:
        row = asyncio.run(act(AskedEpisode(instance="it", task=TASK, member=0)))
    return sampler.requests, row


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(("name", "make"), list(agents()))
def test_an_agent_is_asked_as_in_training(name, make, template, tmp_path, monkeypatch):
    tokenizer, pipeline = tokenizer_of(template), make()
    with trained_rollout(pipeline, tokenizer) as rollout:
        reply = rollout.codec.answer_action(["up"])
        training = Asked(reply)
        rollout.run(training, [TASK], group_size=1, seed=0)
    model = recorded(pipeline, tmp_path / "run")
    asked, row = evaluated(model, COUNTER, tokenizer, [reply], monkeypatch)
    assert asked == training.requests and len(asked) > 1
    if rollout.config.history != "sampled":
        assert row.usage.prompt_tokens == sum(len(prompt) for prompt, *_ in asked)


def test_an_agent_of_sft_is_asked_with_the_codec_of_its_rows(tmp_path, monkeypatch):
    tokenizer = chat_tokenizer("qwen3")
    pipeline = Sft(Sft.Config(data=tmp_path, world=COUNTER, learn="agent", max_actions=2))
    codec = pipeline._codec(tokenizer)
    assert codec.max_actions == 2 and not codec.thinks
    with Rollout(Rollout.Config(world=COUNTER, max_actions=2), codec) as rollout:
        training = Asked(codec.answer_action(["up"]))
        rollout.run(training, [TASK], group_size=1, seed=0)
    model = recorded(pipeline, tmp_path / "run")
    asked, _ = evaluated(model, COUNTER, tokenizer, training.replies, monkeypatch)
    assert [prompt for prompt, *_ in asked] == [prompt for prompt, *_ in training.requests][:6]


@pytest.mark.parametrize("template", TEMPLATES)
def test_a_web_agent_is_asked_about_the_page_and_the_actions_so_far(
    template, tmp_path, monkeypatch
):
    tokenizer = tokenizer_of(template)
    world = Offering.Config()
    pipeline = WebPolicy(WebPolicy.Config(world=world, train=tmp_path))
    episode = play(world.build(), Expert(Expert.Config()), seed=TASK.seed, split=Split.TEST)
    codec = PageCodecConfig(thinking="off").make(tokenizer)
    examples = [action_example(codec, *step) for step in success_steps(episode)]
    model = recorded(pipeline, tmp_path / "run")
    replies = [example.completion_ids for example in examples]
    asked, row = evaluated(model, world, tokenizer, replies, monkeypatch)
    assert [prompt for prompt, *_ in asked] == [example.prompt_ids for example in examples]
    assert row.won and row.well_formed == 2


@pytest.mark.parametrize("template", ["chatml", "qwen3"])
def test_an_agent_of_webrl_is_asked_in_its_own_language(template, tmp_path, monkeypatch):
    tokenizer = chat_tokenizer(template)
    asks = WebCodecConfig(form="compact", language="named", prompt_tokens=200)
    agent = LanguageAgentConfig(codec=asks, turn_tokens=21)
    pipeline = WebRl(WebRl.Config(model="smollm2", agent=agent, families={"buttons": PAGES}))
    codec = asks.make(tokenizer)
    rollout = Rollout.Config(world=PAGES, turn_tokens=21, max_turns=4, history="actions")
    with Rollout(rollout, codec) as training_rollout:
        training = Asked(codec.reply("click 2"))
        training_rollout.run(training, [TASK], group_size=1, seed=0)
    model = recorded(pipeline, tmp_path / "run")
    asked, row = evaluated(model, PAGES, tokenizer, training.replies, monkeypatch)
    assert asked == training.requests and len(asked) > 1
    assert row.replies[0].strip() == "click 2"


def asked_proposer(pipeline, situation, replies, tokenizer, folder):
    """What the planner asks a run's model for one situation, and what it proposes."""
    sampler = Asked(*replies)
    plan = WebPlan(WebPlan.Config(world=PAGES, proposer=recorded(pipeline, folder)))
    samplers = SimpleNamespace(open=lambda name: (sampler, name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planning, "load_tokenizer", lambda _: tokenizer)
        agent = plan._agent("proposer", samplers, None)
    (proposed,) = SampledProposals(agent, samples=len(replies)).propose([situation])
    return sampler.requests, proposed


@pytest.mark.parametrize("act", ["write", "score"])
def test_an_agent_of_webrl_proposes_as_it_played(act, tmp_path):
    """With the prompt of its practice, its past actions in its own language."""
    tokenizer = chat_tokenizer("chatml")
    asks = WebCodecConfig(form="chat", language="webrl")
    agent = LanguageAgentConfig(act=act, codec=asks, turn_tokens=21)
    settings = {"model": "smollm2", "agent": agent, "families": {"buttons": PAGES}}
    pipeline = WebRl(WebRl.Config(read_instruction=act == "score", **settings))
    codec = asks.make(tokenizer)
    episode = play(PAGES.build(), Expert(Expert.Config()), seed=TASK.seed, split=Split.TEST)
    first, second = episode.transitions
    situation = Situation(
        instruction="Do it.\nActions: click N, stop.",
        observation=second.observation,
        actions=("click 2", "click 3", "click 4", "stop"),
        history=(first,),
        steps_left=3,
    )
    reply = codec.reply(codec.written(second.action, second.observation.text))
    asked, proposed = asked_proposer(pipeline, situation, [reply], tokenizer, tmp_path / "run")
    assert proposed == [(second.action, 1.0)]
    text = second.observation.text
    if act == "score":
        text = f"{situation.instruction}\n{text}"
    shown = PolicyInput(
        text=text,
        past_actions=(f'do(action="Click", element="{first.action[-1]}")',),
        steps_left=3,
        instruction=situation.instruction,
    )
    assert asked == [(codec.prompt(shown), 21, codec.stop_ids)]


def test_a_run_that_was_never_asked_about_one_page_proposes_nothing(tmp_path):
    """Its replies would be unread, and the first offered action would be played in their place."""
    runs = {
        "Rlvr": Rlvr(Rlvr.Config(world=COUNTER)),
        "Sft": Sft(Sft.Config(data=tmp_path, world=COUNTER, learn="agent")),
        "PageModel": PageModel(PageModel.Config(world=PAGES, train=tmp_path, test=tmp_path)),
        "WebRl": WebRl(WebRl.Config(families={"buttons": PAGES})),
    }
    for name, pipeline in runs.items():
        model = recorded(pipeline, tmp_path / name)
        plan = WebPlan.Config(world=PAGES, proposer=model, out=tmp_path / "plan")
        with pytest.raises(ConfigError, match=f"is a run of {name}.*cannot propose"):
            WebPlan(plan).run(SilentProgress())
    assert not (tmp_path / "plan").exists()
    chats = recorded(Sft(Sft.Config(data=tmp_path)), tmp_path / "chats")
    assert proposer_settings(chats) == {} == proposer_settings("smollm2")


def test_a_web_policy_proposes_without_thoughts_whatever_the_value_does(tmp_path):
    pipeline = WebPolicy(WebPolicy.Config(world=PAGES, train=tmp_path))
    settings = proposer_settings(recorded(pipeline, tmp_path / "run"))
    assert settings == {"codec": PageCodecConfig(thinking="off")}


# --- world models ---------------------------------------------------------------------------------


def world_models(folder):
    games = ByteSized32.Config(focus="varying")
    rlvr = {"world": COUNTER, "ask": "observation", "turn_tokens": 37}
    return {
        "rlvr": Rlvr(Rlvr.Config(thinking="on", **rlvr)),
        "rlvr, auto": Rlvr(Rlvr.Config(**rlvr)),
        "train-world-model": TrainWorldModel(TrainWorldModel.Config(world=COUNTER)),
        "text games": TextGameModel(TextGameModel.Config(world=games, turn_tokens=37)),
        "sft": Sft(Sft.Config(data=folder, world=COUNTER, learn="world-model")),
    }


def trained_codec(pipeline):
    return CodecConfig(thinking=getattr(pipeline.config, "thinking", "auto"))


def predicted(model, world, tokenizer, reply, monkeypatch, **settings):
    """A task, what the model is asked about it, and what is read of the reply."""
    task = PredictionTasks(world, split=Split.TEST).episode(0)[0]
    sampler = Asked(reply(task))
    config = WorldModelEvaluation.Config(
        model=model, worlds={"it": world}, **{**prediction_settings(model), **settings}
    )
    evaluation = served(WorldModelEvaluation(config), monkeypatch, tokenizer, sampler)
    with evaluation.predictor(None) as predictor:
        answer = asyncio.run(predictor.predict(task.situation, task.transition.action))
    return task, sampler.requests[0], answer


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("name", ["rlvr", "rlvr, auto", "train-world-model", "text games", "sft"])
def test_a_world_model_is_asked_as_in_training(name, template, tmp_path, monkeypatch):
    tokenizer, pipeline = tokenizer_of(template), world_models(tmp_path)[name]
    model = recorded(pipeline, tmp_path / "run")
    assert trained_role(model) == "world-model"
    world = pipeline.config.world
    task, request, _ = predicted(model, world, tokenizer, lambda _: (0,), monkeypatch)
    codec = trained_codec(pipeline).make(tokenizer)
    prompt = codec.ask_observation(task.situation, task.transition.action)
    assert request[0] == prompt and request[2] == codec.stop_ids
    least = {"train-world-model": 128, "sft": 256}.get(name, 37)  # SFT on a store never thinks
    assert request[1] == least


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("form", ["changes", "sections"])
def test_a_page_model_is_asked_for_changes_and_predicts_the_page(
    form, template, tmp_path, monkeypatch
):
    """Its reply is no page: in imagination the next question is about the page that it leads to."""
    tokenizer = tokenizer_of(template)
    pipeline = PageModel(
        PageModel.Config(
            world=PAGES,
            train=tmp_path,
            test=tmp_path,
            form=form,
            prompt="terse",
            turn_tokens=61,
            context_tokens=2000,
        )
    )
    codec = pipeline.codec_config().make(tokenizer)
    model = recorded(pipeline, tmp_path / "run")

    def right(task):
        return codec.answer_observation(Tree(changes_of(task.transition, form)))

    task, request, answer = predicted(model, PAGES, tokenizer, right, monkeypatch)
    prompt = codec.ask_observation(task.situation, task.transition.action)
    assert request == (prompt, 61, codec.stop_ids)
    assert answer.observation == task.transition.next_observation and answer.text


def test_a_page_that_does_not_fit_is_shown_in_part_and_predicted_whole(tmp_path, monkeypatch):
    tokenizer = chat_tokenizer("chatml")
    config = PageModel.Config(world=PAGES, train=tmp_path, test=tmp_path, prompt="terse")
    pipeline = PageModel(config)
    codec = pipeline.codec_config().make(tokenizer)
    model = recorded(pipeline, tmp_path / "run")
    limits = {"turn_tokens": 20, "context_tokens": 165}

    def nothing(_):
        return codec.answer_observation(Tree("="))

    task, request, answer = predicted(model, PAGES, tokenizer, nothing, monkeypatch, **limits)
    whole = codec.ask_observation(task.situation, task.transition.action)
    assert len(request[0]) < 165 - 20 < len(whole)
    assert answer.observation == task.situation.observation


# --- what may be said, and by whom ----------------------------------------------------------------


def test_a_manifest_describes_and_decides_nothing(tmp_path):
    """Only numbers and known choices are taken from a folder that somebody else wrote."""
    config = dump(Rlvr.Config(world=COUNTER))
    config |= {"thinking": "loud", "history": ["x"], "form": {"class": "os:system"}}
    config |= {"turn_tokens": "9", "max_turns": True, "episode_tokens": 55}
    write_manifest(tmp_path, config, {})
    settings = agent_settings(str(tmp_path), {"counter": COUNTER})
    assert not {"thinking", "history", "form", "max_turns", "turn_tokens"} & set(settings)
    assert settings["episode_tokens"] == 55


def test_the_command_asks_as_trained_unless_told_otherwise(tmp_path, capsys, monkeypatch):
    pipeline = Rlvr(Rlvr.Config(world=COUNTER, thinking="off", history="rendered"))
    model = recorded(pipeline, tmp_path / "run")
    (tmp_path / "run" / "config.json").write_text("{}")
    monkeypatch.setattr("terrella.models.names.check_model_name", lambda *_: None)
    evaluate(model, ("counter",), dry_run=True)
    shown = capsys.readouterr().out
    assert '"thinking": "off"' in shown and '"history": "rendered"' in shown
    evaluate(model, ("counter",), dry_run=True, role="world-model", turn_tokens=50)
    assert '"turn_tokens": 50' in capsys.readouterr().out


def test_settings_of_prompts_that_are_written_here_are_refused_at_an_endpoint():
    endpoint = Endpoint.Config(url="http://127.0.0.1:9/v1", model="m")
    common = {"model": endpoint.url, "endpoint": endpoint, "worlds": {"counter": COUNTER}}
    with pytest.raises(ConfigError, match="history"):
        AgentEvaluation.Config(**common, history="actions")
    with pytest.raises(ConfigError, match="codec"):
        WorldModelEvaluation.Config(**common, codec=PageCodecConfig())
    with pytest.raises(ConfigError, match="codec"):
        AgentEvaluation.Config(**common, codec=PageCodecConfig(), form="plain")
