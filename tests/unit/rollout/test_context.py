"""What an agent sees at each turn: history, and the bound on the context."""

import dataclasses

import pytest

pytest.importorskip("transformers")
from tests.support.chat_templates import TEMPLATES, chat_tokenizer
from tests.support.scripted_sampler import ScriptedSampler

from terrella.codecs.chat_tokens import ChatCodec
from terrella.codecs.frames import FrameCodec
from terrella.core.episode import EpisodeRun
from terrella.core.errors import ConfigError
from terrella.core.types import Status, Stop
from terrella.rollout.rollout import Rollout
from terrella.rollout.tasks import AgentTasks, PredictionTasks
from terrella.worlds.counter import Counter

WORLD = Counter.Config(away=8)
TASK = AgentTasks()(0)


class Recording(ScriptedSampler):
    """Keeps the requests."""

    def __init__(self, reply):
        super().__init__(reply)
        self.requests = []

    async def sample(self, request):
        self.requests.append(request)
        return await super().sample(request)


def play(codec, *, turns=6, task=TASK, reply="<think>hm</think><answer> up </answer>", **limits):
    ids = (*codec.tokenizer.encode(reply, add_special_tokens=False), codec.stop_ids[0])
    sampler = Recording(lambda _: ids)
    config = Rollout.Config(world=WORLD, max_turns=turns, **limits)
    with Rollout(config, codec) as rollout:
        (episode,) = rollout.run(sampler, [task], group_size=1, seed=0)
    return episode, [request.prompt_ids for request in sampler.requests], sampler


@pytest.fixture
def codec():
    return ChatCodec(chat_tokenizer("chatml"), thinking="on")


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_turn_has_its_own_prompt_with_actions_but_without_pages(name):
    codec = ChatCodec(chat_tokenizer(name), thinking="on")
    episode, prompts, sampler = play(codec, turns=4, history="actions")
    assert episode.turn_prompts == tuple(prompts) and episode.prompt_ids == prompts[0]
    assert all(episode.model_mask)
    replies = [reply for each in sampler.sampled.values() for reply in each]
    assert episode.completion_ids == tuple(token for reply in replies for token in reply)
    for turn, prompt in enumerate(prompts):
        text = codec.tokenizer.decode(list(prompt))
        states = [step.observation.text for step in episode.record.transitions[: turn + 1]]
        assert states[-1] in text and not any(state in text for state in states[:-1])
        assert text.count("<answer> up </answer>") == turn
        assert "hm</think>" not in text  # earlier thoughts are left out
    # A recorded episode is enough to write the prompts again.
    history = episode.record.transitions[:3]
    assert codec.ask_turn(_situation_after(history), "actions") == prompts[3]


def _situation_after(history):
    run = EpisodeRun(WORLD.build(), seed=TASK.seed, noise_seed=TASK.noise_seed, split=TASK.split)
    for step in history:
        run.advance(step.action)
    return run.situation


def test_rendered_history_keeps_observations(codec):
    episode, prompts, _ = play(codec, turns=3, history="rendered")
    text = codec.tokenizer.decode(list(prompts[2]))
    assert all(step.observation.text in text for step in episode.record.transitions)


def test_the_oldest_turns_are_left_out_until_the_prompt_fits(codec):
    _, free, _ = play(codec, history="rendered", turn_tokens=64)
    bound = len(free[2]) + 64
    episode, prompts, sampler = play(
        codec, history="rendered", turn_tokens=64, context_tokens=bound
    )
    assert prompts[:3] == free[:3] and len(prompts) == len(free) == 6
    assert all(len(prompt) <= len(free[2]) for prompt in prompts)
    assert all(len(r.prompt_ids) + r.max_new_tokens <= bound for r in sampler.requests)
    newest = codec.tokenizer.decode(list(prompts[5]))
    steps = episode.record.transitions
    assert steps[4].observation.text in newest and steps[0].observation.text not in newest


def test_a_conversation_ends_where_the_context_does(codec):
    _, free, _ = play(codec)
    episode, prompts, sampler = play(codec, context_tokens=len(free[2]) + 10)
    assert prompts == free[:3] and episode.record.stop is Stop.OUT_OF_TOKENS
    assert sampler.requests[-1].max_new_tokens == 10
    assert not episode.turn_prompts and len(episode.sequences) == 1


@pytest.mark.parametrize("history", ["sampled", "actions"])
def test_a_first_prompt_that_does_not_fit_masks_the_episode(codec, history):
    episode, prompts, _ = play(codec, history=history, context_tokens=20)
    assert episode.outcome.status is Status.POLICY_ERROR and prompts == []
    assert "context_tokens is 20" in episode.outcome.evidence
    predicted, prompts, _ = play(codec, task=PredictionTasks(WORLD)(0), context_tokens=20)
    assert predicted.outcome.status is Status.POLICY_ERROR and prompts == []


def test_without_a_bound_nothing_changes(codec):
    episode, prompts, _ = play(codec)
    whole = episode.prompt_ids + episode.completion_ids
    assert all(whole[: len(prompt)] == prompt for prompt in prompts) and len(prompts) == 6
    bounded, _, _ = play(codec, context_tokens=100_000)
    assert dataclasses.replace(bounded) == episode


def test_a_codec_of_frames_cannot_render_history():
    codec = object.__new__(FrameCodec)
    with pytest.raises(ConfigError, match="history=sampled"):
        Rollout(Rollout.Config(world=WORLD, history="actions"), codec)
