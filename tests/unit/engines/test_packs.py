"""Packs: the same log-probabilities and gradients as one episode at a time."""

import itertools
import random
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.tiny_model import tiny_model

from terrella.core.errors import ConfigError
from terrella.core.tokens import TrainExample
from terrella.engines.local.local_sampler import LocalSampler
from terrella.engines.memory.live_bytes import LiveBytes, fake_tensors
from terrella.engines.trl import chunked_logprobs
from terrella.engines.trl.packs import (
    Pack,
    mass_outside,
    pack_episodes,
    target_logprobs,
    token_logprobs,
)
from terrella.engines.trl.tree_attention import (
    TREE,
    Attention,
    attention_of,
    block_mask,
    dense_mask,
    use_attention,
)
from terrella.models.attention_masks import LayerWindows


def random_examples(count: int, *, seed: int = 0, group: int = 4) -> list[TrainExample]:
    """Multi-turn examples in groups with a common prompt: model and world spans alternate."""
    rng = random.Random(seed)
    examples = []
    for number in range(count):
        if number % group == 0:
            prompt = tuple(rng.randrange(5, 100) for _ in range(rng.randint(3, 12)))
        ids, mask = [], []
        for _ in range(rng.randint(1, 3)):
            for by_model in (True, False):
                span = rng.randint(1, 4)
                ids += [rng.randrange(5, 100) for _ in range(span)]
                mask += [by_model] * span
        columns = {
            "place": [float(place) for place in range(len(ids))],
            "row": [float(number)] * len(ids),
        }
        examples.append(
            TrainExample(
                prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask), columns=columns
            )
        )
    return examples


def alone(model: object, example: TrainExample) -> torch.Tensor:
    """The plain path: one sequence, no packing, logits everywhere."""
    ids = torch.tensor([[*example.prompt_ids, *example.completion_ids]])
    scores = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
    start = len(example.prompt_ids)
    return torch.stack(
        [scores[start + p - 1, t] for p, t in enumerate(example.completion_ids) if example.mask[p]]
    )


def gradients(model: object, packs: list[Pack]) -> torch.Tensor:
    model.zero_grad()
    for pack in packs:
        logprobs, _ = token_logprobs(model, pack)
        (logprobs * pack.columns["place"].cos()).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_targets_are_the_models_tokens_verbatim_and_in_order(max_tokens: int, seed: int):
    examples = random_examples(24, seed=seed)
    packs = pack_episodes(examples, max_tokens=max_tokens)
    targets = torch.cat([pack.targets_M for pack in packs]).tolist()
    written = []
    for example in examples:
        written += itertools.compress(example.completion_ids, example.mask)
    assert targets == written
    for pack in packs:  # every target is predicted from the token before it in its own episode
        for place, target, number, where in zip(
            pack.predictors_M,
            pack.targets_M,
            pack.columns["row"],
            pack.columns["place"],
            strict=True,
        ):
            example = examples[int(number)]
            sequence = [*example.prompt_ids, *example.completion_ids]
            position = len(example.prompt_ids) + int(where)
            assert sequence[position] == target and sequence[position - 1] == pack.ids_N[place]
            assert pack.positions_N[place] == position - 1


@pytest.mark.parametrize("attention", ["sdpa", "eager", TREE])
@pytest.mark.parametrize("kind", ["llama", "gemma3", "mistral"])
def test_log_probabilities_are_what_they_would_be_alone(kind: str, attention: str):
    """With and without layers whose window is shorter than most prompts."""
    model, _ = tiny_model(kind=kind)
    model.set_attn_implementation(attention)
    examples = random_examples(8)
    with torch.no_grad():
        (pack,) = pack_episodes(examples, max_tokens=10_000)
        logprobs, _ = token_logprobs(model, pack)
        expected = torch.cat([alone(model, example) for example in examples])
    assert torch.allclose(logprobs, expected, atol=1e-5)


