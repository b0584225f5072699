"""Frame tokenizers on a GPU. To be seen: training, writing and reading all happen on the device."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tests.support.listed_shards import ListedShards

from terrella.data.recorded import Recording, recorded_episode
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.frames.tokenizer_trainer import TokenizerTrainer
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.frame_tokenizers import load_frame_tokenizer
from terrella.models.lpips import has_lpips
from terrella.show.progress import SilentProgress

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("kind", ["compressive", "per_frame"])
def test_a_tokenizer_trains_and_is_used_on_the_gpu(kind, tmp_path):
    rng = np.random.default_rng(0)
    films = [
        Recording(
            source="x",
            number=number,
            video=rng.integers(0, 255, (5, 64, 80, 3), np.uint8),
            actions=np.zeros((5, 2)),
        )
        for number in range(4)
    ]
    config = TokenizerTrainConfig(
        tokenizer=FrameTokenizerConfig(kind=kind, size=64, columns=80, width=16),
        steps=20,
        save_every=10,
        bf16=True,
        lpips=1.0 if has_lpips() else 0.0,
        adversarial=0.1,
        adversarial_after=5,
    )
    shards = ListedShards([recorded_episode(film) for film in films])
    trainer = TokenizerTrainer(config, shards, tmp_path / "tokenizer", seed=0)
    trained = trainer.train(SilentProgress())
    assert {weight.device.type for weight in trained.parameters()} == {"cuda"}
    loaded = load_frame_tokenizer(tmp_path / "tokenizer")
    assert loaded.background.device.type == "cuda"
    video = films[0].video
    _, ids = loaded.write(video, video[0])
    assert np.shape(ids) == (5, 20) and loaded.read(video[0], ids).shape == video.shape
