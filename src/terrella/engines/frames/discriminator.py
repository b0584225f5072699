"""The adversarial loss of frame tokenizers: a discriminator of patches, and hinge losses.

Each output of the discriminator judges one patch. It is trained beside the tokenizer from the step
on at which the adversarial loss is switched on, and kept in the tokenizer's checkpoints.
    loss = discriminator_loss(net(real), net(rebuilt.detach()))
    loss = generator_loss(net, rebuilt)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

HALVINGS = 3
SLOPE = 0.2


class PatchDiscriminator(nn.Module):
    """Images in [0, 1], (N, 3, H, W), to one score for each patch."""

    def __init__(self, width: int, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            steps: list[nn.Module] = [nn.Conv2d(3, width, 4, stride=2, padding=1)]
            for number in range(1, HALVINGS):
                channels = width * 2 ** (number - 1)
                steps += [
                    nn.LeakyReLU(SLOPE),
                    nn.Conv2d(channels, channels * 2, 4, stride=2, padding=1),
                    nn.GroupNorm(8, channels * 2),
                ]
            last = width * 2 ** (HALVINGS - 1)
            self.steps = nn.Sequential(*steps, nn.LeakyReLU(SLOPE), nn.Conv2d(last, 1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        scores: Tensor = self.steps(2.0 * images - 1.0)
        return scores


def discriminator_loss(real: Tensor, rebuilt: Tensor) -> Tensor:
    """Hinge loss: real patches above 1, reconstructed ones below -1."""
    return 0.5 * (functional.relu(1.0 - real).mean() + functional.relu(1.0 + rebuilt).mean())


def generator_loss(net: nn.Module, rebuilt: Tensor) -> Tensor:
    """The lower, the more real the reconstruction seems.

    The discriminator's own weights get no gradient, so that no rank waits for theirs.
    """
    frozen = {name: value.detach() for name, value in net.named_parameters()}
    scores: Tensor = torch.func.functional_call(net, frozen, (rebuilt,))
    return -scores.mean()
