"""Packing, prompt sharing and sessions change no result; PPO without its parts is REINFORCE."""

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import curve, tiny_trainer, weights

from terrella.algos.episode_batch import Score, TokenCounts
from terrella.engines.trl import packs
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.packs import pack_episodes, token_logprobs
from terrella.engines.trl.rlvr_batch import ScoredEpisode, train_example


def trained(out: Path, **changes: Any) -> tuple[Any, torch.Tensor]:
    model, _ = tiny_model()
    # Adam takes steps of full size even where a gradient is only rounding error: a small learning
    # rate keeps that below the tolerances.
    trainer = tiny_trainer(out, model=model, **{"steps": 3, "learning_rate": 2e-4, **changes})
    trainer.train()
    return trainer, weights(model)


@pytest.mark.parametrize("algorithm", ["grpo", "dr_grpo", "dapo", "rloo"])
def test_one_pack_of_eight_is_eight_packs_of_one(algorithm: str, tmp_path: Path):
    one, expected = trained(tmp_path, algorithm=algorithm, pack_tokens=100_000)
    many, actual = trained(tmp_path, algorithm=algorithm, pack_tokens=1, share_prefix=False)
    assert one.batch is not None and many.batch is not None
    assert len(one.batch.packs) == 1 and len(many.batch.packs) > 8
    assert (actual - expected).abs().max() < 1e-5
    assert curve(one, "reward") == curve(many, "reward")


def test_sharing_prompts_changes_no_result(tmp_path: Path, monkeypatch):
    # These prompts are too short for it.
    monkeypatch.setattr(packs, "sharing_pays", lambda group, width: True)
    shared, expected = trained(tmp_path, pack_tokens=100_000)
    plain, actual = trained(tmp_path, pack_tokens=100_000, share_prefix=False)
    assert (actual - expected).abs().max() < 1e-5
    assert curve(plain, "prefix_saved")[0] == (0.0,) and curve(shared, "prefix_saved")[0][0] > 0.1


def test_sampled_tokens_are_the_trained_tokens(tmp_path: Path):
    """Every model token of every episode that counts is a target, verbatim and in order."""
    trainer, _ = trained(tmp_path, kl=0.01, group_size=8, steps=1)
    episodes, _ = trainer.schedule.play([0, 1, 2, 3, 4, 5, 6, 7])
    batch = trainer._prepare([[ScoredEpisode(episode, Score(1.0)) for episode in episodes]])
    targets = torch.cat([pack.targets_M for pack in batch.packs]).tolist()
    sampled = torch.cat([pack.columns["sampled"] for pack in batch.packs]).tolist()
    written = []
    for episode in episodes:
        pairs = zip(episode.completion_ids, episode.logprobs, strict=True)
        written += itertools.compress(pairs, episode.model_mask)
    assert targets == [token for token, _ in written] and len(targets) > 500
    assert sampled == pytest.approx([logprob for _, logprob in written])
    assert sum(float(pack.columns["weight"].sum()) for pack in batch.packs) == pytest.approx(1.0)


def test_sampler_and_trainer_agree_on_every_log_probability(tmp_path: Path):
    trainer, _ = trained(tmp_path, steps=4, learning_rate=1e-2)
    assert max(row[0] for row in curve(trainer, "mismatch/max")) < 1e-4


def test_same_seed_same_run(tmp_path: Path):
    assert torch.equal(trained(tmp_path)[1], trained(tmp_path)[1])


@pytest.mark.parametrize("reward", ["outcome", "return"])
@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_ppo_without_discount_and_with_a_zero_critic_is_reinforce(
    reward: str, critic: str, tmp_path: Path
):
    """With lambda = gamma = 1 and values of zero, an advantage is the reward-to-go."""
    model, _ = tiny_model()
    trainer = tiny_trainer(
        tmp_path,
        model=model,
        algorithm="ppo",
        critic=critic,
        reward=reward,
        gamma=1.0,
        lam=1.0,
        value_coefficient=0.0,
        steps=1,
        max_grad_norm=0.0,
    )
    episodes, _ = trainer.schedule.play([0, 1, 2, 3])
    batch = trainer._prepare([[ScoredEpisode(episode, Score(0.0)) for episode in episodes]])
    trainer._freeze(batch)
    trainer.batch, trainer.totals = batch, _totals(trainer)
    model.zero_grad()
    trainer.train_on(trainer.model, batch.packs, trainer._pack_loss)
    actual = _gradient(model)
    model.zero_grad()
    _reinforce(model, episodes, reward).backward()
    expected = _gradient(model)
    assert expected.norm() > 0.1 and (actual - expected).abs().max() < 1e-5


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_the_entropy_bonus_adds_the_gradient_of_the_mean_entropy(algorithm: str, tmp_path: Path):
    """Also of episodes without an advantage; written independently of the engine."""
    gradients = {}
    for bonus in (0.0, 0.3):
        model, _ = tiny_model()
        trainer = tiny_trainer(
            tmp_path / str(bonus), model=model, algorithm=algorithm, entropy_bonus=bonus, steps=1
        )
        episodes, _ = trainer.schedule.play([0, 1, 2, 3])
        scores = [Score(float(number % 3 - 1)) for number in range(len(episodes))]
        batch = trainer._prepare([list(map(ScoredEpisode, episodes, scores))])
        trainer._freeze(batch)
        trainer.batch, trainer.totals = batch, _totals(trainer)
        model.zero_grad()
        trainer.train_on(trainer.model, batch.packs, trainer._pack_loss)
        gradients[bonus] = _gradient(model)
    model.zero_grad()
    (-0.3 * _mean_entropy(model, episodes, by_episode=algorithm == "grpo")).backward()
    expected = _gradient(model)
    assert expected.norm() > 1e-3
    assert (gradients[0.3] - gradients[0.0] - expected).abs().max() < 1e-5


