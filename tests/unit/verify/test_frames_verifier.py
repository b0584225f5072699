"""Verdicts on frames: the truth is 1, order follows distance, metrics agree with their definitions."""

import numpy as np
import pytest

from terrella.core.types import Frames, Status
from terrella.verify.attacks_frames import DAMAGES, FRAME_ATTACKS
from terrella.verify.frame_metrics import frame_metrics, repetition_rate, ssim
from terrella.verify.frames import FrameDistance


def picture(seed=0, size=32):
    x, y = np.meshgrid(np.linspace(0, 1, size), np.linspace(0, 1, size))
    base = np.stack([x, y, (x + y) / 2], -1) * 200
    base[8:16, 4 + seed : 12 + seed] = (220, 30, 30)
    return Frames.of(base.astype(np.uint8)[None])


def test_the_truth_is_one_and_a_nearer_picture_scores_more():
    verifier = FrameDistance.Config(metrics=True).build()
    truth, near, far = picture(0), picture(1), picture(9)
    scores = [verifier.verify(reply, truth, far).value for reply in (truth, near, far)]
    assert scores[0] == 1.0 > scores[1] > scores[2]
    parts = verifier.verify(near, truth, far).parts
    assert parts["psnr"] == pytest.approx(-10 * np.log10(parts["mse"])) and parts["mae"] == pytest.approx(
        2 * (1 - scores[1])
    )


def test_attacks_earn_no_more_than_nothing_happens_and_damage_is_seen():
    verifier, rng = FrameDistance.Config().build(), np.random.default_rng(0)
    before, truth = picture(0), picture(3)
    allowed = verifier.verify(before, truth, before).value
    for name, attack in FRAME_ATTACKS.items():
        assert verifier.verify(attack(before, truth), truth, before).value <= allowed, name
    assert verifier.verify(FRAME_ATTACKS["the truth twice"](before, truth), truth, before).status is Status.UNPARSABLE
    assert all(verifier.verify(damage(truth, rng), truth, before).value < 1.0 for damage in DAMAGES)


def test_many_at_once_is_the_same_as_one_by_one():
    verifier = FrameDistance.Config().build()
    replies, truths = [picture(k) for k in range(4)], [picture(2)] * 4
    assert verifier.verify_many([*replies[:3], None], truths)[:3] == [
        verifier.verify(reply, truth, truth) for reply, truth in zip(replies[:3], truths, strict=False)
    ]
    assert verifier.verify_many([None], truths[:1])[0].value == 0.0


def test_ssim_agrees_with_another_implementation():
    torch = pytest.importorskip("torch")
    other = pytest.importorskip("pytorch_msssim", reason="pip install pytorch-msssim, to compare with")
    a, b = (np.random.default_rng(seed).random((3, 32, 32, 3)) for seed in (0, 1))
    theirs = other.ssim(*(torch.tensor(x).permute(0, 3, 1, 2) for x in (a, b)), data_range=1.0, size_average=False)
    assert np.allclose(ssim(a, b), theirs.numpy(), atol=1e-5)
    assert frame_metrics(a, a)["ssim"] == pytest.approx(1.0) and frame_metrics(a, a)["psnr"] == 100.0


def test_a_film_that_ends_standing_still_is_counted():
    assert repetition_rate([[(1, 2), (3, 4)], [(1, 2), (5, 6), (5, 6)], [(1, 2)]]) == pytest.approx(1 / 3)