@pytest.mark.parametrize("kind", ["llama", "gemma3"])
@pytest.mark.parametrize("attention", ["sdpa", TREE])
@pytest.mark.parametrize(
    ("share_prefix", "max_tokens"), [(False, 10_000), (True, 10_000), (True, 30), (False, 1)]
)
def test_gradients_do_not_depend_on_packing_sharing_or_attention(
    share_prefix: bool, max_tokens: int, attention: str, kind: str
):
    model, _ = tiny_model(kind=kind)
    if attention == TREE:
        use_attention(model, "sdpa")
    examples = random_examples(8)
    model.zero_grad()
    for example in examples:
        places = list(itertools.compress(example.columns["place"], example.mask))
        (alone(model, example) * torch.tensor(places).cos()).sum().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    packs = pack_episodes(examples, max_tokens=max_tokens, share_prefix=share_prefix)
    packed = gradients(model, packs)
    assert (packed - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


def test_sharing_reads_each_prompt_once():
    examples = random_examples(8)
    (pack,) = pack_episodes(examples, max_tokens=10_000)
    unshared = sum(len(each.prompt_ids) + len(each.completion_ids) - 1 for each in examples)
    saved = 3 * len(examples[0].prompt_ids) + 3 * len(examples[4].prompt_ids)
    assert len(pack.ids_N) == unshared - saved


@pytest.mark.parametrize("max_tokens", [1, 30, 60, 100, 10_000])
def test_no_pack_is_longer_than_asked_or_than_its_only_example(max_tokens: int):
    examples = [each for seed in range(4) for each in random_examples(8, seed=seed)]
    longest = max(len(each.prompt_ids) + len(each.completion_ids) - 1 for each in examples)
    packs = pack_episodes(examples, max_tokens=max_tokens)
    assert max(len(pack.ids_N) for pack in packs) <= max(max_tokens, longest)
    for pack in packs:
        # Beyond the bound: one example, so a prompt and a completion.
        assert len(pack.ids_N) <= max_tokens or len(pack.segments_N.unique()) <= 2


def test_a_group_is_divided_and_each_part_reads_the_prompt():
    group = [TrainExample(prompt_ids=range(50), completion_ids=range(11), mask=[True] * 11)] * 8
    packs = pack_episodes(group, max_tokens=80)
    assert [len(pack.ids_N) for pack in packs] == [80, 80, 70]
    assert sum(len(pack.targets_M) for pack in packs) == 8 * 11


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunks_of_targets_give_the_same_numbers(
    temperature: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
):
    generator = torch.Generator().manual_seed(0)
    logits = (4 * torch.randn(70, 50, generator=generator)).to(dtype)
    logits[:, 7] = -torch.inf
    targets = torch.randint(0, 7, (70,), generator=generator)
    weights = torch.randn(70, generator=generator)
    found = []
    for chunk in (1024, 16):
        monkeypatch.setattr(chunked_logprobs, "CHUNK", chunk)
        leaf = logits.clone().requires_grad_()
        logprobs, entropy = chunked_logprobs.logprobs_of(leaf, targets, temperature=temperature)
        (logprobs * weights).sum().backward()
        assert not entropy.requires_grad and leaf.grad.dtype == dtype
        found.append((logprobs.detach(), entropy, leaf.grad.float()))
    for plain, chunked in zip(*found, strict=True):
        assert torch.isfinite(chunked).all()
        assert torch.allclose(plain, chunked, atol=1e-6 if dtype == torch.float32 else 1e-2)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("chunk", [1024, 16])
def test_the_gradient_of_the_entropy_is_that_of_autograd(
    chunk: int, temperature: float, monkeypatch
):
    monkeypatch.setattr(chunked_logprobs, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(40, 50, generator=generator)
    logits[:, 7] = -torch.inf
    targets = torch.randint(0, 7, (40,), generator=generator)
    weights, shares = torch.randn(2, 40, generator=generator)
    ours, plain = (logits.clone().requires_grad_() for _ in range(2))
    logprobs, entropy = chunked_logprobs.logprobs_of(
        ours, targets, temperature=temperature, entropy_gradient=True
    )
    (logprobs * weights + entropy * shares).sum().backward()
    finite = torch.arange(50) != 7
    scores = torch.log_softmax(plain[:, finite] / temperature, -1)
    expected = -(scores.exp() * scores).sum(-1)
    (scores[range(40), targets] * weights + expected * shares).sum().backward()
    assert torch.allclose(entropy, expected, atol=1e-5) and entropy.requires_grad
    assert torch.isfinite(ours.grad).all() and not ours.grad[:, 7].any()
    assert torch.allclose(ours.grad[:, finite], plain.grad[:, finite], atol=1e-5)


def test_a_pack_without_targets_has_a_gradient_of_zero_also_with_an_entropy_bonus():
    """A rank whose groups were all dropped takes part in the backward pass."""
    logits = torch.zeros(0, 50, requires_grad=True)
    nothing = torch.zeros(0, dtype=torch.long)
    logprobs, entropy = chunked_logprobs.logprobs_of(logits, nothing, entropy_gradient=True)
    (logprobs.sum() + entropy.sum()).backward()
    assert logits.grad.shape == (0, 50)


def test_memory_of_logprobs_is_that_of_the_logits_and_their_gradient():
    """152,000 words and 4,096 targets, on tensors without data."""
    words, count = 152_000, 4096
    with fake_tensors():
        logits = torch.empty(count, words, requires_grad=True)
        targets = torch.zeros(count, dtype=torch.long)
        with LiveBytes(vocabulary=words) as live:
            logprobs, _ = chunked_logprobs.logprobs_of(logits, targets)
            logprobs.sum().backward()
    whole, chunk = 4 * words * count, 4 * words * chunked_logprobs.CHUNK
    assert live.peak.total() < 2 * whole + 5 * chunk


def test_a_short_prompt_is_shared_by_wide_models_only():
    """Eight completions of 60 tokens to a prompt of 13.

    In a narrow model the masked attention between completions costs more than sharing saves.
    """
    short = [TrainExample(prompt_ids=range(13), completion_ids=range(60), mask=[True] * 60)] * 8
    for width, groups in ((96, 8), (576, 1)):
        (pack, *_) = pack_episodes(short, max_tokens=9999, width=width)
        assert len(pack.groups) == groups
    long = [TrainExample(prompt_ids=range(2000), completion_ids=range(64), mask=[True] * 64)] * 8
    assert len(pack_episodes(long, max_tokens=9999, width=96)[0].groups) == 1


def test_attention_of_a_pack_costs_its_groups_only():
    """Sixteen single examples of one length: one run of 16 small masks, not one large mask."""
    examples = [
        TrainExample(prompt_ids=(number, 1, 2), completion_ids=(3, 4, 5), mask=[True] * 3)
        for number in range(16)
    ]
    (pack,) = pack_episodes(examples, max_tokens=9999)
    ((count, length, mask),) = pack.attention(Attention(TREE, LayerWindows()))["tree"]
    assert (count, length, tuple(mask.shape)) == (16, 5, (16, 1, 5, 5))


def test_an_example_without_targets_is_not_computed():
    example = TrainExample(prompt_ids=(1, 2), completion_ids=(3, 4), mask=(False, False))
    assert pack_episodes([example], max_tokens=100) == []


def test_an_empty_pack_gives_every_parameter_a_zero_gradient():
    model, _ = tiny_model()
    token_logprobs(model, Pack.empty("cpu"))[0].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_world_tokens_carry_no_gradient():
    """Only hidden states that predict a model token get a gradient."""
    model, _ = tiny_model()
    (pack,) = pack_episodes(random_examples(4), max_tokens=10_000)
    caught: list[torch.Tensor] = []

    def catch(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
        output.retain_grad()
        caught.append(output)
        return output

    # Hidden states of all N tokens, before the head.
    handle = model.model.norm.register_forward_hook(catch)
    token_logprobs(model, pack)[0].sum().backward()
    handle.remove()
    touched = caught[0].grad[0].abs().sum(-1) > 0
    predictors = torch.zeros(len(pack.ids_N), dtype=torch.bool)
    predictors[pack.predictors_M] = True
    assert torch.equal(touched, predictors)


def test_a_world_token_that_nothing_follows_changes_no_loss():
    """World tokens are read by the tokens that follow, never predicted."""
    model, _ = tiny_model()
    first, second = (
        TrainExample(prompt_ids=(7, 8), completion_ids=(9, 10, last), mask=(True, True, False))
        for last in (11, 50)
    )
    with torch.no_grad():
        logprobs = [
            token_logprobs(model, pack_episodes([example], max_tokens=100)[0])[0]
            for example in (first, second)
        ]
    assert torch.equal(*logprobs)


@pytest.mark.parametrize("window", [None, 4])
def test_the_block_mask_of_flex_attention_is_the_same_rule(window: int | None):
    (pack,) = pack_episodes(random_examples(8), max_tokens=10_000)
    dense = dense_mask(pack.places, window)
    blocks = block_mask(pack.places, window)
    indices = torch.arange(len(pack.ids_N))
    rule = blocks.mask_mod(torch.tensor(0), torch.tensor(0), indices[:, None], indices)
    assert torch.equal(rule, dense)
    assert blocks.shape[-2:] == dense.shape[-2:]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_computes_what_the_dense_mask_does():
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    (pack,) = pack_episodes(random_examples(4), max_tokens=10_000)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, len(pack.ids_N), 16) for _ in range(3))
    blocks, dense = (
        pack.attention(Attention(name, LayerWindows()))["attention_mask"]
        for name in ("flex_attention", "sdpa")
    )
    output = flex_attention(q, k, v, block_mask=blocks)
    masked = {"attn_mask": dense}
    assert torch.allclose(output, scaled_dot_product_attention(q, k, v, **masked), atol=1e-5)


def test_every_kind_of_layer_gets_a_mask_of_its_own():
    (pack,) = pack_episodes(random_examples(8), max_tokens=10_000)
    kinds = {"full_attention", "sliding_attention"}
    windows = attention_of(tiny_model(kind="gemma3")[0]).windows
    for name, argument in (("flex_attention", "attention_mask"), (TREE, "tree")):
        assert set(pack.attention(Attention(name, windows))[argument]) == kinds
    dense = pack.attention(Attention("sdpa", windows))["attention_mask"]
    distances = pack.positions_N[:, None] - pack.positions_N
    assert distances[dense["full_attention"][0, 0]].max() > 3
    assert distances[dense["sliding_attention"][0, 0]].max() == 3  # a window of 4


def test_layers_that_packs_do_not_know_are_refused_by_name():
    model, _ = tiny_model(kind="gemma3")
    model.config.layer_types = ["linear_attention", "full_attention"]
    with pytest.raises(ConfigError, match="layers of gemma3_text compute linear_attention"):
        use_attention(model, "auto")
    with pytest.raises(ConfigError, match="linear_attention"):
        LocalSampler(model)


def test_the_mass_outside_the_allowed_ids_is_measured():
    logits = torch.tensor([[[0.0, 0.0, 0.0, 0.0], [50.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 50.0]]])
    output = SimpleNamespace(logits=logits)
    outside = mass_outside(output, torch.tensor([0, 1]))
    assert outside.tolist() == pytest.approx([0.5, 0.0, 1.0], abs=1e-6)
    warm = mass_outside(output, torch.tensor([0]), temperature=50.0)
    assert warm[1] == pytest.approx(3 / (3 + 2.718281828), abs=1e-4)


def test_a_token_that_is_never_written_adds_no_entropy():
    (pack,) = pack_episodes(
        [TrainExample(prompt_ids=(7,), completion_ids=(1, 2), mask=(True, True))], max_tokens=100
    )
    logits = torch.tensor([[[-torch.inf, 0.0, 0.0], [torch.nan, 0.0, 0.0]]])
    _, entropy = target_logprobs(SimpleNamespace(logits=logits), pack)
    assert entropy[0] == pytest.approx(0.6931472) and entropy[1].isnan()


def test_an_empty_prompt_predicts_nothing_from_other_examples():
    model, _ = tiny_model()
    empty = TrainExample(prompt_ids=(), completion_ids=(16, 17, 1), mask=(True,) * 3)
    other = TrainExample(prompt_ids=(41, 41), completion_ids=(18, 19, 1), mask=(True,) * 3)
    (pack,) = pack_episodes([empty], max_tokens=64)
    assert pack.targets_M.tolist() == [17, 1] and pack.predictors_M.tolist() == [0, 1]
    by_itself, _ = token_logprobs(model, pack)
    (pack,) = pack_episodes([other, empty], max_tokens=64)
    torch.testing.assert_close(token_logprobs(model, pack)[0][3:], by_itself)
    only_first = TrainExample(prompt_ids=(), completion_ids=(16,), mask=(True,))
    assert pack_episodes([only_first], max_tokens=64) == []
