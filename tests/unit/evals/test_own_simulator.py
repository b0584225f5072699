"""The simulator of docs/video.md: policies of another robot can be ranked in a model of it."""

import re
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs the extra: pip install 'terrella[train]'")

from terrella.codecs.frames import FrameCodec
from terrella.core.types import Split
from terrella.engines.local.local_sampler import LocalSampler
from terrella.evals import video_policies
from terrella.evals.video_policies import EvaluatePolicies
from terrella.models.action_bins import ActionBins
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.video_lm import make_video_lm
from terrella.policies.basic import Expert, Random
from terrella.worlds import world_config

PAGE = (Path(__file__).parents[3] / "docs/video.md").read_text()


@pytest.fixture
def world(tmp_path, monkeypatch):
    """The page's module in the current folder, found by the name that `--against` takes."""
    (code,) = re.findall(r"```python\n# my_arm\.py\n(.*?)```", PAGE, re.S)
    (tmp_path / "my_arm.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return world_config("my_arm", ["size=16", "max_steps=6"])


def test_its_expert_succeeds_and_its_instances_are_split(world):
    examples = [
        video_policies.play_example(
            world.build(), Expert.Config().build(), seed=seed, split=Split.TRAIN
        )
        for seed in range(8)
    ]
    assert all(each.success[-1] for each in examples)
    assert examples[0].video.shape[1:] == (16, 16, 3) and examples[0].actions.shape[1] == 3
    assert not np.array_equal(examples[0].video[0], examples[1].video[0])


def test_all_policies_play_in_the_same_simulators(world):
    made = []

    def make():
        made.append(world.build())
        return made[-1]

    evaluation = EvaluatePolicies(EvaluatePolicies.Config(world=world, starts=3))
    successes = evaluation._play([Expert.Config().build(), Random.Config().build()], make)
    assert len(made) == 3 and successes[0].all() and not successes[1].all()


def test_policies_are_ranked_in_a_model_of_it(world, monkeypatch):
    tokenizer = FrameTokenizer(FrameTokenizerConfig(size=16, stride=8, width=8)).eval()
    bins = ActionBins.fit(np.random.default_rng(0).uniform(-1, 1, (100, 3)), 4)
    codec = FrameCodec(tokenizer, bins, window=2)
    net, *_ = make_video_lm(codec.vocabulary, width=32, layers=1, heads=2, positions=256, seed=0)
    monkeypatch.setattr(video_policies, "read_codec", lambda *_, **__: codec)
    monkeypatch.setattr(video_policies, "open_sampler", lambda *_, **__: LocalSampler(net.eval()))
    found = EvaluatePolicies(
        EvaluatePolicies.Config(
            world=world,
            train_episodes=8,
            ages=(0, 2),
            shares=(1.0,),
            classifier_steps=2,
            starts=3,
            depth=2,
        )
    ).run()
    names = [each["policy"] for each in found["policies"]]
    assert names == ["clone of 0 updates", "clone of 2 updates", "oldest, 1 random"]
    assert found["safe_horizon"] == 0 and len(found["drift"]) == 2
