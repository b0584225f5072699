"""A world that cannot be reset masks its attempt and says why."""

from terrella.core.errors import WorldError
from terrella.core.types import Split
from terrella.data.attempts import PracticeTask
from terrella.rollout.batch_rollout import BatchRollout, expert_actions
from terrella.worlds.counter import Counter
from terrella.worlds.sokoban import Sokoban


class Closed(Counter):
    """Cannot be reset with an odd seed."""

    def reset(self, *, seed=None, options=None):
        if seed % 2:
            raise WorldError("browser", "libnss3.so is missing")
        return super().reset(seed=seed, options=options)


def test_a_world_that_cannot_be_reset_leaves_a_warning_with_its_message(caplog):
    tasks = [PracticeTask(family="count", seed=seed) for seed in (2, 3)]
    with BatchRollout({"count": Closed.Config()}) as rollout:
        played, masked = rollout.play(expert_actions, tasks, split=Split.TRAIN)
    assert played.success is not None and masked.success is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "the world closed cannot be reset: WorldError" in record.getMessage()
    assert "libnss3.so is missing" in record.getMessage()


def test_seeds_of_distinct_instances_are_found_and_no_more_than_there_are():
    families = {"few": Counter.Config(goals=5), "many": Sokoban.Config(longest=7, max_steps=6)}
    with BatchRollout(families) as rollout:
        for family, enough in (("few", False), ("many", True)):
            seeds = rollout.distinct_seeds(family, 40, Split.TEST)
            assert (len(seeds) == 40) is enough
            tasks = [PracticeTask(family=family, seed=seed) for seed in seeds]
            played = rollout.play(expert_actions, tasks, split=Split.TEST)
            assert len({attempt.name for attempt in played}) == len(seeds)
