"""TextWorldExpress: folds are splits, the gold path wins, unknown actions are invalid."""

import shutil

import pytest

from terrella.core.episode import play
from terrella.core.errors import WorldError
from terrella.core.types import Split
from terrella.policies.basic import Expert
from terrella.worlds import textworld_express
from terrella.worlds.textworld_express import TextWorldExpress


class Corridor:
    """In place of the game: `go` leads to the next room."""

    def getValidSeedsTrain(self):  # noqa: N802  names of the game
        return list(range(20))

    getValidSeedsDev = getValidSeedsTest = getValidSeedsTrain  # noqa: N815

    def getGoldActionSequence(self):  # noqa: N802
        return ["go"]

    def reset(self, **settings):
        self.room = 0
        return "", self.seen()

    def step(self, action):
        self.room += 1
        return "", 0.0, False, self.seen()

    def seen(self):
        return {
            "observation": f"room {self.room}",
            "validActions": ["go"],
            "taskDescription": "Go.",
            "tasksuccess": False,
            "taskfailure": False,
        }

    def close(self):
        pass


def test_a_fork_has_as_many_steps_left_after_invalid_actions(monkeypatch):
    monkeypatch.setattr(textworld_express, "start", lambda config: Corridor())
    world = TextWorldExpress.Config(max_steps=5).build()
    world.reset(seed=0)
    for text in ("go", "nonsense", "nonsense"):
        world.step(text)
    fork = world.fork()
    assert fork.steps == 3
    assert [fork.step("go")[3] for _ in range(2)] == [False, True]
    with pytest.raises(WorldError, match="after the end"):
        fork.fork().step("go")


def test_the_gold_path_wins_in_every_fold_and_instances_differ():
    pytest.importorskip("textworld_express", reason="needs the extra: pip install 'terrella[text]'")
    if shutil.which("java") is None:
        pytest.skip("needs Java 17")
    world = TextWorldExpress.Config(seeds=20).build()
    episodes = {split: play(world, Expert.Config().build(), seed=1, split=split) for split in Split}
    assert all(episode.success for episode in episodes.values())
    assert len({episode.instance for episode in episodes.values()}) == 3
    world.reset(seed=0)
    assert not world.step("fly to the moon")[4]["valid"]
    world.close()
