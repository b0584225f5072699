"""The curve of RLVR as pipelines read it: masked batches, and groups that were really played."""

import math
from types import SimpleNamespace

import pytest

pytest.importorskip("trl", reason="needs the extra: pip install 'terrella[train]'")
import tests.support.quiet_trl  # noqa: F401  before anything else imports TRL

from terrella.core.metric import Metric
from terrella.core.run_folder import RunFolder
from terrella.engines.configs import RlvrConfig, SftConfig
from terrella.engines.interface import RlvrRun
from terrella.pipelines import base, rl_part
from terrella.pipelines.curve import groups_played, known_mean, step_values
from terrella.pipelines.rl_part import rl_finetune
from terrella.pipelines.world_model import TrainWorldModel
from terrella.rollout.tasks import PredictionTasks
from terrella.show.progress import SilentProgress
from terrella.worlds.counter import Counter

CURVE = [
    {"reward": None, "zero_variance": 1.0},
    {"loss": 0.1},  # a step that used the batch before it again
    {"reward": math.nan, "refilled": 3.0},
    {"reward": 0.5, "zero_variance": 0.5},
]


def test_a_masked_batch_has_no_reward_and_a_reused_one_is_not_counted_again():
    assert step_values(CURVE, "reward") == [None, None, 0.5]
    assert known_mean(step_values(CURVE, "zero_variance")) == 0.75
    assert known_mean([None]) is None
    assert groups_played(CURVE, 4) == 3 * 4 + 3


def test_a_run_with_a_masked_step_finishes(tmp_path, monkeypatch):
    engine = SimpleNamespace(rlvr=lambda *_, **__: RlvrRun(CURVE, 4))
    metric = SimpleNamespace(metric=Metric.of([1.0]))
    monkeypatch.setattr(rl_part, "validate", lambda *_, **__: metric)
    config = TrainWorldModel.Config(world=Counter.Config(), out=tmp_path / "run")
    for _ in range(2):  # the second start reads what the first wrote
        with RunFolder(config.out, config, progress=SilentProgress()) as run:
            found = rl_finetune(run, engine, tmp_path, None, RlvrConfig(), seed=0, evaluate_on=1)
            assert found.reward == [None, None, 0.5]
            run.finish(found)


def test_real_steps_are_those_of_the_tasks_that_were_asked(tmp_path, monkeypatch):
    asked, draw = [], PredictionTasks.__call__

    def counting(self, index):
        asked.append(str(self.split))
        return draw(self, index)

    monkeypatch.setattr(PredictionTasks, "__call__", counting)
    # It looks at a few tasks before the run, in worlds of states only: these cost nothing.
    monkeypatch.setattr(base, "check_turn_limits", lambda *_, **named: None)
    config = TrainWorldModel.Config(
        world=Counter.Config(max_steps=4),
        transitions=20,
        sft=SftConfig(),
        rlvr=RlvrConfig(steps=2, groups=2, group_size=2, epochs=2, refill=2),
        turn_tokens=16,
        evaluate_on=2,
        out=tmp_path / "run",
    )
    result = TrainWorldModel(config).run(SilentProgress())
    assert result.real_steps.rlvr == asked.count("train") * 4 > 2 * 4
