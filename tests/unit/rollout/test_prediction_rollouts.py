"""Many steps in a row.

Actions are forced between frames, prompts are read once, forced tokens teach nothing.
"""

import asyncio
import itertools

import pytest

torch = pytest.importorskip("torch")
import tests.support.quiet_trl  # noqa: F401
from tests.support.listed_shards import ListedShards
from tests.support.little_videos import film_episode, little_codec

from terrella.algos.episode_batch import Score, TokenCounts, turn_advantages
from terrella.core.errors import ConfigError
from terrella.core.judge import mean_verdict
from terrella.core.types import Status, Text, Verdict
from terrella.engines.configs import RlvrConfig
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.trl.packs import pack_episodes, token_logprobs
from terrella.engines.trl.rlvr_batch import (
    ScoredEpisode,
    scored_episodes,
    train_example,
)
from terrella.engines.trl.tree_attention import attention_of
from terrella.models.video_lm import make_video_lm
from terrella.pipelines.video.clips import ClipExamples, ClipTasks, clip_task, with_actions_of
from terrella.pipelines.video.pipeline import generated_frames
from terrella.rollout.rollout import Rollout
from terrella.verify.frame_metrics import repetition_rate
from terrella.verify.frames import FrameDistance
from terrella.worlds.counter import Counter

HORIZON = 4


def make_driver(codec, turns=HORIZON):
    limits = Rollout.Config(world=Counter.Config(), max_turns=turns, turn_tokens=codec.frame_tokens)
    rollout = Rollout(limits, codec)
    rollout.verifier = FrameDistance.Config().build()
    return rollout


def small_model(codec):
    return make_video_lm(codec.vocabulary, width=32, layers=1, heads=2, positions=128, seed=0)[0]


def play(group=3, tasks=2):
    codec = little_codec()
    model = small_model(codec)
    sampler = LocalSampler(model)
    questions = [clip_task(film_episode(number), 0, HORIZON, number) for number in range(tasks)]
    episodes = make_driver(codec).run(sampler, questions, group_size=group, seed=0)
    return codec, model, sampler, questions, episodes


def test_an_episode_alternates_written_frames_and_forced_actions():
    codec, _, _, questions, episodes = play()
    for episode in episodes:
        task = questions[int(episode.group.split("/")[0])]
        assert episode.model_mask == tuple(([True] * 2 + [False]) * (HORIZON - 1) + [True] * 2)
        forced = [
            t
            for t, mine in zip(episode.completion_ids, episode.model_mask, strict=True)
            if not mine
        ]
        assert forced == [codec.go_on(step.action)[0] for step in task.following]
        assert all(
            codec.first_frame <= t < codec.first_action
            for video in generated_frames(episode)
            for t in video
        )
        assert episode.turn_ends == (2, 5, 8, 11) and len(episode.turn_rewards) == HORIZON
        assert episode.outcome.value == pytest.approx(sum(episode.turn_rewards) / HORIZON)
        closeness = episode.outcome.parts["closeness"]
        assert episode.outcome.parts["mae"] == pytest.approx(2 * (1 - closeness))


def test_a_groups_prompt_is_read_once_and_the_cache_outlives_forced_actions():
    codec, _, sampler, questions, _ = play(group=5)
    prompt = len(codec.ask_observation(questions[0].situation, questions[0].transition.action))
    # Per member and later frame: the token that the model wrote last, and the forced action. Never
    # the prompt again.
    assert sampler.prefilled == 2 * prompt + 2 * 5 * (HORIZON - 1) * 2


def test_the_same_seed_gives_the_same_frames_and_the_truth_scores_one():
    codec, _, _, questions, first = play()
    assert [e.completion_ids for e in first] == [e.completion_ids for e in play()[-1]]
    steps = (questions[0].transition, *questions[0].following)
    truth = [
        codec.frame_ids(step.next_observation, questions[0].situation.observation) for step in steps
    ]

    class Knows:
        def __init__(self):
            self.told = iter(truth)

        async def sample(self, request):
            from terrella.core.tokens import Sampled

            return Sampled(token_ids=next(self.told), logprobs=(0.0, 0.0), stopped=False)

        def release(self, session):
            pass

    (episode,) = make_driver(codec).run(Knows(), questions[:1], group_size=1, seed=0)
    assert episode.outcome.value == 1.0 and repetition_rate([generated_frames(episode)]) in (
        0.0,
        1.0,
    )


def test_sampled_tokens_are_trained_tokens_and_forced_ones_have_no_gradient():
    _, model, _, _, episodes = play()
    rows = [
        train_example(ScoredEpisode(e, Score(1.0)), TokenCounts(1, 1), RlvrConfig(), longest=2)
        for e in episodes
    ]
    (pack,) = pack_episodes(rows, max_tokens=4096)
    written = [token for e in episodes for video in generated_frames(e) for token in video]
    assert pack.targets_M.tolist() == written
    logprobs, _ = token_logprobs(model, pack)
    sampled = [
        lp for e in episodes for lp, mine in zip(e.logprobs, e.model_mask, strict=True) if mine
    ]
    assert torch.allclose(logprobs, torch.tensor(sampled), atol=1e-4)
    forced = sum(not mine for e in episodes for mine in e.model_mask)
    assert len(pack.predictors_M) + forced == sum(len(e.completion_ids) for e in episodes)
    hidden = model.get_input_embeddings()(pack.ids_N).detach().requires_grad_()
    logits = model(
        inputs_embeds=hidden[None],
        position_ids=pack.positions_N[None],
        **pack.attention(attention_of(model)),
    ).logits[0]
    logits.retain_grad()
    torch.log_softmax(logits[pack.predictors_M], -1).gather(
        -1, pack.targets_M[:, None]
    ).sum().backward()
    silent = [
        place for place in range(len(pack.ids_N)) if place not in set(pack.predictors_M.tolist())
    ]
    assert (
        len(silent) >= forced and not logits.grad[silent].any()
    )  # what predicts a forced token is not pulled at all


