"""Small checkpoints in the layout of RLVR-World's tokenizers, and their forward pass by name.

Names, shapes and the pass are written out from the published description, independently of the
modules in `terrella.models`, so that a test compares two readings of one layout.
"""

import json

import torch
from safetensors.torch import save_file
from torch.nn import functional

GROUPS, LATENT, LEVELS = 32, 8, (7, 5, 5, 5, 5)
PER_FRAME_WIDTHS, COMPRESSIVE_WIDTHS = (32, 32, 64), (32, 64)
PATCH = 4


def shapes_of_resnet(name, a, b):
    yield from norm(f"{name}.norm1", a)
    yield from conv(f"{name}.conv1", a, b, 3)
    yield from norm(f"{name}.norm2", b)
    yield from conv(f"{name}.conv2", b, b, 3)
    if a != b:
        yield from conv(f"{name}.conv_shortcut", a, b, 1)


def conv(name, a, b, k):
    yield f"{name}.weight", (b, a, k, k)
    yield f"{name}.bias", (b,)


def norm(name, a):
    yield f"{name}.weight", (a,)
    yield f"{name}.bias", (a,)


def linear(name, a, b):
    yield f"{name}.weight", (b, a)
    yield f"{name}.bias", (b,)


def middle(name, a, attends):
    yield from shapes_of_resnet(f"{name}.resnets.0", a, a)
    if attends:
        yield from norm(f"{name}.attentions.0.group_norm", a)
        for part in ("to_q", "to_k", "to_v", "to_out.0"):
            yield from linear(f"{name}.attentions.0.{part}", a, a)
    yield from shapes_of_resnet(f"{name}.resnets.1", a, a)


def cross(name, a, cells):
    yield f"{name}.att.in_proj_weight", (3 * a, a)
    yield f"{name}.att.in_proj_bias", (3 * a,)
    yield from linear(f"{name}.att.out_proj", a, a)
    yield from norm(f"{name}.kv_norm", a)
    yield from norm(f"{name}.q_norm", a)
    yield f"{name}.kv_pos_emb", (cells, a)
    yield f"{name}.q_pos_emb", (cells, a)


def encoder(name, widths, attends, cells=()):
    yield from conv(f"{name}.conv_in", 3, widths[0], 3)
    before = widths[0]
    for number, width in enumerate(widths):
        block = f"{name}.down_blocks.{number}"
        yield from shapes_of_resnet(f"{block}.resnets.0", before, width)
        if number < len(widths) - 1:
            yield from conv(f"{block}.downsamplers.0.conv", width, width, 3)
        before = width
    yield from middle(f"{name}.mid_block", before, attends)
    yield from norm(f"{name}.conv_norm_out", before)
    yield from conv(f"{name}.conv_out", before, LATENT, 3)
    for number, count in enumerate(cells):
        yield from cross(f"{name}.cross_att_blocks.{number}", widths[number], count)


def decoder(name, widths, attends, cells=()):
    turned = widths[::-1]
    yield from conv(f"{name}.conv_in", LATENT, turned[0], 3)
    yield from middle(f"{name}.mid_block", turned[0], attends)
    before = turned[0]
    for number, width in enumerate(turned):
        block = f"{name}.up_blocks.{number}"
        yield from shapes_of_resnet(f"{block}.resnets.0", before, width)
        yield from shapes_of_resnet(f"{block}.resnets.1", width, width)
        if number < len(widths) - 1:
            yield from conv(f"{block}.upsamplers.0.conv", width, width, 3)
        before = width
    yield from norm(f"{name}.conv_norm_out", before)
    yield from conv(f"{name}.conv_out", before, 3, 3)
    for number, count in enumerate(cells):
        channels = (turned[0], *turned)[number]
        yield from cross(f"{name}.cross_att_blocks.{number}", channels, count)


def per_frame_shapes():
    yield from encoder("encoder", PER_FRAME_WIDTHS, True)
    yield from decoder("decoder", PER_FRAME_WIDTHS, True)
    yield from conv("quant_linear", LATENT, len(LEVELS), 1)
    yield from conv("post_quant_linear", len(LEVELS), LATENT, 1)


def compressive_shapes(cells):
    """Frames attend to their context in both down blocks, and after the middle and an up block."""
    yield from encoder("encoder", COMPRESSIVE_WIDTHS, False)
    yield from decoder("decoder", COMPRESSIVE_WIDTHS, False)
    yield from encoder("cond_encoder", COMPRESSIVE_WIDTHS, True, (cells, cells))
    yield from decoder("cond_decoder", COMPRESSIVE_WIDTHS, True, (cells, 4 * cells))
    yield from conv("quant_conv", LATENT, len(LEVELS), 1)
    yield from conv("post_quant_conv", len(LEVELS), LATENT, 1)
    yield from linear("quant_linear", LATENT * PATCH**2, len(LEVELS))
    yield from linear("post_quant_linear", len(LEVELS), LATENT * PATCH**2)