def test_an_entropy_bonus_of_zero_changes_no_bit_and_another_one_does(tmp_path: Path):
    plain, same, other = (
        trained(tmp_path / str(number), **changes)[1]
        for number, changes in enumerate([{}, {"entropy_bonus": 0.0}, {"entropy_bonus": 0.01}])
    )
    assert torch.equal(plain, same) and not torch.equal(plain, other)


@pytest.mark.parametrize("critic", ["shared", "separate"])
def test_a_critic_may_have_its_own_learning_rate(critic: str, tmp_path: Path):
    """Adam's first step is as long as the learning rate wherever there is a gradient."""
    model, _ = tiny_model()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = tiny_trainer(
        tmp_path,
        model=model,
        algorithm="ppo",
        critic=critic,
        steps=1,
        learning_rate=1e-3,
        critic_learning_rate=1e-2,
    )
    trainer.train()
    moved = {
        name: float((p.detach() - before[name]).abs().max())
        for name, p in model.named_parameters()
        if name in before
    }
    assert max(moved.values()) == pytest.approx(1e-3, rel=1e-2)
    head = trainer.critic.weight  # it began at zero
    assert float(head.detach().abs().max()) == pytest.approx(1e-2, rel=1e-2)


def _mean_entropy(model: Any, episodes: Any, *, by_episode: bool) -> torch.Tensor:
    """The mean over the model's tokens; or of the means of episodes."""
    means, weights = [], []
    for episode in episodes:
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        scores = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        entropy = -(scores.exp() * scores).sum(-1)[len(episode.prompt_ids) - 1 : -1]
        own = entropy[torch.tensor(episode.model_mask)]
        means.append(own.mean())
        weights.append(1 if by_episode else len(own))
    shares = torch.tensor(weights) / sum(weights)
    return (torch.stack(means) * shares).sum()


def _totals(trainer: Any) -> MetricAccumulator:
    return MetricAccumulator(trainer._metric_names(), largest=("mismatch/max",))


def _gradient(model: Any) -> torch.Tensor:
    policy = [p for name, p in model.named_parameters() if not name.startswith("critic")]
    return torch.cat([parameter.grad.flatten() for parameter in policy])


def _reinforce(model: Any, episodes: Any, reward: str) -> torch.Tensor:
    """Written independently of the engine: one episode at a time, rewards-to-go turn by turn."""
    total, count = torch.zeros(()), 0
    for episode in episodes:
        ids = torch.tensor([[*episode.prompt_ids, *episode.completion_ids]])
        scores = torch.log_softmax(model(input_ids=ids).logits[0], -1)
        last = [0.0] * (len(episode.turn_ends) - 1) + [episode.outcome.value]
        turns = episode.turn_rewards if reward == "return" else last
        for index, (token, by_model) in enumerate(
            zip(episode.completion_ids, episode.model_mask, strict=True)
        ):
            if by_model:
                to_go = sum(
                    r for r, end in zip(turns, episode.turn_ends, strict=True) if end > index
                )
                total = total - scores[len(episode.prompt_ids) + index - 1, token] * to_go
                count += 1
    return total / count


def test_changing_a_world_token_as_a_target_changes_no_loss(tmp_path: Path):
    """World tokens are context only, never targets."""
    trainer, _ = trained(tmp_path, steps=1)
    (episode, *_), _ = trainer.schedule.play([0])
    example = train_example(
        ScoredEpisode(episode, Score(1.0)), TokenCounts(1, 1), trainer.rlvr, longest=4
    )
    (pack,) = pack_episodes([example], max_tokens=10_000)
    assert len(pack.targets_M) == sum(episode.model_mask) < len(episode.completion_ids)
    world = {index for index, by_model in enumerate(episode.model_mask) if not by_model}
    start = len(episode.prompt_ids)
    assert not world & {int(index) + 1 - start for index in pack.predictors_M}
    with torch.no_grad():
        logprobs, _ = token_logprobs(trainer.policy, pack)
    assert len(logprobs) == sum(episode.model_mask)