def test_credit_by_turn_compares_a_frame_with_the_same_frame_of_its_siblings():
    *_, episodes = play(group=4, tasks=1)
    rewards = torch.tensor([[e.outcome.value for e in episodes]])
    turns = turn_advantages([e.turn_rewards for e in episodes], rewards, "grpo")
    assert sum(turn[2] for turn in turns) == pytest.approx(0.0, abs=1e-4)
    last = [e.turn_rewards[-1] for e in episodes]
    best = max(range(4), key=last.__getitem__)
    assert turns[best][-1] == max(turn[-1] for turn in turns)
    kept = scored_episodes(episodes, rewards, RlvrConfig(credit="turn"))
    columns = train_example(
        kept[0], TokenCounts(4, 32), RlvrConfig(credit="turn"), longest=2
    ).columns
    first, *_, last = kept[0].score.turns
    assert columns["advantage"][:2] == pytest.approx([first] * 2)
    assert columns["advantage"][-1] == pytest.approx(last)
    with pytest.raises(ConfigError, match="critic"):
        RlvrConfig(credit="turn", algorithm="ppo").check(processes=1)


def test_rows_to_fit_have_frames_as_targets_and_the_same_layout_as_questions():
    codec, episodes = little_codec(), [film_episode(n, frames=8) for n in range(3)]
    shards = ListedShards(episodes)
    rows = ClipExamples(shards, codec, horizon=HORIZON, count=20, seed=0)
    assert len(list(rows)) == len(rows) == 20  # a loop over drawn clips must end
    assert rows[3] == rows[3] and len(rows) == 20
    whole = next(row for row in rows if len(row.completion_ids) == 3 * HORIZON - 1)
    assert whole.mask == tuple(([True] * 2 + [False]) * (HORIZON - 1) + [True] * 2)
    assert whole.prompt_ids[0] == 1 and len(whole.prompt_ids) == 1 + 1 + 2 + 1
    with pytest.raises(ConfigError, match="no episode has 9 steps"):
        ClipTasks(shards, 9)


def test_ids_that_change_weigh_more_where_that_is_asked_for():
    codec, shards = little_codec(), ListedShards([film_episode(n, frames=8) for n in range(3)])
    settings = {"horizon": HORIZON, "count": 20, "seed": 0}
    plain = ClipExamples(shards, codec, **settings)
    weighted = ClipExamples(shards, codec, changed_weight=3.0, **settings)
    for row, same in zip(weighted, plain, strict=True):
        assert row.completion_ids == same.completion_ids and not same.columns
        frames = [row.prompt_ids[-3:-1]]  # two ids of a frame, one of an action
        for start in range(0, len(row.completion_ids), 3):
            frames.append(row.completion_ids[start : start + 2])
        for number, (old, new) in enumerate(itertools.pairwise(frames)):
            weights = row.columns["weight"][3 * number : 3 * number + 2]
            assert weights == tuple(1.0 if a == b else 3.0 for a, b in zip(old, new, strict=True))


def test_wrong_actions_keep_the_frames_and_change_what_is_forced():
    first, second = (clip_task(film_episode(n), 0, HORIZON, n) for n in (0, 5))
    wrong = with_actions_of(first, second)
    assert [s.action for s in wrong.following] == [s.action for s in second.following]
    assert [s.next_observation for s in wrong.following] == [
        s.next_observation for s in first.following
    ]


def test_too_few_turns_and_codecs_of_one_step_are_refused():
    codec = little_codec()
    task = clip_task(film_episode(), 0, HORIZON, 0)
    with pytest.raises(ConfigError, match="max_turns"):
        asyncio.run(
            make_driver(codec, turns=2).run_one(LocalSampler(small_model(codec)), task, 0, 0)
        )


def test_one_masked_frame_masks_the_clip():
    lost = Verdict.failed(Status.ERROR, "no weights")
    assert mean_verdict([Verdict.of(1.0), lost]).value is None
    assert mean_verdict([Verdict.of(1.0, mae=0.0), Verdict.of(0.5, mae=1.0, lpips=0.3)]).parts == {
        "mae": 0.5
    }
    verdict = (
        FrameDistance.Config().build().verify(Text("x"), film_episode().first, film_episode().first)
    )
    assert verdict.value == 0.0 and verdict.status is Status.UNPARSABLE


def test_no_clip_is_measured_twice():
    """An interval over copies of a clip would be too narrow."""
    shards = ListedShards([film_episode(number, frames=8 - number) for number in range(4)])
    clips = list(ClipTasks(shards, HORIZON).in_turn(96))
    whole = [each for each in shards.listed if len(each.transitions) >= HORIZON]
    assert [task.situation.observation for task in clips] == [
        each.transitions[(len(each.transitions) - HORIZON) // 2].observation for each in whole
    ]
    assert [task.seed for task in clips] == list(range(len(whole)))
    assert len(list(ClipTasks(shards, HORIZON).in_turn(2))) == 2