def write_checkpoint(folder, kind, shapes, widths):
    generator = torch.Generator().manual_seed(0)
    weights = {
        name: torch.randn(shape, generator=generator) * 0.3 for name, shape in dict(shapes).items()
    }
    folder.mkdir(parents=True)
    save_file(weights, folder / "diffusion_pytorch_model.safetensors")
    settings = {
        "_class_name": kind,
        "block_out_channels": widths,
        "layers_per_block": 1,
        "norm_num_groups": GROUPS,
        "latent_channels": LATENT,
        "fsq_levels": LEVELS,
        "patch_size": PATCH,
        "context_length": 1,
        **({"mid_block_add_attention": False} if kind.startswith("Comp") else {}),
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return weights


class Reference:
    """The published forward pass, by the names of the tensors."""

    def __init__(self, weights, widths):
        self.w = weights
        self.widths = widths

    def conv(self, x, name, **settings):
        return functional.conv2d(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"], **settings)

    def norm(self, x, name, eps=1e-6):
        return functional.group_norm(
            x, GROUPS, self.w[f"{name}.weight"], self.w[f"{name}.bias"], eps
        )

    def linear(self, x, name):
        return functional.linear(x, self.w[f"{name}.weight"], self.w[f"{name}.bias"])

    def resnet(self, x, name):
        out = self.conv(functional.silu(self.norm(x, f"{name}.norm1")), f"{name}.conv1", padding=1)
        out = self.conv(
            functional.silu(self.norm(out, f"{name}.norm2")), f"{name}.conv2", padding=1
        )
        if f"{name}.conv_shortcut.weight" in self.w:
            x = self.conv(x, f"{name}.conv_shortcut")
        return x + out

    def middle(self, x, name):
        x = self.resnet(x, f"{name}.resnets.0")
        at = f"{name}.attentions.0"
        if f"{at}.to_q.weight" in self.w:
            n, c, h, w = x.shape
            cells = self.norm(x, f"{at}.group_norm").reshape(n, c, h * w).transpose(1, 2)
            q, k, v = (self.linear(cells, f"{at}.{part}") for part in ("to_q", "to_k", "to_v"))
            seen = torch.softmax(q @ k.transpose(1, 2) / c**0.5, -1) @ v
            x = x + self.linear(seen, f"{at}.to_out.0").transpose(1, 2).reshape(n, c, h, w)
        return self.resnet(x, f"{name}.resnets.1")

    def cross(self, x, context, name):
        n, c = x.shape[:2]
        kv, q = self.norm(context, f"{name}.kv_norm", 1e-5), self.norm(x, f"{name}.q_norm", 1e-5)
        kv = kv.reshape(n, c, -1).transpose(1, 2) + self.w[f"{name}.kv_pos_emb"]
        q = q.reshape(n, c, -1).transpose(1, 2) + self.w[f"{name}.q_pos_emb"]
        weights = self.w[f"{name}.att.in_proj_weight"].chunk(3)
        biases = self.w[f"{name}.att.in_proj_bias"].chunk(3)
        heads = [
            functional.linear(each, weight, bias).reshape(n, -1, 4, c // 4).transpose(1, 2)
            for each, weight, bias in zip((q, kv, kv), weights, biases, strict=True)
        ]
        scores = heads[0] @ heads[1].transpose(2, 3) / (c // 4) ** 0.5
        seen = (torch.softmax(scores, -1) @ heads[2]).transpose(1, 2).reshape(n, -1, c)
        out = self.linear(seen, f"{name}.att.out_proj").transpose(1, 2).reshape(x.shape)
        return functional.silu(x + out)

    def encode(self, x, name, context=None):
        x = self.conv(x, f"{name}.conv_in", padding=1)
        features = [x]
        for number in range(len(self.widths)):
            block = f"{name}.down_blocks.{number}"
            x = self.resnet(x, f"{block}.resnets.0")
            if number < len(self.widths) - 1:
                x = self.conv(
                    functional.pad(x, (0, 1, 0, 1)), f"{block}.downsamplers.0.conv", stride=2
                )
            if context is not None:
                x = self.cross(x, context[number + 1], f"{name}.cross_att_blocks.{number}")
            features.append(x)
        x = functional.silu(self.norm(self.middle(x, f"{name}.mid_block"), f"{name}.conv_norm_out"))
        return self.conv(x, f"{name}.conv_out", padding=1), features

    def decode(self, x, name, context=None):
        x = self.conv(x, f"{name}.conv_in", padding=1)
        features = [x]
        x = self.middle(x, f"{name}.mid_block")
        if context is not None:
            x = self.cross(x, context[1], f"{name}.cross_att_blocks.0")
        features.append(x)
        for number in range(len(self.widths)):
            block = f"{name}.up_blocks.{number}"
            x = self.resnet(self.resnet(x, f"{block}.resnets.0"), f"{block}.resnets.1")
            if number < len(self.widths) - 1:
                x = functional.interpolate(x, scale_factor=2, mode="nearest")
                x = self.conv(x, f"{block}.upsamplers.0.conv", padding=1)
            if context is not None and f"{name}.cross_att_blocks.{number + 1}.q_pos_emb" in self.w:
                attention = f"{name}.cross_att_blocks.{number + 1}"
                x = self.cross(x, context[number + 2], attention)
            features.append(x)
        x = functional.silu(self.norm(x, f"{name}.conv_norm_out"))
        return self.conv(x, f"{name}.conv_out", padding=1), features


def quantize(vectors):
    """FSQ of the last axis: codes and ids."""
    levels = torch.tensor(LEVELS)
    half = (levels - 1) * 1.001 / 2
    digits = (torch.tanh(vectors) * half).round()  # all levels are odd
    basis = torch.tensor([1, 7, 35, 175, 875])
    return digits / (levels // 2), ((digits + levels // 2) * basis).sum(-1).long()
