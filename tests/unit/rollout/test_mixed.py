"""Several worlds in one run."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.chat_templates import chat_tokenizer
from tests.support.scripted_sampler import ScriptedSampler

from terrella.core.config import dump, rebuild
from terrella.core.errors import ConfigError
from terrella.core.tokens import Task
from terrella.core.types import Split
from terrella.rollout.mixed import WorldShare, mixed_source
from terrella.rollout.rollout import Rollout
from terrella.rollout.source import EpisodeSource, WorldTasks
from terrella.worlds.counter import Counter
from terrella.worlds.frozen_lake import FrozenLake


def part(world, *, ask="action", **limits):
    return EpisodeSource(
        rollout=Rollout.Config(world=world, **limits), tasks=WorldTasks(world=world, ask=ask)
    )


def shares():
    return (
        WorldShare(name="lake", source=part(FrozenLake.Config(), max_turns=2)),
        WorldShare(name="counter", source=part(Counter.Config(), max_turns=4), share=2),
    )


def test_worlds_take_turns_by_their_shares():
    source = mixed_source(*shares())
    tasks = source.tasks.make()
    assert [tasks(index).world for index in range(6)] == ["lake", "counter", "counter"] * 2
    alone = shares()[1].source.tasks.make()
    mixed = [tasks(index) for index in (1, 2, 4, 5)]
    assert [task.seed for task in mixed] == [alone(index).seed for index in range(4)]
    held_out = source.on(Split.VALIDATION).tasks.make()
    assert held_out(0).split is held_out(1).split is Split.VALIDATION
    assert rebuild(dump(source)) == source


def test_each_task_is_played_in_its_world_within_its_limits():
    source = mixed_source(*shares())
    tasks = source.tasks.make()
    tokenizer = chat_tokenizer("chatml")
    with source.make_rollout(tokenizer) as rollout:
        ids = (*rollout.codec.answer_action(["up"]),)
        sampler = ScriptedSampler(lambda _: ids)
        episodes = rollout.run(sampler, [tasks(n) for n in range(6)], group_size=2, seed=0)
        assert rollout.env_steps == sum(len(each.record.transitions) for each in episodes)
        assert rollout.worlds == ("lake", "counter")
        with pytest.raises(ConfigError, match="sokoban"):
            rollout.run(sampler, [Task(seed=0, world="sokoban")], group_size=1, seed=0)
    assert len(sampler.sampled) == 12  # sessions of worlds with the same seeds are apart
    for episode in episodes:
        assert episode.record.world == {"lake": "frozen_lake", "counter": "counter"}[episode.world]
        assert len(episode.turn_ends) <= {"lake": 2, "counter": 4}[episode.world]
    assert source.rollout.max_turns == 4 == max(len(each.turn_ends) for each in episodes)


def test_metrics_are_reported_by_world():
    from terrella.engines.trl.rlvr_batch import episode_metrics

    class OneProcess:
        device = "cpu"

        def gather(self, values):
            return values

    source = mixed_source(*shares())
    tasks = source.tasks.make()
    with source.make_rollout(chat_tokenizer("chatml")) as rollout:
        ids = rollout.codec.answer_action(["up"])
        sampler = ScriptedSampler(lambda rng: ids if rng.random() < 0.5 else ids[-1:])
        played = rollout.run(sampler, [tasks(n) for n in range(9)], group_size=2, seed=0)
        worlds = rollout.worlds
    rewards = torch.tensor([each.outcome.value for each in played]).view(-1, 2)
    row = episode_metrics(played, rewards, OneProcess(), worlds)
    for world in worlds:
        mine = [each for each in played if each.world == world]
        replies = [reply for each in mine for reply in each.replies]
        errors = sum(not reply.readable for reply in replies) / len(replies)
        assert row[f"reply/format_errors/{world}"] == pytest.approx(errors) and errors > 0
        reward = sum(each.outcome.value for each in mine) / len(mine)
        assert row[f"reward/{world}"] == pytest.approx(reward)
    lake = [each for each in played if each.world == "lake"]
    row = episode_metrics(lake, rewards[: len(lake) // 2], OneProcess(), worlds)
    assert "reward/lake" in row and "reward/counter" not in row  # another process has them


def test_worlds_that_cannot_be_mixed_are_refused():
    first, second = shares()
    with pytest.raises(ConfigError, match="two or more"):
        mixed_source(first)
    with pytest.raises(ConfigError, match="two or more"):
        mixed_source(first, first)
    other = WorldShare(name="other", source=part(Counter.Config(), temperature=0.5))
    with pytest.raises(ConfigError, match="temperature"):
        mixed_source(first, other)
    assert second.share == 2
