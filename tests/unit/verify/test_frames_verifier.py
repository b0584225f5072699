"""Verdicts on frames: the truth scores 1, no change 0, and no eraser, blur or ghost earns."""

import tracemalloc

import numpy as np
import pytest

from terrella.core.types import Frames, Status, Text
from terrella.verify.attacks_frames import DAMAGES, FRAME_ATTACKS
from terrella.verify.frame_metrics import frame_metrics, repetition_rate, ssim
from terrella.verify.frames import FrameDistance


def image(seed=0, size=32):
    x, y = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size))
    base = np.stack([x, y, (x + y) / 2], -1) * 200
    base[8:16, 4 + seed : 12 + seed] = (220, 30, 30)
    return Frames.of(base.astype(np.uint8)[None])


def test_the_truth_scores_one_no_change_zero_and_a_closer_image_scores_more():
    verifier = FrameDistance.Config(metrics=True).build()
    truth, near, far, before = image(9), image(8), image(6), image(0)
    scores = [verifier.verify(reply, truth, before).value for reply in (truth, near, far, before)]
    assert scores[0] == 1.0 > scores[1] > scores[2] > scores[3] == 0.0
    parts = verifier.verify(near, truth, before).parts
    assert parts["psnr"] == pytest.approx(-10 * np.log10(parts["mse"]))
    assert parts["closeness"] == pytest.approx(1 - parts["mae"] / 2)


def test_attacks_score_no_more_than_no_change_and_damage_is_noticed():
    verifier, rng = FrameDistance.Config().build(), np.random.default_rng(0)
    before, truth = image(0), image(3)
    assert len(FRAME_ATTACKS) >= 40
    for name, attack in FRAME_ATTACKS.items():
        assert verifier.verify(attack(before, truth), truth, before).value == 0.0, name
    assert (
        verifier.verify(FRAME_ATTACKS["the truth twice"](before, truth), truth, before).status
        is Status.UNPARSABLE
    )
    assert all(verifier.verify(damage(truth, rng), truth, before).value < 1.0 for damage in DAMAGES)


def scene(*corners, ground=40, width=6, size=32):
    """Bright squares on a dark ground, by their left corners."""
    array = np.full((1, size, size, 3), ground, np.uint8)
    for left in corners:
        array[:, 10 : 10 + width, left : left + width] = (230, 200, 210)
    return Frames.of(array)


@pytest.mark.parametrize("step", [2, 4, 6, 12])
def test_an_eraser_does_not_beat_no_change_however_far_the_object_moves(step):
    """Under MAE the empty ground beat no change in 39 of 40 cases."""
    verifier, before, truth = FrameDistance.Config().build(), scene(8), scene(8 + step)
    assert verifier.verify(scene(), truth, before).value == 0.0
    closeness = [
        verifier.verify(reply, truth, before).parts["closeness"] for reply in (scene(), before)
    ]
    assert step < 6 or closeness[0] > closeness[1]  # the old reward
    both = verifier.verify(scene(8, 8 + step), truth, before).value
    almost = verifier.verify(scene(9 + step), truth, before).value
    assert both < 0.1 and 0.0 < almost < 1.0


def test_an_object_that_only_leaves_or_only_comes_is_scored_by_that_alone():
    verifier = FrameDistance.Config().build()
    gone, there = scene(), scene(12)
    assert verifier.verify(gone, gone, there).value == 1.0
    faded = Frames.of((gone.array * 0.9 + there.array * 0.1).astype(np.uint8))
    assert 0.5 < verifier.verify(faded, gone, there).value < 1.0
    assert verifier.verify(scene(13), there, gone).value > 0.5
    assert verifier.verify(gone, there, gone).value == 0.0


def test_where_nothing_changes_what_nobody_sees_costs_nothing():
    verifier, still = FrameDistance.Config().build(), scene(8)
    dust = Frames.of(still.array + np.uint8(2))
    assert verifier.verify(still, still, still).value == 1.0
    assert verifier.verify(dust, still, still).value == pytest.approx(0.99)
    moved = verifier.verify(scene(12), still, still).value
    assert moved < verifier.verify(dust, still, still).value
    # A change below what can be seen is none: nothing scores more than staying still.
    assert verifier.verify(still, dust, still).value == pytest.approx(0.99)


def test_a_clip_is_compared_with_the_frame_that_was_seen_last():
    verifier = FrameDistance.Config().build()
    truth = Frames.of(np.concatenate([scene(10).array, scene(14).array]))
    frozen = Frames.of(np.concatenate([scene(8).array] * 2))
    assert verifier.verify(frozen, truth, scene(8)).value == 0.0
    first = Frames.of(np.concatenate([scene(10).array, scene(8).array]))
    assert verifier.verify(first, truth, scene(8)).value == pytest.approx(0.5)


