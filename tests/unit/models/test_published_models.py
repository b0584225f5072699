"""Published checkpoints: every tensor by its name, and the outputs of an independent reading."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from safetensors.torch import load_file, save_file
from tests.support import made_ivideogpt as made

from terrella.codecs.frames import FrameCodec
from terrella.core.errors import ConfigError, StoreError
from terrella.data.recorded import Recording, recorded_episode
from terrella.models.action_bins import ActionBins
from terrella.models.frame_tokenizers import load_frame_tokenizer
from terrella.models.published_tokenizers import COMPRESSIVE, PER_FRAME, WEIGHTS, read_published
from terrella.models.published_transformer import read_published_transformer
from terrella.models.video_lm import make_video_lm
from terrella.pipelines.video.clips import situation_at

ROWS, COLUMNS = 16, 24


@pytest.fixture(scope="module")
def frames():
    generator = torch.Generator().manual_seed(1)
    return torch.rand(3, 3, ROWS, COLUMNS, generator=generator)


@pytest.fixture(scope="module")
def per_frame(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "frame"
    weights = made.write_checkpoint(
        folder, PER_FRAME, made.per_frame_shapes(), made.PER_FRAME_WIDTHS
    )
    return folder, weights


@pytest.fixture(scope="module")
def compressive(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published") / "compressive"
    shapes = made.compressive_shapes(ROWS // 2 * COLUMNS // 2)
    weights = made.write_checkpoint(folder, COMPRESSIVE, shapes, made.COMPRESSIVE_WIDTHS)
    return folder, weights


def test_a_per_frame_tokenizer_writes_and_draws_what_the_published_one_does(per_frame, frames):
    folder, weights = per_frame
    tokenizer = read_published(folder, rows=ROWS, columns=COLUMNS)
    assert tokenizer.state_dict().keys() == weights.keys()
    reference = made.Reference(weights, made.PER_FRAME_WIDTHS)
    vectors = reference.conv(reference.encode(frames, "encoder")[0], "quant_linear")
    codes, ids = made.quantize(vectors.permute(0, 2, 3, 1))
    assert torch.equal(tokenizer.encode(frames).frames, ids.flatten(1))
    assert len(ids.unique()) > 10 and tokenizer.codes == 4375
    drawn, _ = reference.decode(
        reference.conv(codes.permute(0, 3, 1, 2), "post_quant_linear"), "decoder"
    )
    assert torch.allclose(tokenizer.decode(frames[0], ids.flatten(1)), drawn.clamp(0, 1), atol=1e-4)


def test_a_compressive_tokenizer_attends_to_its_context_as_published(compressive, frames):
    folder, weights = compressive
    tokenizer = read_published(folder, rows=ROWS, columns=COLUMNS)
    assert tokenizer.state_dict().keys() == weights.keys()
    reference = made.Reference(weights, made.COMPRESSIVE_WIDTHS)
    latent, features = reference.encode(frames[:1], "encoder")
    context_codes, context_ids = made.quantize(
        reference.conv(latent, "quant_conv").permute(0, 2, 3, 1)
    )
    shown = [each.repeat(2, 1, 1, 1) for each in features]
    d = reference.encode(frames[1:], "cond_encoder", shown)[0].permute(0, 2, 3, 1)
    p = made.PATCH
    d = d.unfold(1, p, p).unfold(2, p, p).permute(0, 1, 2, 4, 5, 3)
    h, w = d.shape[1:3]
    codes, ids = made.quantize(reference.linear(d.reshape(2, h * w, -1), "quant_linear"))
    video = tokenizer.encode(frames[1:], frames[0])
    assert torch.equal(video.context, context_ids.flatten()) and torch.equal(video.frames, ids)

    _, features = reference.decode(
        reference.conv(context_codes.permute(0, 3, 1, 2), "post_quant_conv"), "decoder"
    )
    latents = reference.linear(codes, "post_quant_linear").reshape(2, h, w, p, p, made.LATENT)
    latents = torch.einsum("nhwpqc->nchpwq", latents).reshape(2, made.LATENT, h * p, w * p)
    shown = [each.repeat(2, 1, 1, 1) for each in features]
    drawn, _ = reference.decode(latents, "cond_decoder", shown)
    assert torch.allclose(tokenizer.decode(frames[0], ids), drawn.clamp(0, 1), atol=1e-4)


def test_a_published_tokenizer_is_kept_in_our_own_format(compressive, tmp_path):
    tokenizer = read_published(compressive[0], rows=ROWS, columns=COLUMNS)
    video = np.random.default_rng(0).integers(0, 255, (3, ROWS, COLUMNS, 3), np.uint8)
    tokenizer.save(tmp_path / "tokenizer")
    loaded = load_frame_tokenizer(tmp_path / "tokenizer")
    context, ids = loaded.write(video, video[0])
    assert (context, ids) == tokenizer.write(video, video[0])
    assert len(context) == loaded.tokens_per_context == 96 and np.shape(ids) == (3, 6)
    assert loaded.read(video[0], ids).shape == video.shape


def test_tensors_of_another_layout_are_refused_by_name(per_frame, tmp_path):
    folder, weights = per_frame
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    changed = dict(weights)
    changed["encoder.conv_inn.bias"] = changed.pop("encoder.conv_in.bias")
    changed["decoder.conv_out.bias"] = torch.zeros(4)
    save_file(changed, tmp_path / WEIGHTS)
    with pytest.raises(StoreError) as caught:
        read_published(tmp_path, rows=ROWS, columns=COLUMNS)
    for what in (
        "encoder.conv_in.bias is missing",
        "encoder.conv_inn.bias is not known",
        "decoder.conv_out.bias is (4,), not (3,)",
    ):
        assert what in caught.value.what
    (tmp_path / "config.json").write_text('{"_class_name": "AutoencoderKL"}')
    with pytest.raises(ConfigError, match="AutoencoderKL"):
        read_published(tmp_path, rows=ROWS, columns=COLUMNS)


# --- ids and the transformer ----------------------------------------------------------------------


class Tokenizer:
    """320 and 80 ids a frame, as at 256 x 320, without a network."""

    codes = 4375

    def __init__(self, per_frame):
        self.tokens_per_frame, self.tokens_per_context = (320, 0) if per_frame else (80, 1280)

    def write(self, frames, context):
        ids = [[int(frame[0, 0, 0])] * self.tokens_per_frame for frame in frames]
        return [int(context[0, 0, 0])] * self.tokens_per_context, ids


def thirteen():
    video = np.zeros((6, 2, 2, 3), np.uint8) + np.arange(6, dtype=np.uint8)[:, None, None, None]
    actions = np.tile(np.linspace(0, 1, 13), (6, 1))
    return recorded_episode(Recording(source="x", number=0, video=video, actions=actions))


def test_the_joint_vocabulary_is_the_published_one():
    bins = ActionBins.uniform(np.array([[0.0, 1.0]] * 13), 256)
    episode = thirteen()
    action = [*(int(256 * number) for number in np.linspace(0, 1, 13)[:-1]), 255]

    multi = FrameCodec(Tokenizer(per_frame=False), bins, window=0, joint=True)
    assert (multi.vocabulary, multi.start, multi.pad) == (9008, 9006, 9007)
    prompt = multi.ask_observation(situation_at(episode, 1, 0), episode.transitions[1].action)
    assert prompt == (*[4375] * 1280, *[1] * 80, *(8750 + number for number in action))
    assert multi.allowed_ids == tuple(range(4375)) and len(prompt) == 1373

    single = FrameCodec(Tokenizer(per_frame=True), bins, window=3, joint=True)
    assert (single.vocabulary, single.start) == (4633, 4631)
    prompt = single.ask_observation(situation_at(episode, 4, 3), episode.transitions[4].action)
    assert len(prompt) == 1333 and prompt[-1] == 4631
    step = [4375 + number for number in action]
    assert prompt[:-1] == (
        *[1] * 320,
        *step,
        *[2] * 320,
        *step,
        *[3] * 320,
        *step,
        *[4] * 320,
        *step,
    )


def test_a_transformer_in_the_published_layout_is_read_and_computes_the_same(tmp_path):
    sizes = {"width": 32, "layers": 2, "heads": 4, "positions": 64, "inner": 48, "tied": False}
    model, _ = make_video_lm(90, seed=3, pad=89, start=88, **sizes)
    for name, prefix in (("rlvr", ""), ("ivideogpt", "llm.")):
        model.save_pretrained(tmp_path / name)
        path = tmp_path / name / "model.safetensors"
        save_file({prefix + key: value for key, value in load_file(path).items()}, path)
        read, tokenizer = read_published_transformer(
            tmp_path / name, vocabulary=90, pad=89, start=88
        )
        ids = torch.arange(20)[None]
        assert torch.equal(read(ids).logits, model(ids).logits) and len(tokenizer) == 90
    with pytest.raises(ConfigError, match="has 90 ids; the codec has 91"):
        read_published_transformer(tmp_path / "rlvr", vocabulary=91, pad=0, start=1)
    save_file({**load_file(path), "action_linear.weight": torch.zeros(2, 2)}, path)
    with pytest.raises(ConfigError, match="actions as numbers"):
        read_published_transformer(tmp_path / "ivideogpt", vocabulary=90, pad=89, start=88)


@pytest.mark.parametrize(("vocabulary", "millions"), [(4633, 120_381_696), (9008, 127_101_696)])
def test_the_recipes_have_the_published_number_of_parameters(vocabulary, millions):
    from terrella.engines.memory.model_spec import parameters
    from terrella.pipelines.phases import _video_lengths
    from terrella.recipes import find_recipe

    name = "rt1_single_step" if vocabulary < 5000 else "rt1_multi_step"
    spec, example = _video_lengths(find_recipe(name)())
    assert spec.config.vocab_size == vocabulary and parameters(spec) == millions
    assert example.prompt in ((1333, 1334) if vocabulary < 5000 else (1373, 1374))
