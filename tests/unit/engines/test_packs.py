"""Packs: same log-probabilities and gradients as one episode at a time, whatever was packed with what."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")
from tests.support.tiny_model import tiny_model

from terrella.engines.trl.packs import Pack, TrainingRow, pack_episodes, token_logprobs
from terrella.engines.trl.tree_attention import TREE, block_mask, dense_mask, use_tree_attention


def random_rows(count: int, *, seed: int = 0, group: int = 4) -> list[TrainingRow]:
    """Multi-turn rows in groups with a common prompt: model spans and world spans, interleaved."""
    rng = random.Random(seed)
    rows = []
    for number in range(count):
        if number % group == 0:
            prompt = tuple(rng.randrange(5, 100) for _ in range(rng.randint(3, 12)))
        ids, mask = [], []
        for _ in range(rng.randint(1, 3)):
            for mine in (True, False):
                span = rng.randint(1, 4)
                ids += [rng.randrange(5, 100) for _ in range(span)]
                mask += [mine] * span
        columns = {"place": [float(place) for place in range(len(ids))], "row": [float(number)] * len(ids)}
        rows.append(TrainingRow(prompt_ids=prompt, completion_ids=tuple(ids), mask=tuple(mask), columns=columns))
    return rows


def alone(model: object, row: TrainingRow) -> torch.Tensor:
    """The plain path: one sequence, no packing, logits everywhere."""
    ids = torch.tensor([[*row.prompt_ids, *row.completion_ids]])
    scores = torch.log_softmax(model(input_ids=ids).logits[0].float(), -1)
    start = len(row.prompt_ids)
    return torch.stack([scores[start + p - 1, t] for p, t in enumerate(row.completion_ids) if row.mask[p]])


def gradients(model: object, packs: list[Pack], attention: str = "sdpa") -> torch.Tensor:
    model.zero_grad()
    for pack in packs:
        (token_logprobs(model, pack, attention=attention)[0] * pack.columns["place"].cos()).sum().backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


@pytest.mark.parametrize("max_tokens", [1, 40, 10_000])
@pytest.mark.parametrize("seed", range(5))
def test_targets_are_the_models_tokens_verbatim_and_in_order(max_tokens: int, seed: int):
    rows = random_rows(24, seed=seed)
    packs = pack_episodes(rows, max_tokens=max_tokens)
    targets = torch.cat([pack.targets_M for pack in packs]).tolist()
    assert targets == [token for row in rows for token, mine in zip(row.completion_ids, row.mask, strict=True) if mine]
    for pack in packs:  # every target is predicted from the token right before it in its own episode
        for place, target, number, where in zip(
            pack.predictors_M, pack.targets_M, pack.columns["row"], pack.columns["place"], strict=True
        ):
            row = rows[int(number)]
            sequence = [*row.prompt_ids, *row.completion_ids]
            position = len(row.prompt_ids) + int(where)
            assert sequence[position] == target and sequence[position - 1] == pack.ids_N[place]
            assert pack.positions_N[place] == position - 1


def test_log_probabilities_are_what_they_would_be_alone():
    model, _ = tiny_model()
    rows = random_rows(8)
    with torch.no_grad():
        (pack,) = pack_episodes(rows, max_tokens=10_000)
        found, _ = token_logprobs(model, pack)
        expected = torch.cat([alone(model, row) for row in rows])
    assert torch.allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", TREE])
@pytest.mark.parametrize(("share_prefix", "max_tokens"), [(False, 10_000), (True, 10_000), (True, 30), (False, 1)])
def test_gradients_do_not_depend_on_packing_sharing_or_attention(share_prefix: bool, max_tokens: int, attention: str):
    model, _ = tiny_model()
    if attention == TREE:
        use_tree_attention(model)
    rows = random_rows(8)
    model.zero_grad()
    for row in rows:
        weight = torch.tensor([c for c, mine in zip(row.columns["place"], row.mask, strict=True) if mine]).cos()
        (alone(model, row) * weight).sum().backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    found = gradients(model, pack_episodes(rows, max_tokens=max_tokens, share_prefix=share_prefix), attention)
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max().clamp(min=1)


def test_sharing_reads_each_prompt_once():
    rows = random_rows(8)
    (pack,) = pack_episodes(rows, max_tokens=10_000)
    plain = sum(len(row.prompt_ids) + len(row.completion_ids) - 1 for row in rows)
    assert len(pack.ids_N) == plain - 3 * len(rows[0].prompt_ids) - 3 * len(rows[4].prompt_ids)


def test_a_short_prompt_is_shared_by_wide_models_only():
    """Eight answers of 60 tokens to 13: their masked attention to each other costs a narrow model more than 13 save."""
    rows = [TrainingRow(prompt_ids=range(13), completion_ids=range(60), mask=[True] * 60)] * 8
    assert [len(pack_episodes(rows, max_tokens=9999, width=width)[0].groups) for width in (96, 576)] == [8, 1]
    long = [TrainingRow(prompt_ids=range(2000), completion_ids=range(64), mask=[True] * 64)] * 8
    assert len(pack_episodes(long, max_tokens=9999, width=96)[0].groups) == 1


def test_attention_of_a_pack_costs_its_groups_only():
    """Sixteen lone rows of one length: one run of 16 small masks, not one of the whole pack."""
    rows = [TrainingRow(prompt_ids=(number, 1, 2), completion_ids=(3, 4, 5), mask=[True] * 3) for number in range(16)]
    ((count, length, mask),) = pack_episodes(rows, max_tokens=9999)[0].attention(TREE)["tree"]
    assert (count, length, tuple(mask.shape)) == (16, 5, (16, 1, 5, 5))


def test_a_row_without_targets_is_not_computed():
    row = TrainingRow(prompt_ids=(1, 2), completion_ids=(3, 4), mask=(False, False))
    assert pack_episodes([row], max_tokens=100) == []


def test_an_empty_pack_gives_every_parameter_a_zero_gradient():
    model, _ = tiny_model()
    token_logprobs(model, Pack.empty("cpu"))[0].sum().backward()
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())


def test_world_tokens_carry_no_gradient():
    """The loss sees no logits but those that predict a model token, and of no world token as a target."""
    model, _ = tiny_model()
    (pack,) = pack_episodes(random_rows(4), max_tokens=10_000)
    caught: list[torch.Tensor] = []

    def catch(module: object, given: object, output: torch.Tensor) -> torch.Tensor:
        output.retain_grad()
        caught.append(output)
        return output

    handle = model.model.norm.register_forward_hook(catch)  # hidden states of all N places, before the head
    token_logprobs(model, pack)[0].sum().backward()
    handle.remove()
    touched = caught[0].grad[0].abs().sum(-1) > 0
    predictors = torch.zeros(len(pack.ids_N), dtype=torch.bool)
    predictors[pack.predictors_M] = True
    assert torch.equal(touched, predictors)


def test_a_world_token_that_nothing_follows_changes_no_loss():
    """World tokens are read by what follows, never predicted: at an end nothing follows."""
    model, _ = tiny_model()
    first, second = (
        TrainingRow(prompt_ids=(7, 8), completion_ids=(9, 10, last), mask=(True, True, False)) for last in (11, 50)
    )
    with torch.no_grad():
        found = [token_logprobs(model, pack_episodes([row], max_tokens=100)[0])[0] for row in (first, second)]
    assert torch.equal(*found)


def test_the_block_mask_of_flex_attention_is_the_same_rule():
    (pack,) = pack_episodes(random_rows(8), max_tokens=10_000)
    dense, blocks = dense_mask(pack.segments_N, pack.prefixes_N), block_mask(pack.segments_N, pack.prefixes_N)
    places = torch.arange(len(pack.ids_N))
    rule = blocks.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places)
    assert torch.equal(rule, dense)
    assert blocks.shape[-2:] == dense.shape[-2:]


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_flex_attention_computes_what_the_dense_mask_does():
    from torch.nn.attention.flex_attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    (pack,) = pack_episodes(random_rows(4), max_tokens=10_000)
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, len(pack.ids_N), 16) for _ in range(3))
    found = flex_attention(q, k, v, block_mask=pack.attention("flex_attention")["attention_mask"])
    masked = {"attn_mask": pack.attention("sdpa")["attention_mask"]}
    assert torch.allclose(found, scaled_dot_product_attention(q, k, v, **masked), atol=1e-5)