def test_many_at_once_is_the_same_as_one_by_one():
    verifier = FrameDistance.Config().build()
    replies, truths, befores = [image(k) for k in range(4)], [image(2)] * 4, [image(9)] * 4
    assert verifier.verify_many([*replies[:3], None], truths, befores)[:3] == [
        verifier.verify(reply, truth, image(9))
        for reply, truth in zip(replies[:3], truths, strict=False)
    ]
    assert verifier.verify_many([None], truths[:1], befores[:1])[0].value == 0.0


def naive_ssim(first, second):
    """The definition: means, variances and covariance in 11 x 11 Gaussian windows, sigma 1.5."""
    offset = np.arange(-5, 6)
    window = np.exp(-(offset[:, None] ** 2 + offset[None] ** 2) / 4.5)
    window /= window.sum()
    values = []
    for a, b in zip(first, second, strict=True):
        per_window = []
        for y in range(a.shape[0] - 10):
            for x in range(a.shape[1] - 10):
                for channel in range(a.shape[2]):
                    p, q = (frame[y : y + 11, x : x + 11, channel] for frame in (a, b))
                    mean_p, mean_q = (window * p).sum(), (window * q).sum()
                    var_p, var_q = (
                        (window * (p - mean_p) ** 2).sum(),
                        (window * (q - mean_q) ** 2).sum(),
                    )
                    covariance = (window * (p - mean_p) * (q - mean_q)).sum()
                    per_window.append(
                        (2 * mean_p * mean_q + 1e-4)
                        * (2 * covariance + 9e-4)
                        / (mean_p**2 + mean_q**2 + 1e-4)
                        / (var_p + var_q + 9e-4)
                    )
        values.append(np.mean(per_window))
    return values


def test_ssim_is_its_definition_in_every_window_that_fits():
    rng = np.random.default_rng(3)
    first = rng.random((2, 13, 12, 2)) * 0.3
    second = np.clip(first + rng.normal(0, 0.05, first.shape), 0, 1)
    second[1] = rng.random((13, 12, 2))
    assert ssim(first, second) == pytest.approx(naive_ssim(first, second))
    assert frame_metrics(first, second)["ssim"] == pytest.approx(np.mean(naive_ssim(first, second)))


def test_mse_and_psnr_are_means_over_frames():
    real = np.full((2, 11, 11, 1), 0.3)
    predicted = real + np.array([0.1, 0.01]).reshape(2, 1, 1, 1)
    metrics = frame_metrics(predicted, real)
    # squared errors 1e-2 and 1e-4: 20 and 40 dB
    assert metrics["mse"] == pytest.approx((1e-2 + 1e-4) / 2) and metrics["psnr"] == pytest.approx(
        30.0
    )
    assert frame_metrics(real, real)["psnr"] == 100.0


def flat(*values):
    """A video with one frame of constant grey for each value."""
    return Frames.of(np.array(values, np.uint8).reshape(-1, 1, 1, 1))


def test_closeness_is_one_minus_half_the_distance_and_never_below_zero():
    plain = FrameDistance.Config().build()
    parts = plain.verify(flat(51, 102), flat(0, 0), flat(0, 0)).parts
    assert parts == pytest.approx({"mae": 0.3, "closeness": 1 - 0.3 / 2})
    assert plain.verify(flat(255), flat(0), flat(0)).parts["closeness"] == pytest.approx(0.5)
    heavy = FrameDistance.Config(mae_weight=4.0).build()
    assert heavy.verify(flat(51), flat(0), flat(0)).parts["closeness"] == pytest.approx(1 - 0.8 / 2)
    assert heavy.verify(flat(255), flat(0), flat(0)).parts["closeness"] == 0.0


