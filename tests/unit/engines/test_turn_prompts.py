"""Episodes whose turns have prompts of their own: rows of turns, advantages of episodes."""

import itertools
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("trl")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL
from tests.support.tiny_model import tiny_model
from tests.support.tiny_run import curve, tiny_rollout, tiny_trainer

from terrella.algos.advantages import group_advantages
from terrella.core.errors import ConfigError
from terrella.engines.configs import RlvrConfig
from terrella.engines.trl.metrics import MetricAccumulator
from terrella.engines.trl.rlvr_batch import (
    group_rewards,
    scored_episodes,
)


def trainer_of(out: Path, **changes: Any) -> Any:
    model, tokenizer = tiny_model()
    rollout = tiny_rollout(tokenizer, history="actions")
    return tiny_trainer(out, rollout=rollout, model=model, **changes)


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Any:
    trainer = trainer_of(tmp_path_factory.mktemp("turns"))
    episodes, rewards = trainer.schedule.play([0, 1, 2, 3])
    return trainer, episodes, rewards


def test_the_loss_sees_every_token_of_every_turn_once(played: Any):
    trainer, episodes, rewards = played
    assert all(len(each.turn_prompts) == len(each.turn_ends) > 1 for each in episodes)
    batch = trainer._prepare([scored_episodes(episodes, rewards, RlvrConfig(kl=0.1, group_size=4))])
    expected = []
    for episode in episodes:
        for prompt, start, end in zip(
            episode.turn_prompts, (0, *episode.turn_ends), episode.turn_ends, strict=False
        ):
            whole = [*prompt, *episode.completion_ids[start:end]]
            expected += [tuple(whole[:size]) for size in range(len(prompt) + 1, len(whole) + 1)]
    assert sorted(_read_before_targets(batch.packs)) == sorted(expected)
    sampled = torch.cat([pack.columns["sampled"] for pack in batch.packs]).tolist()
    assert sampled == pytest.approx([p for each in episodes for p in each.logprobs])


def _read_before_targets(packs: Any) -> list[tuple[int, ...]]:
    """For each target what the model reads before it, and the target."""
    found = []
    for pack in packs:
        segments, prefixes = pack.segments_N.tolist(), pack.prefixes_N.tolist()
        ids = pack.ids_N.tolist()
        for place, target in zip(pack.predictors_M.tolist(), pack.targets_M.tolist(), strict=True):
            readable = {segments[place], prefixes[place]}
            read = [ids[n] for n in range(place + 1) if segments[n] in readable]
            found.append((*read, target))
    return found


def test_advantages_and_weights_are_those_of_episodes(played: Any):
    trainer, episodes, _ = played
    rewards = group_rewards(episodes, trainer.rlvr)
    batch = trainer._prepare([scored_episodes(episodes, rewards, trainer.rlvr)])
    advantages = group_advantages(rewards, scale="std", baseline="mean").flatten().tolist()
    columns = {
        name: torch.cat([pack.columns[name] for pack in batch.packs])
        for name in ("advantage", "weight")
    }
    sizes = [len(episode.completion_ids) for episode in episodes]
    assert batch.lengths == sizes
    for mine, weight, expected in zip(
        columns["advantage"].split(sizes), columns["weight"].split(sizes), advantages, strict=True
    ):
        assert mine.tolist() == pytest.approx([expected] * len(mine), abs=1e-5)
        assert float(weight.sum()) == pytest.approx(1 / len(episodes))


def test_the_gradient_is_that_of_one_turn_at_a_time(played: Any):
    """Against a loop that is written independently of packs and rows."""
    trainer, episodes, rewards = played
    scored = scored_episodes(episodes, rewards, trainer.rlvr)
    batch = trainer._prepare([scored])
    trainer.totals = MetricAccumulator(trainer._metric_names(), largest=("mismatch/max",))
    model = trainer.policy
    model.zero_grad()
    trainer.train_on(trainer.model, batch.packs, trainer._pack_loss)
    actual = _gradient(model)
    model.zero_grad()
    total = torch.zeros(())
    for episode, score in scored:
        starts = itertools.pairwise((0, *episode.turn_ends))
        for prompt, (start, end) in zip(episode.turn_prompts, starts, strict=True):
            reply = episode.completion_ids[start:end]
            logits = model(input_ids=torch.tensor([[*prompt, *reply]])).logits[0]
            logprobs = torch.log_softmax(logits[len(prompt) - 1 : -1], -1)
            picked = logprobs.gather(-1, torch.tensor(reply)[:, None])
            share = len(scored) * len(episode.completion_ids)
            total = total - score.advantage * picked.sum() / share
    total.backward()
    expected = _gradient(model)
    assert expected.norm() > 0.01 and (actual - expected).abs().max() < 1e-5


def _gradient(model: Any) -> Any:
    return torch.cat([each.grad.flatten() for each in model.parameters()])


@pytest.mark.parametrize(
    "changes", [{}, {"algorithm": "ppo", "epochs": 2}, {"credit": "turn"}], ids=str
)
def test_sampler_and_trainer_agree_on_every_turn(changes: dict[str, Any], tmp_path: Path):
    trainer = trainer_of(tmp_path, steps=2, pack_tokens=40, **changes)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "mismatch/max" in row]
    assert rows and max(row["mismatch/max"] for row in rows) < 1e-4
    assert len(curve(trainer, "reward")) >= 1


@pytest.mark.parametrize("changes", [{"world_loss": 0.5}, {"algorithm": "rloo"}], ids=str)
def test_what_needs_one_sequence_is_refused(changes: dict[str, Any]):
    RlvrConfig(**changes).check_rollout(temperature=1.0, history="sampled")
    with pytest.raises(ConfigError, match="history"):
        RlvrConfig(**changes).check_rollout(temperature=1.0, history="actions")
