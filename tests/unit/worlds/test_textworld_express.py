"""TextWorldExpress: folds are splits, the gold path wins, unknown actions are invalid."""

import shutil

import pytest

pytest.importorskip("textworld_express", reason="needs the extra: pip install 'terrella[text]'")
if shutil.which("java") is None:
    pytest.skip("needs Java 17", allow_module_level=True)

from terrella.core.episode import play
from terrella.core.types import Split
from terrella.policies.basic import Expert
from terrella.worlds.textworld_express import TextWorldExpress


def test_the_gold_path_wins_in_every_fold_and_instances_differ():
    world = TextWorldExpress.Config(seeds=20).build()
    episodes = {split: play(world, Expert.Config().build(), seed=1, split=split) for split in Split}
    assert all(episode.success for episode in episodes.values())
    assert len({episode.instance for episode in episodes.values()}) == 3
    world.reset(seed=0)
    assert not world.step("fly to the moon")[4]["valid"]
    world.close()