def test_the_perceptual_distance_is_a_weighted_mean_over_the_frames_of_a_video(monkeypatch):
    lpips = pytest.importorskip("terrella.models.lpips")
    monkeypatch.setattr(lpips, "lpips", lambda a, b: np.abs(a - b).mean(axis=(1, 2, 3)) * 2)
    verifier = FrameDistance.Config(
        perceptual="lpips", mae_weight=0.5, perceptual_weight=0.25
    ).build()
    videos = [flat(51), flat(0, 102), flat(255, 0, 0)]
    truths = [flat(0), flat(0, 0), flat(0, 0, 0), flat(0)]
    verdicts = verifier.verify_many([*videos, None], truths, truths)
    assert [verdict.parts["lpips"] for verdict in verdicts[:3]] == pytest.approx([0.4, 0.4, 2 / 3])
    assert [verdict.parts["mae"] for verdict in verdicts[:3]] == pytest.approx([0.2, 0.2, 1 / 3])
    assert [verdict.parts["closeness"] for verdict in verdicts[:3]] == pytest.approx(
        [0.9, 0.9, 1 - (1 / 6 + 1 / 6) / 2]
    )
    assert verdicts[3].status is Status.UNPARSABLE and verdicts[3].value == 0.0


def test_the_value_is_the_product_of_both_gains_over_no_change(monkeypatch):
    lpips = pytest.importorskip("terrella.models.lpips")
    monkeypatch.setattr(lpips, "lpips", lambda a, b: np.abs(a - b).mean(axis=(1, 2, 3)) * 2)
    plain = FrameDistance.Config().build()
    perceptual = FrameDistance.Config(perceptual="lpips").build()
    before, truth, near = image(0), image(9), image(8)
    assert perceptual.verify(truth, truth, before).value == 1.0
    assert perceptual.verify(before, truth, before).value == 0.0
    gain = plain.verify(near, truth, before).value
    still, seen = (plain.verify(x, truth, before).parts["mae"] for x in (before, near))
    expected = gain * (1 + max(0.0, 1 - seen / still)) / 2
    assert perceptual.verify(near, truth, before).value == pytest.approx(expected)


def test_no_change_is_measured_once_for_a_group_and_its_frames_are_not_kept(monkeypatch):
    lpips = pytest.importorskip("terrella.models.lpips")
    measured = []
    monkeypatch.setattr(lpips, "lpips", lambda a, b: measured.append(a) or np.ones(len(a)))
    verifier = FrameDistance.Config(perceptual="lpips").build()
    tracemalloc.start()
    for number in range(12):  # 1.5 MB a frame, as numbers
        before, truth, near = (image(number, size=256) for number in (30, number, number + 1))
        verifier.verify_many([near, near], [truth, truth], [before, before])
    assert len(measured) == 12 * 2  # both replies in one batch, and no change once
    measured.clear()
    assert tracemalloc.get_traced_memory()[0] < 2e6
    tracemalloc.stop()


def test_only_the_configured_metrics_are_computed():
    truth = image()
    assert set(FrameDistance.Config().build().verify(truth, truth, truth).parts) == {
        "mae",
        "closeness",
    }
    parts = FrameDistance.Config(metrics=True).build().verify(image(2), truth, truth).parts
    assert set(parts) == {"mae", "mse", "psnr", "ssim", "closeness"} and parts["ssim"] < 1.0


@pytest.mark.parametrize("reply", [flat(0, 0), Text("0"), None])
def test_a_reply_that_is_not_frames_of_the_same_shape_is_unparsable(reply):
    (verdict,) = FrameDistance.Config().build().verify_many([reply], [flat(0)], [flat(0)])
    assert (verdict.value, verdict.status) == (0.0, Status.UNPARSABLE)
    assert (
        FrameDistance.Config().build().verify(flat(0), Text("0"), flat(0)).status
        is Status.UNPARSABLE
    )


def test_ssim_agrees_with_another_implementation():
    torch = pytest.importorskip("torch")
    other = pytest.importorskip(
        "pytorch_msssim", reason="pip install pytorch-msssim, to compare with"
    )
    a, b = (np.random.default_rng(seed).random((3, 32, 32, 3)) for seed in (0, 1))
    theirs = other.ssim(
        *(torch.tensor(x).permute(0, 3, 1, 2) for x in (a, b)), data_range=1.0, size_average=False
    )
    assert np.allclose(ssim(a, b), theirs.numpy(), atol=1e-5)
    assert (
        frame_metrics(a, a)["ssim"] == pytest.approx(1.0) and frame_metrics(a, a)["psnr"] == 100.0
    )


def test_a_video_that_freezes_at_its_end_is_counted():
    assert repetition_rate([[(1, 2), (3, 4)], [(1, 2), (5, 6), (5, 6)], [(1, 2)]]) == pytest.approx(
        1 / 3
    )
    assert repetition_rate([[(1, 2), (1, 2)], [(1, 2), (1, 2), (3, 4)]]) == 0.5
    still, moving = [(1, 2), (1, 2)], [(1, 2), (3, 4)]
    assert repetition_rate([still, still, still, moving]) == 0.75
